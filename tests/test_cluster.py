"""Executors: the contract on this machine and on a real Ray cluster, and nodes that die, freeze and come back."""

from __future__ import annotations

import importlib.util
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.cli import main
from autotune.cluster import Event, Executor, Kind, on_ray, simulated, wire
from autotune.cluster.local import LocalExecutor
from autotune.cluster.worker import Worker
from autotune.errors import InvalidInput, Unavailable
from autotune.job import Batch, JobEnd, JobOrder, Limits
from autotune.measure import Task
from autotune.ops.linear import Linear
from autotune.store.sql import open_store
from autotune.sweep import Sweep
from autotune.types import Config, Measurement, Stage
from tests import store_samples as sample

WORKER = "autotune.cluster.simulated:SimulatedWorker"


def order(m: int = 1, **changes: Any) -> JobOrder:
    return JobOrder(Linear(m, 4, 4), **changes)


def drive(executor: Executor, jobs: set[int], seconds: float = 90) -> list[Event]:
    """Everything that happens until these jobs have ended."""
    events: list[Event] = []
    deadline = time.monotonic() + seconds
    while jobs and time.monotonic() < deadline:
        for event in executor.poll(0.2):
            events.append(event)
            if event.end is not None or event.lost:
                jobs.discard(event.job)
    assert not jobs, f"{jobs} did not end; {events[-5:]}"
    return events


class ExecutorContract:
    """What every executor does. `executor` has idle simulated nodes."""

    @pytest.fixture
    def executor(self) -> Executor:
        raise NotImplementedError("an implementation's test class overrides this")

    def test_a_job_runs_and_its_records_come_back(self, executor: Executor) -> None:
        node = executor.nodes()[0]
        assert executor.submit(7, order(11), node.kind)
        assert [n.doing for n in executor.nodes() if n.name == node.name] == [order(11).workload.spec]
        events = drive(executor, {7})
        (end,) = (event.end for event in events if event.end is not None)
        assert (end.state, end.reason) == ("tuned", "")
        assert end.space_key
        assert {event.job for event in events} == {7}
        records = [record for event in events if event.batch for record in event.batch.records]
        assert len({record.uid for record in records}) == len(records) > 10
        assert {record.hardware.key for record in records} == {node.hardware.key}
        assert {record.environment for record in records} == {node.environment}
        assert {record.workload for record in records} == {Linear(11, 4, 4)}
        assert {record.stage for record in records} == {Stage.SCREEN, Stage.FINAL}
        assert all(not n.doing for n in executor.nodes() if n.name == node.name)

    def test_a_node_takes_one_job_at_a_time_and_only_of_its_kind(self, executor: Executor) -> None:
        kinds = [node.kind for node in executor.nodes()]
        assert not executor.submit(1, order(), Kind("another", "machine"))
        taken = [executor.submit(number, order(number + 1), kinds[0]) for number in range(kinds.count(kinds[0]) + 1)]
        assert taken == [True] * kinds.count(kinds[0]) + [False]
        drive(executor, set(range(kinds.count(kinds[0]))))

    def test_what_is_known_is_not_measured_again(self, executor: Executor) -> None:
        kind = executor.nodes()[0].kind
        assert executor.submit(0, order(12), kind)
        first = [record for event in drive(executor, {0}) if event.batch for record in event.batch.records]
        screened = tuple(record for record in first if record.stage is Stage.SCREEN)
        assert executor.submit(1, order(12, known=screened), kind)
        again = [record for event in drive(executor, {1}) if event.batch for record in event.batch.records]
        assert {record.stage for record in again} == {Stage.FINAL}
        assert executor.submit(2, order(12, finished=((first[0].job, 3),)), kind)
        (event,) = drive(executor, {2})
        assert event.end is not None
        assert (event.end.state, event.end.trials) == ("known", 3)

    def test_a_spent_budget_and_nothing_to_compute(self, executor: Executor) -> None:
        kind = executor.nodes()[0].kind
        for number, (given, state) in enumerate(((order(seconds=0), "postponed"), (order(0), "empty"))):
            assert executor.submit(number, given, kind)
            (event,) = drive(executor, {number})
            assert event.end is not None
            assert event.end.state == state


class TestLocalExecutor(ExecutorContract):
    @pytest.fixture
    def executor(self) -> Iterator[Executor]:
        runner = simulated.SimulatedRunner(0)
        with LocalExecutor(runner, simulated.PROFILE, simulated.ENVIRONMENT, simulated.candidates) as executor:
            yield executor


