"""How many pairs a timing takes and when it stops, on a clock that only moves when a fake kernel runs."""

from __future__ import annotations

import builtins
import gc
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.measure import contention, pairs
from autotune.measure.contention import ContentionWatch
from autotune.measure.pairs import repeats_for, sample_ns, time_pairs
from autotune.types import BenchmarkSpec, Stage

SPEC = BenchmarkSpec(min_sample_ns=1000)


class Clock:
    """`perf_counter_ns` of the module under test."""

    def __init__(self) -> None:
        self.now = 0

    def perf_counter_ns(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pairs, "time", SimpleNamespace(perf_counter_ns=clock.perf_counter_ns))
    return clock


class Kernel:
    """Takes the given times in turn, the last one for ever, and counts its calls."""

    def __init__(self, clock: Clock, *times_ns: int) -> None:
        self._clock, self._times, self.calls = clock, list(times_ns), 0

    def __call__(self) -> None:
        self.calls += 1
        self._clock.now += self._times.pop(0) if len(self._times) > 1 else self._times[0]


class Alternating(Kernel):
    """Takes its times in turn, over and over."""

    def __call__(self) -> None:
        self._clock.now += self._times[self.calls % len(self._times)]
        self.calls += 1


def timed(candidate: Callable[[], Any], baseline: Callable[[], Any], stage: Stage, **spec: Any) -> pairs.PairedTimes:
    found = time_pairs(candidate, baseline, replace(SPEC, **spec), stage, seed=1)
    assert len(found.candidate) == len(found.baseline)
    return found


def test_a_screening_takes_its_pairs(clock: Clock) -> None:
    found = timed(Kernel(clock, 1000), Kernel(clock, 2000), Stage.SCREEN)
    assert found == pairs.PairedTimes((1000,) * 10, (2000,) * 10)


def test_a_clear_decision_takes_its_pairs(clock: Clock) -> None:
    found = timed(Kernel(clock, 1000), Kernel(clock, 1100), Stage.FINAL)
    assert found == pairs.PairedTimes((1000,) * 40, (1100,) * 40)


@pytest.mark.parametrize("candidate", [2000, 10_000])
def test_a_hopeless_candidate_is_given_up_after_three_pairs(clock: Clock, candidate: int) -> None:
    assert len(timed(Kernel(clock, candidate), Kernel(clock, 1000), Stage.SCREEN).candidate) == 3


def test_one_pair_with_hope_is_enough_to_go_on(clock: Clock) -> None:
    warm_up = (5000,) * 3
    hopeful = Kernel(clock, *warm_up, 5000, 1500, 5000)
    assert len(timed(hopeful, Kernel(clock, 1000), Stage.SCREEN).candidate) == 10
    slow_but_not_hopeless = Kernel(clock, 1600)  # 1000 / 1600 is above 0.6
    assert len(timed(slow_but_not_hopeless, Kernel(clock, 1000), Stage.SCREEN).candidate) == 10


def test_a_decision_is_never_given_up(clock: Clock) -> None:
    assert len(timed(Kernel(clock, 10_000), Kernel(clock, 1000), Stage.FINAL).candidate) == 40


def test_a_decision_that_straddles_one_takes_more_pairs(clock: Clock) -> None:
    undecided = Alternating(clock, 1000, 3000)
    assert len(timed(undecided, Kernel(clock, 2000), Stage.FINAL).candidate) == 80
    equal = timed(Kernel(clock, 1000), Kernel(clock, 1000), Stage.FINAL)
    assert len(equal.candidate) == 80
    assert len(timed(Kernel(clock, 1000), Kernel(clock, 1000), Stage.FINAL, max_final_pairs=40).candidate) == 40
    assert len(timed(Kernel(clock, 1000), Kernel(clock, 1000), Stage.SCREEN).candidate) == 10, "screenings never do"


@pytest.mark.parametrize(("stage", "least"), [(Stage.SCREEN, 3), (Stage.FINAL, 10)])
def test_the_budget_stops_slow_workloads_but_not_before_the_least(clock: Clock, stage: Stage, least: int) -> None:
    minute = 60 * 10**9
    assert len(timed(Kernel(clock, minute), Kernel(clock, minute), stage).candidate) == least
    budgets = {"screen_budget_s": 12.0, "final_budget_s": 12.0}
    half = 5 * 10**8  # a pair takes one second, so the budget ends after the 13th
    expected = 10 if stage is Stage.SCREEN else 13
    assert len(timed(Kernel(clock, half), Kernel(clock, half), stage, **budgets).candidate) == expected


