"""The runner on candidates that crash, hang, lie and eat memory; contract tests inherited by each runner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from autotune import hardware, registry
from autotune.measure import Runner, Task
from autotune.measure.local import LocalRunner
from autotune.types import BenchmarkSpec, Config, Stage, Status
from tests.conftest import PLUGIN

SPEC = BenchmarkSpec(
    screen_pairs=3, final_pairs=10, max_final_pairs=12, min_sample_ns=1000, build_timeout_s=30, run_timeout_s=30
)

pytestmark = pytest.mark.usefixtures("plugin")


def misbehaving(way: str) -> Config:
    return Config("misbehaving", {"way": way})


class RunnerContract:
    """What any runner does with any candidate."""

    @pytest.fixture
    def runner(self) -> Iterator[Runner]:
        raise AssertionError("each implementation provides its runner")

    @pytest.fixture
    def task(self) -> Task:
        return Task(registry.parse_workload("scale n=64"), hardware.detect(), SPEC, seed=1)

    def test_a_good_candidate_is_timed_in_pairs(self, runner: Runner, task: Task) -> None:
        found = runner.measure(task, misbehaving("good"), Stage.SCREEN)
        assert found.status is Status.OK, found.message
        assert len(found.times_ns) == len(found.baseline_ns) == 3
        assert found.speedup is not None
        assert found.max_error is not None
        assert found.max_error < 1e-6

    def test_a_decision_takes_more_pairs(self, runner: Runner, task: Task) -> None:
        found = runner.measure(task, misbehaving("good"), Stage.FINAL)
        assert 10 <= len(found.times_ns) <= 12
        assert found.interval is not None
        low, high = found.interval
        assert found.speedup is not None
        assert low <= found.speedup <= high

    @pytest.mark.parametrize(
        ("way", "status", "message"),
        [
            ("raise", Status.RUN_FAILED, "ValueError: no such tile"),
            ("build_raises", Status.BUILD_FAILED, "RuntimeError: cannot pack"),
            ("compile_raises", Status.BUILD_FAILED, "internal compiler error"),
            ("one_wrong", Status.WRONG_RESULT, "off by"),
            ("half_written", Status.WRONG_RESULT, "NaN"),
            ("overwrites_input", Status.WRONG_RESULT, "input was overwritten"),
            ("overwrites_weight", Status.WRONG_RESULT, "off by"),
            ("good", Status.OK, ""),
            ("shared_buffer", Status.WRONG_RESULT, "shares memory"),
            ("wrong_shape", Status.WRONG_RESULT, "shape [63], not [64]"),
            ("wrong_dtype", Status.WRONG_RESULT, "float64"),
            ("loud", Status.OK, ""),
        ],
    )
    def test_what_a_candidate_does_wrong_is_a_status(
        self, runner: Runner, task: Task, way: str, status: Status, message: str
    ) -> None:
        found = runner.measure(task, misbehaving(way), Stage.SCREEN)
        assert (found.status, message in found.message) == (status, True), found.message
        assert "\n" not in found.message

    def test_c2_two_candidates_that_write_half_each_are_both_wrong(self, runner: Runner, task: Task) -> None:
        found = [runner.measure(task, misbehaving(way), Stage.SCREEN) for way in ("first_half", "second_half")]
        assert [m.status for m in found] == [Status.WRONG_RESULT] * 2

    def test_an_algorithm_of_another_op_is_not_applicable(self, runner: Runner, task: Task) -> None:
        assert runner.measure(task, Config("torch"), Stage.SCREEN).status is Status.NOT_APPLICABLE

    def test_an_unknown_algorithm_is_a_status(self, runner: Runner, task: Task) -> None:
        found = runner.measure(task, Config("nonsense"), Stage.SCREEN)
        assert found.status is Status.BUILD_FAILED
        assert "nonsense" in found.message


@pytest.fixture(scope="module")
def local_runner() -> Iterator[Runner]:
    """One runner for the module: a child takes seconds to start."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(PLUGIN), before)))
    with LocalRunner() as runner:
        yield runner
    os.environ.pop("PYTHONPATH")
    if before is not None:
        os.environ["PYTHONPATH"] = before


class TestLocalRunner(RunnerContract):
    @pytest.fixture
    def runner(self, local_runner: Runner) -> Runner:
        return local_runner

    @pytest.mark.parametrize(
        ("way", "message"),
        [("segfault", "SIGSEGV"), ("abort", "SIGABRT"), ("exit", "exit code 3"), ("memory", "")],
    )
    def test_a_crash_takes_only_the_child(self, runner: Runner, task: Task, way: str, message: str) -> None:
        small = replace(task, spec=replace(SPEC, memory_limit_bytes=1 << 30))
        found = runner.measure(small, misbehaving(way), Stage.SCREEN)
        assert found.status is Status.RUN_FAILED
        assert message in found.message
        assert runner.measure(small, misbehaving("good"), Stage.SCREEN).status is Status.OK

    @pytest.mark.parametrize(("way", "phase"), [("endless", "check"), ("build_endless", "build")])
    def test_an_endless_candidate_times_out(self, runner: Runner, task: Task, way: str, phase: str) -> None:
        hasty = replace(task, spec=replace(SPEC, build_timeout_s=1, run_timeout_s=1))
        found = runner.measure(hasty, misbehaving(way), Stage.SCREEN)
        assert found.status is Status.TIMEOUT
        assert phase in found.message
        assert runner.measure(task, misbehaving("good"), Stage.SCREEN).status is Status.OK

    def test_the_child_dies_with_its_parent(self) -> None:
        code = (
            "import sys, time; from autotune.measure.local import LocalRunner\n"
            "r = LocalRunner(); r.start(); print(r._child._process.pid, flush=True); time.sleep(60)"
        )
        parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        parent.stdout.close()
        for _ in range(600):  # up to a minute on a busy machine
            if not _alive(child):
                break
            time.sleep(0.1)
        assert not _alive(child)


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