# A real cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes on this machine that pretend to be two kinds of machine."""
    before = os.environ.get(simulated.SECONDS)
    os.environ[simulated.SECONDS] = "0.05"
    kinds = [{f"{simulated.RESOURCE}{kind}": 1.0} for kind in ("east", "east", "west")]
    cluster = on_ray.local_cluster(3, kinds)
    yield cluster
    cluster.shutdown()
    if before is None:
        del os.environ[simulated.SECONDS]


@pytest.fixture
def ray_executor(cluster: Any) -> Iterator[on_ray.RayExecutor]:
    with on_ray.RayExecutor(cluster.address, WORKER) as executor:
        yield executor


def worker_processes() -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any("SimulatedWorker" in word for word in process.info["cmdline"] or ()):
            found.append(process)
    return found


class TestRayExecutor(ExecutorContract):
    @pytest.fixture
    def executor(self, ray_executor: on_ray.RayExecutor) -> Executor:
        return ray_executor

    def test_nodes_announce_what_they_are(self, executor: Executor) -> None:
        models = sorted(node.hardware.model for node in executor.nodes())
        assert models == ["simulated east", "simulated east", "simulated west"]

    def test_a_node_has_the_environment_of_a_plain_process_there(self, executor: Executor) -> None:
        """The engine sets OMP_NUM_THREADS in its workers: no lookup would find what was measured under it."""
        threads = {node.environment.num_threads for node in executor.nodes()}
        assert threads == {os.environ.get("OMP_NUM_THREADS", "")}

    def test_a_killed_worker_loses_its_job_and_a_new_one_takes_it(
        self, executor: Executor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(on_ray, "ASK_S", 0.1)
        (west,) = (node for node in executor.nodes() if node.hardware.model == "simulated west")
        assert executor.submit(5, order(21), west.kind)
        while not any(event.batch for event in executor.poll(0.1)):
            pass
        for process in worker_processes():
            process.kill()
        events = drive(executor, {5})
        assert any(event.lost for event in events)
        deadline = time.monotonic() + 60
        while not executor.submit(6, order(21), west.kind) and time.monotonic() < deadline:
            executor.poll(0.2)
        (end,) = (event.end for event in drive(executor, {6}) if event.end is not None)
        assert end.state == "tuned"

    def test_a_frozen_worker_is_noticed(self, executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(on_ray, "ASK_S", 0.1)
        monkeypatch.setattr(on_ray, "SILENCE_S", 2.0)
        (west,) = (node for node in executor.nodes() if node.hardware.model == "simulated west")
        assert executor.submit(5, order(22), west.kind)
        while not any(event.batch for event in executor.poll(0.1)):
            pass
        frozen = worker_processes()
        for process in frozen:
            process.suspend()
        try:
            events = drive(executor, {5}, 30)
        finally:
            for process in frozen:
                if process.is_running():
                    process.resume()
        assert [event.lost for event in events if event.lost] == ["it was silent for 2 s"]


def test_a_node_that_is_still_taken_is_waited_for(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the worker of a sweep that ended a moment ago: without that node, nothing would be tuned for its kind."""
    start, refused = on_ray._start, []

    def taken_at_first(name: str, *rest: Any) -> Any:
        if not refused:
            refused.append(name)
            raise ValueError("the name is taken")
        return start(name, *rest)

    monkeypatch.setattr(on_ray, "_start", taken_at_first)
    with on_ray.RayExecutor(cluster.address, WORKER) as executor:
        assert refused[0] in {node.name for node in executor.nodes()}


def test_a_sweep_survives_the_death_of_a_node(cluster: Any, tmp_path: Path) -> None:
    """One of the two machines of a kind dies while it measures: its job goes to the other, and all is there once."""
    workloads = [Linear(m, 8, 8) for m in range(1, 7)]
    extra = cluster.add_node(num_cpus=1, include_dashboard=False, resources={f"{simulated.RESOURCE}north": 1.0})
    north = cluster.add_node(num_cpus=1, include_dashboard=False, resources={f"{simulated.RESOURCE}north": 1.0})
    lost: list[str] = []
    killed = False

    def observe(event: Any) -> None:
        nonlocal killed
        if event.lost:
            lost.append(event.lost)
        if event.record is not None and not killed:
            killed = True
            cluster.remove_node(extra, allow_graceful=False)

    try:
        with (
            on_ray.RayExecutor(cluster.address, WORKER) as executor,
            open_store(tmp_path / "tuning.sqlite") as store,
        ):
            keys = {n.hardware.key for n in executor.nodes() if n.hardware.model == "simulated north"}
            report = Sweep(store, executor, observe=observe, wanted=frozenset(keys)).run(workloads)
            assert [job.state for job in report.jobs] == ["tuned"] * len(workloads)
            screened = [r for r in store.records() if r.stage is Stage.SCREEN]
            assert len({(r.workload, r.config) for r in screened}) == len(screened) == 12 * len(workloads)
            again = Sweep(store, executor, wanted=frozenset(keys)).run(workloads)
            assert [job.state for job in again.jobs] == ["known"] * len(workloads)
    finally:
        cluster.remove_node(north)


# What goes over the wire


def test_an_order_and_its_results_survive_the_wire() -> None:
    records = (
        sample.record(),
        sample.record(sample.failed(), config=sample.config(2), stage=Stage.SCREEN, repetition=3),
    )
    given = JobOrder(
        sample.WORKLOAD, sample.SPEC, Limits(trials=3, job_seconds=1.5), 2.5, True, records, (sample.CONFIG,),
        (("space", 4),),
    )  # fmt: skip
    text = wire.order_to_json(given)
    assert wire.order_from_json(text, sample.HARDWARE, sample.ENVIRONMENT) == given
    batch = Batch(records, 5, 1.25)
    data = json.loads(json.dumps(wire.batch_to_json(batch)))
    assert wire.batch_from_json(data, given, sample.HARDWARE, sample.ENVIRONMENT) == batch
    end = JobEnd("tuned", 3, 1, 2.5, "why", "space")
    assert wire.end_from_json(json.loads(json.dumps(wire.end_to_json(end)))) == end


def test_a_worker_hands_out_again_what_was_not_confirmed() -> None:
    class Here(simulated.SimulatedWorker):
        def describe(self) -> Any:
            return simulated.PROFILE, simulated.ENVIRONMENT

        def make_runner(self) -> Any:
            return simulated.SimulatedRunner(0)

    worker: Worker = Here("here")
    text = wire.order_to_json(order(3))
    assert worker.begin(1, text)
    deadline = time.monotonic() + 30
    while not any("end" in event for _, event in worker.collect(0)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    everything = worker.collect(0)
    assert worker.collect(3) == everything[3:]
    assert worker.collect(3) == everything[3:]
    assert worker.begin(2, "not json")
    while not any(event["job"] == 2 for _, event in worker.collect(len(everything))):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    ((_, failed),) = worker.collect(len(everything))
    assert failed["end"]["state"] == "failed"
    worker.close()


def test_all_jobs_of_a_worker_run_in_the_thread_that_started_the_runner() -> None:
    """A measuring process dies with the thread that started it: the next job would find it killed."""
    threads: set[int] = set()

    class Runner(simulated.SimulatedRunner):
        def start(self) -> None:
            threads.add(threading.get_ident())

        def measure(self, task: Task, config: Config, stage: Stage) -> Measurement:
            threads.add(threading.get_ident())
            return super().measure(task, config, stage)

    class Here(simulated.SimulatedWorker):
        def describe(self) -> Any:
            return simulated.PROFILE, simulated.ENVIRONMENT

        def make_runner(self) -> Any:
            return Runner(0)

    worker: Worker = Here("here")
    ended, deadline = 0, time.monotonic() + 30
    for job in (1, 2):
        assert worker.begin(job, wire.order_to_json(order(job)))
        while ended < job:
            assert time.monotonic() < deadline
            ended = sum("end" in event for _, event in worker.collect(0, 1.0))
    worker.close()
    assert len(threads) == 1


# Bad input


@pytest.mark.parametrize(
    ("address", "kind", "sentence"),
    [
        ("127.0.0.1:1", Unavailable, "cannot be reached"),
        ("nonsense", InvalidInput, "auto, host:port or local:N"),
        ("local:0", InvalidInput, "N from 1 to 64"),
        ("local:x", InvalidInput, "N from 1 to 64"),
    ],
)
def test_addresses_that_lead_nowhere(address: str, kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=sentence):
        on_ray.RayExecutor(address)


def test_no_machine_of_that_profile_says_which_there_are(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["sweep", "--hardware", "Imaginary", "--workload", "linear m=1 n=2 k=3", "--db", str(tmp_path / "x")]
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert "no machine of profile 'Imaginary' is there; there are " in said


def test_without_the_engine_the_command_that_installs_it_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else find(name))
    for arguments in (["sweep", "--cluster", "auto", "--workload", "linear m=1 n=2 k=3"], ["cluster"]):
        assert main(arguments) == 2
        assert "pip install 'autotune[cluster]'" in capsys.readouterr().err
