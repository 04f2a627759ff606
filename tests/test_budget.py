"""Where the next slice of a shared time budget goes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from autotune import budget
from autotune.budget import Progress, expected_gain, next_job, slice_s, worth


def searched(count: int, default_ns: float, *bests: float, seconds_per_trial: float = 1.0) -> Progress:
    return Progress(count, default_ns, bests, seconds_per_trial * len(bests))


def test_what_was_never_timed_comes_first() -> None:
    assert next_job([searched(9, 1e9, 1.0), Progress(1, 0.0), Progress(1, 0.0)]) == 1


def test_the_larger_share_of_the_model_comes_first() -> None:
    assert next_job([Progress(1, 5e6), Progress(10, 1e6), Progress(2, 4e6)]) == 1


def test_a_search_that_stalls_yields_to_one_that_progresses() -> None:
    stalled = searched(1, 1e6, *[1.5] * 40)
    going = searched(1, 1e6, *[1 + 0.02 * i for i in range(40)])
    assert expected_gain(going) > expected_gain(stalled)
    assert next_job([stalled, going]) == 1


def test_slow_trials_are_worth_less() -> None:
    quick, slow = (searched(1, 1e6, 1.1, 1.2, seconds_per_trial=s) for s in (0.1, 2.0))
    assert worth(quick) == pytest.approx(20 * worth(slow))


def test_a_share_shrinks_as_it_is_tuned() -> None:
    assert searched(2, 1e6, 1.0, 4.0).share_ns == pytest.approx(0.5e6)


def test_slower_than_the_default_counts_as_the_default() -> None:
    assert searched(1, 1e6, 0.5).best == 1.0


def test_nothing_to_gain_ends() -> None:
    assert next_job([]) is None
    assert next_job([replace(Progress(1, 1e6), exhausted=True), Progress(1, 0.0, exhausted=True)]) is None


def test_a_slice_is_two_batches_and_never_more_than_is_left() -> None:
    jobs = [searched(1, 1e6, 1.0, 1.0, seconds_per_trial=0.25)]
    assert slice_s(jobs, 0, 100.0, batch=4) == pytest.approx(2.0)
    assert slice_s(jobs, 0, 0.5, batch=4) == 0.5
    assert slice_s(jobs, 0, -1.0, batch=4) == 0.0


def test_a_shared_budget_beats_an_even_one() -> None:
    """A model of one layer that dominates and many that do not, all on the same kind of curve."""
    shares = [(1, 50e6), *[(1, 1e6)] * 9]

    def after(trials: int) -> float:
        return math.exp(0.7 * trials / (trials + 20))

    def total(trials: list[int]) -> float:
        return sum(c * ns / after(t) for (c, ns), t in zip(shares, trials, strict=True))

    jobs = [Progress(c, ns) for c, ns in shares]
    for _ in range(50):
        chosen = next_job(jobs)
        assert chosen is not None
        bests = tuple(after(t) for t in range(1, jobs[chosen].trials + 5))
        jobs[chosen] = replace(jobs[chosen], bests=bests, spent_s=float(len(bests)))
    assert sum(job.trials for job in jobs) == 200
    assert total([job.trials for job in jobs]) < 0.95 * total([20] * 10)
    assert all(job.trials > 0 for job in jobs[:1])


def test_the_curve_is_that_of_the_docstring() -> None:
    after = [budget.USUAL_GAIN * t / (t + budget.HALF_WAY) for t in (0, 1e-6)]
    assert expected_gain(Progress(1, 1.0)) == pytest.approx((after[1] - after[0]) / 1e-6, rel=1e-5)