def test_short_calls_are_repeated_until_a_sample_is_long_enough(clock: Clock) -> None:
    candidate = Kernel(clock, 10)
    found = timed(candidate, Kernel(clock, 30), Stage.SCREEN, min_sample_ns=3000)
    assert found == pairs.PairedTimes((10,) * 10, (30,) * 10), "times are per call"
    assert candidate.calls > 10 * 300
    assert repeats_for(Kernel(clock, 10), 3000) == 300
    assert repeats_for(Kernel(clock, 7), 3000) == 429, "rounded up"
    assert repeats_for(Kernel(clock, 10**9), 3000) == 1


def test_a_call_too_short_for_the_clock_still_takes_time(clock: Clock) -> None:
    assert sample_ns(Kernel(clock, 0), 5) == 1
    assert repeats_for(Kernel(clock, 0), 1000) == 1000


def test_neighbours_are_taken_in_random_order_that_the_seed_decides() -> None:
    def order(seed: int) -> str:
        calls: list[str] = []
        spec = replace(SPEC, min_sample_ns=1, screen_pairs=30, give_up_ratio=0.0)
        time_pairs(lambda: calls.append("c"), lambda: calls.append("b"), spec, Stage.SCREEN, seed)
        return "".join(calls)[6:]  # the first three calls of each warm up

    found = order(1)
    assert found == order(1)
    assert found != order(2)
    couples = [found[i : i + 2] for i in range(0, len(found), 2)]
    assert set(couples) == {"cb", "bc"}, "each sample of the candidate is next to one of the default"


def test_garbage_is_not_collected_in_the_middle_and_collecting_is_restored(clock: Clock) -> None:
    seen: list[bool] = []
    candidate = Kernel(clock, 1000)

    def watched() -> None:
        candidate()
        seen.append(gc.isenabled())

    timed(watched, Kernel(clock, 1000), Stage.SCREEN)
    assert not any(seen[3:])
    assert gc.isenabled()


def test_an_exception_of_the_candidate_comes_through(clock: Clock) -> None:
    calls = iter([1, 2, 3, 4])

    def fails_at_last() -> None:
        clock.now += 1000
        next(calls)

    with pytest.raises(StopIteration):
        timed(fails_at_last, Kernel(clock, 1000), Stage.SCREEN)
    assert gc.isenabled()


# Contention


@pytest.fixture
def without_files(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Files under /proc that are missing for the module under test."""
    missing: set[str] = set()
    real = builtins.open

    def fake(path: Any, *args: Any, **named: Any) -> Any:
        if path in missing:
            raise FileNotFoundError(path)
        return real(path, *args, **named)

    monkeypatch.setattr(contention, "open", fake, raising=False)
    return missing


@pytest.mark.parametrize("missing", [(), ("/proc/pressure/cpu",), ("/proc/pressure/cpu", "/proc/stat")])
def test_the_watch_works_on_every_system(without_files: set[str], missing: tuple[str, ...]) -> None:
    without_files |= set(missing)
    watch = ContentionWatch()
    assert watch.contended(0.1) in (True, False)
    if len(missing) == 2:
        assert watch.contended(0.1) is False, "nothing is known, so nothing is claimed"


def reading(wall_s: float, stalled_s: float | None, busy_s: float | None, own_s: float) -> Any:
    return contention._Reading(wall_s, stalled_s, busy_s, own_s)


@pytest.mark.parametrize(
    ("begin", "end", "contended"),
    [
        (reading(0, 0.0, 0, 0), reading(1, 0.05, 9, 1), False),
        (reading(0, 0.0, 0, 0), reading(1, 0.15, 1, 1), True),
        (reading(0, None, 0, 0), reading(1, None, 2.05, 2), False),
        (reading(0, None, 0, 0), reading(1, None, 2.5, 2), True),
        (reading(0, None, 0, 0), reading(0.05, None, 0.1, 0), False),  # hundredths of a second prove nothing here
        (reading(0, None, None, 0), reading(1, None, None, 1), False),
        (reading(5, 1.0, 1, 1), reading(5, 1.0, 1, 1), False),  # no time has passed
    ],
)
def test_others_may_take_a_tenth(monkeypatch: pytest.MonkeyPatch, begin: Any, end: Any, contended: bool) -> None:
    readings = iter([begin, end])
    monkeypatch.setattr(contention, "_read", lambda: next(readings))
    assert ContentionWatch().contended(0.1) is contended
