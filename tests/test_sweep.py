"""The offline loop with an invented machine: what is measured, kept, skipped, decided."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from autotune import environment, hardware, registry
from autotune.budget import Job
from autotune.cluster.local import LocalExecutor
from autotune.errors import Unavailable
from autotune.job import Limits
from autotune.measure import Effort, Runner, Task
from autotune.ops.embedding_bag import EmbeddingBag
from autotune.store.sql import SqlStore, open_store
from autotune.sweep import Event, Sweep, distance
from autotune.types import Config, Measurement, Stage, Status, Workload

pytestmark = pytest.mark.usefixtures("plugin")
Answerer = Callable[[Config, Stage], Measurement]


def ok(ns: int, base: int = 1000, error: float = 1e-7) -> Measurement:
    return Measurement(Status.OK, times_ns=(ns,) * 12, baseline_ns=(base,) * 12, max_error=error)


class FakeRunner(Runner):
    """Answers at once, and remembers what it was asked."""

    def __init__(self, answer: Answerer) -> None:
        self.effort = Effort()
        self.answer = answer
        self.asked: list[tuple[str, Config, Stage]] = []

    def prepare(self, task: Task, configs: Sequence[Config]) -> None:
        assert len(set(configs)) == len(configs)

    def measure(self, task: Task, config: Config, stage: Stage) -> Measurement:
        self.asked.append((task.workload.spec, config, stage))
        return self.answer(config, stage)

    def close(self) -> None:
        pass


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    with open_store(tmp_path / "tuning.sqlite") as opened:
        yield opened


def sweep(store: SqlStore, answer: Answerer, **changes: object) -> tuple[Sweep, FakeRunner]:
    runner = FakeRunner(answer)
    executor = LocalExecutor(runner, hardware.detect(), environment.current())
    return Sweep(store, executor, **changes), runner


def scale(n: int = 64) -> Workload:
    return registry.parse_workload(f"scale n={n}")


def by_speed(times: dict[str, int]) -> Answerer:
    """Times by "algorithm" or "algorithm chunks"; the default takes 1000 ns."""

    def answer(config: Config, stage: Stage) -> Measurement:
        if config.algorithm == "scale_torch":
            return ok(1000)
        name = f"{config.algorithm} {config.params.get('chunks', '')}".strip()
        return ok(times.get(name, 1500))

    return answer


def test_the_fastest_candidate_wins_and_everything_is_kept(store: SqlStore) -> None:
    run, runner = sweep(store, by_speed({"scale_twice 2": 500}))
    (result,) = run.run([scale()]).jobs
    assert result.state == "tuned"
    assert result.winner is not None
    assert result.winner.config.params["chunks"] == 2
    assert result.winner.speedup == pytest.approx(2.0)
    assert store.stats().measurements == len(runner.asked)


def test_a_tie_goes_to_the_default(store: SqlStore) -> None:
    run, _ = sweep(store, by_speed({"scale_twice 2": 990}))
    (result,) = run.run([scale()]).jobs
    assert result.state == "tuned"
    assert result.winner is None
    assert result.default_ns == 1000


def test_c4_every_candidate_fails_then_all_but_one(store: SqlStore) -> None:
    def fail(config: Config, stage: Stage) -> Measurement:
        return ok(1000) if config == Config("scale_torch") else Measurement(Status.RUN_FAILED, "killed by SIGSEGV")

    run, _ = sweep(store, fail)
    (result,) = run.run([scale()]).jobs
    assert (result.state, result.winner) == ("tuned", None)
    assert result.failures > 0
    assert store.stats().by_status["RUN_FAILED"] == result.failures

    survivor = Config("scale_twice", {"chunks": 1, "pair": (1, 2)})
    run, _ = sweep(store, lambda c, s: ok(400) if c == survivor else fail(c, s))
    (result,) = run.run([scale(65)]).jobs
    assert result.winner is not None
    assert result.winner.config == survivor


def test_running_again_measures_nothing(store: SqlStore) -> None:
    run, _ = sweep(store, by_speed({"scale_twice 2": 500}))
    run.run([scale()])
    again, runner = sweep(store, by_speed({}))
    (result,) = again.run([scale()]).jobs
    assert runner.asked == []
    assert result.state == "known"
    assert result.winner is not None
    assert result.winner.speedup == pytest.approx(2.0)


def test_c26_a_sweep_killed_midway_resumes_in_a_new_process(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    count = 0

    def dies(config: Config, stage: Stage) -> Measurement:
        nonlocal count
        count += 1
        if count == 4:
            raise Killed
        return by_speed({"scale_twice 2": 500})(config, stage)

    path = tmp_path / "tuning.sqlite"
    with open_store(path) as store, pytest.raises(Killed):
        sweep(store, dies)[0].run([scale()])
    with open_store(path) as store:
        before = store.stats().measurements
        assert before >= 3
        run, runner = sweep(store, by_speed({"scale_twice 2": 500}))
        (result,) = run.run([scale()]).jobs
        screened = [config for _, config, stage in runner.asked if stage is Stage.SCREEN]
        known = [r.config for r in store.records() if r.stage is Stage.SCREEN]
        assert len(known) == len(set(known)), "nothing is measured twice"
        assert len(screened) < len(known)
        assert result.winner is not None
        assert result.winner.config.params["pair"] in ((1, 2), (2, 1)), "tuples stay tuples"
        assert isinstance(result.winner.config.params["pair"], tuple)


def test_c41_a_new_value_measures_only_what_is_new(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from autotune.space import SearchSpace

    run, _ = sweep(store, by_speed({}))
    run.run([scale()])
    algorithm = type(registry.algorithm("scale_twice"))
    wider = SearchSpace({"chunks": (1, 2, 3), "pair": ((1, 2), (2, 1))})
    monkeypatch.setattr(algorithm, "space", lambda self, workload, hardware: wider)
    again, runner = sweep(store, by_speed({"scale_twice 3": 200}))
    (result,) = again.run([scale()]).jobs
    screened = [config for _, config, stage in runner.asked if stage is Stage.SCREEN]
    assert screened
    assert all(config.params["chunks"] == 3 for config in screened)
    assert result.winner is not None
    assert result.winner.config.params["chunks"] == 3


def test_c43_a_winner_that_is_slower_when_measured_again_is_not_served(store: SqlStore) -> None:
    def lucky(config: Config, stage: Stage) -> Measurement:
        if config == Config("scale_torch"):
            return ok(1000)
        return ok(500 if stage is Stage.SCREEN else 1200)

    run, _ = sweep(store, lucky)
    (result,) = run.run([scale()]).jobs
    assert result.winner is None

    run, _ = sweep(store, by_speed({"scale_twice 1": 500}))
    (result,) = run.run([scale(65)]).jobs
    assert result.winner is not None
    slower, _ = sweep(store, by_speed({}), again=True)
    (result,) = slower.run([scale(65)]).jobs
    assert result.winner is None


def test_a_config_that_exceeds_the_error_budget_is_kept_but_does_not_win(store: SqlStore) -> None:
    def answer(config: Config, stage: Stage) -> Measurement:
        return {1: ok(100, error=0.01), 2: ok(800)}.get(config.params.get("chunks"), ok(1000))

    run, _ = sweep(store, answer)
    (result,) = run.run([scale()]).jobs
    assert result.winner is not None
    assert result.winner.config.params["chunks"] == 2
    choices = store.choices(scale().key, hardware.detect().key, environment.current().key)
    assert any(choice.max_error == 0.01 for choice in choices)


def test_contended_decisions_are_taken_once_more(store: SqlStore) -> None:
    run, runner = sweep(store, lambda c, s: replace(ok(1000), contended=True))
    run.run([scale()])
    finals = [config for _, config, stage in runner.asked if stage is Stage.FINAL]
    assert finals.count(Config("scale_torch")) == 2


def test_what_a_busy_machine_says_is_not_served_and_the_job_is_decided_again(store: SqlStore) -> None:
    busy, _ = sweep(store, lambda c, s: replace(by_speed({"scale_twice 2": 500})(c, s), contended=True))
    (result,) = busy.run([scale()]).jobs
    assert result.winner is None
    assert "quiet" in result.reason
    quiet, runner = sweep(store, by_speed({"scale_twice 2": 500}))
    (result,) = quiet.run([scale()]).jobs
    assert result.state == "tuned"
    assert result.winner is not None
    screened = [config for _, config, stage in runner.asked if stage is Stage.SCREEN]
    assert screened, "the rank of what was screened on a busy machine says nothing"
    assert len(screened) == len(set(screened))
    assert store.stats().measurements > len(runner.asked), "both are kept"
    assert quiet.run([scale()]).jobs[0].state == "known"


def test_a_candidate_that_disturbs_the_machine_itself_does_not_win(store: SqlStore) -> None:
    def answer(config: Config, stage: Stage) -> Measurement:
        loud = config.params.get("chunks") == 1
        return replace(ok({1: 300, 2: 600}.get(config.params.get("chunks"), 1000)), contended=loud)

    run, _ = sweep(store, answer)
    (result,) = run.run([scale()]).jobs
    assert result.winner is not None
    assert result.winner.config.params["chunks"] == 2
    assert run.run([scale()]).jobs[0].state == "known"


def test_empty_workloads_are_not_tuned(store: SqlStore) -> None:
    run, runner = sweep(store, by_speed({}))
    results = run.run([registry.parse_workload("linear m=0 n=5 k=7"), registry.parse_workload("gemm m=3 n=5 k=0")]).jobs
    assert [r.state for r in results] == ["empty", "empty"]
    assert runner.asked == []
    assert store.stats().measurements == 0


def test_operands_that_the_memory_cannot_hold_are_refused_and_the_sweep_goes_on(store: SqlStore) -> None:
    run, runner = sweep(store, by_speed({"scale_twice 2": 500}))
    refused, tuned = run.run([EmbeddingBag(10**12, 128, 8, 1), scale()]).jobs
    there = hardware.detect().memory_bytes / 2**30
    assert refused.state == "refused"
    assert refused.reason == (
        f"its operands take 476837.2 GiB, more than 75% of the {there:.1f} GiB there are: the default is used"
    )
    assert tuned.state == "tuned"
    assert {spec for spec, _, _ in runner.asked} == {scale().spec}, "nothing was set up for it"


def test_a_spent_budget_postpones_what_is_left(store: SqlStore) -> None:
    run, runner = sweep(store, by_speed({}))
    results = run.run([scale(), scale(65)], budget_s=1e-9).jobs
    assert [r.state for r in results] == ["postponed"] * 2
    assert runner.asked == []


def test_a_budget_goes_first_to_what_the_model_spends_most_in(store: SqlStore) -> None:
    run, runner = sweep(store, by_speed({}))
    small, large, often, known = scale(1 << 8), scale(1 << 16), scale(1 << 12), scale(1 << 4)
    run.run([known])
    runner.asked.clear()
    results = run.run([small, large, often, known], budget_s=60.0, counts={often: 64}).jobs
    assert [r.workload for r in results] == [small, large, often, known], "reported in the caller's order"
    assert list(dict.fromkeys(spec for spec, _, _ in runner.asked)) == [often.spec, large.spec, small.spec]


def test_a_budget_is_shared_anew_before_each_job(store: SqlStore) -> None:
    seen: list[tuple[int, float]] = []

    def allot(jobs: Sequence[Job], left_s: float) -> list[float]:
        seen.append((len(jobs), left_s))
        return [left_s / len(jobs)] * len(jobs)

    run, _ = sweep(store, by_speed({}), allot=allot)
    run.run([scale(64), scale(65), scale(66)], budget_s=30.0)
    assert [count for count, _ in seen] == [3, 2, 1]
    assert 30.0 >= seen[0][1] > seen[1][1] > seen[2][1] > 0


def test_a_workload_that_cannot_be_set_up_does_not_end_the_sweep(store: SqlStore) -> None:
    def answer(config: Config, stage: Stage) -> Measurement:
        raise Unavailable("nothing can be measured for it")

    run, runner = sweep(store, answer)
    runner.answer = answer
    first = run.run([scale()]).jobs[0]
    assert (first.state, first.reason) == ("failed", "nothing can be measured for it")
    runner.answer = by_speed({})
    assert run.run([scale()]).jobs[0].state == "tuned"


def test_every_refusal_is_a_row_with_its_reason(store: SqlStore) -> None:
    limits = Limits(trials=1)
    run, _ = sweep(store, lambda c, s: ok(1000), limits=limits)
    run.run([registry.parse_workload("linear m=2 n=8 k=8 dtype=bf16")])
    rows = [r for r in store.records() if r.measurement.status is Status.NOT_APPLICABLE]
    assert "tiled" in {r.config.algorithm for r in rows}
    assert all(r.measurement.message for r in rows)


def test_observers_hear_of_each_job_and_trial(store: SqlStore) -> None:
    events: list[Event] = []
    run, _ = sweep(store, by_speed({"scale_twice 1": 500}), observe=events.append)
    run.run([scale(), scale(65)])
    assert [(e.index, e.jobs) for e in events if e.result is not None] == [(0, 2), (1, 2)]
    assert max(e.best for e in events) == pytest.approx(2.0)


def test_duplicates_are_tuned_once(store: SqlStore) -> None:
    run, _ = sweep(store, by_speed({}))
    assert len(run.run([scale(), scale()]).jobs) == 1


def test_distance_orders_shapes_by_likeness() -> None:
    here = registry.parse_workload("linear m=4 n=4096 k=1024")
    near = registry.parse_workload("linear m=8 n=4096 k=1024")
    far = registry.parse_workload("linear m=512 n=64 k=64")
    other = registry.parse_workload("linear m=4 n=4096 k=1024 bias=1 activation=gelu")
    assert distance(here, here) == 0
    assert distance(here, near) == distance(near, here) == 1
    assert distance(here, near) < distance(here, far)
    assert distance(here, other) == 2
