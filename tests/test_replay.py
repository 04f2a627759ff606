"""Recorded results as a fake device: what another runner measured, through a real database or a table."""

from __future__ import annotations

import lzma
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autotune import hardware, registry
from autotune.errors import InvalidInput
from autotune.measure import Runner, Task
from autotune.measure.local import LocalRunner
from autotune.measure.recorded import from_store, read_table
from autotune.measure.replay import ReplayRunner
from autotune.store import Store
from autotune.store.sql import open_store
from autotune.types import Config, Stage, Status
from tests import store_samples as sample
from tests.conftest import PLUGIN
from tests.test_runner import SPEC, RunnerContract, misbehaving

WAYS = (
    "good", "raise", "build_raises", "compile_raises", "one_wrong", "half_written", "overwrites_input",
    "overwrites_weight", "shared_buffer", "wrong_shape", "wrong_dtype", "loud", "first_half", "second_half",
)  # fmt: skip


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """What the local runner finds for every candidate of the contract, in a database."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PLUGIN))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(PLUGIN), os.environ.get("PYTHONPATH")))))
        registry.forget()
        task = Task(registry.parse_workload("scale n=64"), hardware.detect(), SPEC, seed=1)
        configs = [*(misbehaving(way) for way in WAYS), Config("torch"), Config("nonsense")]
        with LocalRunner() as runner, open_store(tmp_path_factory.mktemp("replay") / "recorded.sqlite") as store:
            found = [(config, Stage.SCREEN, runner.measure(task, config, Stage.SCREEN)) for config in configs]
            found.append((misbehaving("good"), Stage.FINAL, runner.measure(task, misbehaving("good"), Stage.FINAL)))
            store.add(
                sample.record(measurement=m, workload=task.workload, config=config, stage=stage)
                for config, stage, m in found
            )
            yield store
    registry.forget()


@pytest.mark.usefixtures("plugin")
class TestReplayRunner(RunnerContract):
    @pytest.fixture
    def runner(self, recorded: Store) -> Runner:
        return ReplayRunner.of_store(recorded)

    def test_what_was_not_recorded_is_refused(self, runner: Runner, task: Task) -> None:
        found = runner.measure(task, misbehaving("never tried"), Stage.SCREEN)
        assert (found.status, "was not recorded" in found.message) == (Status.NOT_APPLICABLE, True)
        assert runner.measure(task, misbehaving("raise"), Stage.FINAL).status is Status.NOT_APPLICABLE

    def test_it_charges_what_measuring_took(self, runner: Runner, task: Task) -> None:
        found = runner.measure(task, misbehaving("good"), Stage.SCREEN)
        timed = (sum(found.times_ns) + sum(found.baseline_ns)) * 1e-9
        assert runner.effort.useful_s == pytest.approx(timed + (found.build_ns + found.prepare_ns) * 1e-9)

    def test_the_space_of_a_workload_holds_what_was_screened(self, recorded: Store) -> None:
        [(workload, space)] = from_store(recorded, sample.HARDWARE.key, sample.ENVIRONMENT.key)
        assert workload.spec.startswith("scale n=64")
        found = space.candidates()
        ways = {config.params["way"] for config in found.configs("misbehaving")}
        assert ways == set(WAYS)


def test_results_of_two_machines_do_not_mix(tmp_path: Path) -> None:
    with open_store(tmp_path / "two.sqlite") as store:
        one = sample.record()
        store.add([one, replace(one, hardware=sample.OTHER_HARDWARE)])
        with pytest.raises(InvalidInput, match="2 machines"):
            ReplayRunner.of_store(store)
        assert ReplayRunner.of_store(store, hardware_key=sample.HARDWARE.key)


TABLE = """tile,kind,time_ms,compile_ms,bench_ms,status
8,a,2.0,5,1,ok
16,a,1.0,5,1,ok
8,b,,7,,compile_fail
16,b,,,,no_time
32,a,4.0,,,ok
"""


@pytest.mark.parametrize("packed", [False, True])
def test_a_table_is_a_space(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "gemm" / ("gpu.csv.xz" if packed else "gpu.csv")
    path.parent.mkdir()
    path.write_bytes(lzma.compress(TABLE.encode()) if packed else TABLE.encode())
    space = read_table(path)
    assert (space.name, space.best_ns) == ("gemm/gpu", 1e6)
    found = space.candidates()
    assert found.spaces["gemm"].parameters == {"kind": ("a", "b"), "tile": (8, 16, 32)}
    assert not found.contains(Config("gemm", {"tile": 32, "kind": "b"}))
    runner = ReplayRunner.of_space(space)
    task = Task(sample.WORKLOAD, sample.HARDWARE)
    ok = runner.measure(task, Config("gemm", {"tile": 16, "kind": "a"}), Stage.SCREEN)
    assert (ok.status, ok.median_ns, ok.speedup) == (Status.OK, 1e6, 2.0)
    assert (runner.effort.build_s, runner.effort.time_s) == (pytest.approx(5e-3), pytest.approx(1e-3))
    bad = runner.measure(task, Config("gemm", {"tile": 8, "kind": "b"}), Stage.SCREEN)
    assert bad.status is Status.BUILD_FAILED
    assert runner.effort.build_s == pytest.approx(12e-3)
    assert runner.measure(task, Config("gemm", {"tile": 16, "kind": "b"}), Stage.SCREEN).status is Status.RUN_FAILED


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "a,time_ms\n1,fast\n"])
def test_what_is_no_table_is_refused_in_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd.csv"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=r"odd\.csv"):
        read_table(path)
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_table(tmp_path / "missing.csv.xz")
