"""`autotune.triton`: choices from the database without a benchmark, with fake timings and under the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import autotune
from autotune import settings, triton_kernels
from autotune.errors import InvalidInput, Unavailable
from autotune.store.sql import open_store
from autotune.triton_kernels import Advisor, adopt, distance, measurement
from autotune.types import Origin, Status

triton = pytest.importorskip("triton")

CONFIGS = [triton.Config({"BLOCK": size}, num_warps=2) for size in (16, 32, 64)]
TIMES_MS = {16: 0.3, 32: 0.1, 64: float("inf")}


def scale(x, n, BLOCK):  # type: ignore[no-untyped-def]
    pass


def other(x, n, BLOCK):  # type: ignore[no-untyped-def]
    pass


class Tensor:
    def __init__(self, dtype: str = "torch.float32") -> None:
        self.dtype = dtype


class Launches:
    """What an autotuned kernel launched and benchmarked, without a GPU."""

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.benchmarked = 0

    def do_bench(self, call: Any, quantiles: Any) -> list[float]:
        before = len(self.blocks)
        call()
        block = self.blocks[-1]
        del self.blocks[before:]
        self.benchmarked += 1
        return [TIMES_MS[block]] * 3


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Launches]:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # which other tests set
    before = triton.knobs.autotuning.listener
    yield Launches()
    triton.knobs.autotuning.listener = before
    triton_kernels._advisors.clear()


def made(launches: Launches, function: Any = scale, **options: Any) -> Any:
    kernel = triton.jit(function)
    kernel.run = lambda *args, BLOCK, **kwargs: launches.blocks.append(BLOCK)
    decorate = autotune.triton(configs=CONFIGS, key=["n"], do_bench=launches.do_bench, **options)
    return decorate(kernel)


def advisor(kernel: Any) -> Advisor:
    found = kernel.early_config_prune
    assert isinstance(found, Advisor)
    return found


def test_nothing_known_is_the_first_config_and_no_benchmark(launches: Launches) -> None:
    kernel = made(launches)
    kernel.run(Tensor(), 100)
    assert (launches.blocks, launches.benchmarked) == ([16], 0)
    assert advisor(kernel).last == (Origin.DEFAULT, "n:100,torch.float32")


def test_tuning_records_and_later_processes_look_up(launches: Launches) -> None:
    tuned = made(launches, mode="tune")
    tuned.run(Tensor(), 100)
    assert (launches.blocks, launches.benchmarked) == ([32], 3)
    with open_store(settings.database(), create=False) as store:
        records = list(store.records())
    assert {r.measurement.status for r in records} == {Status.OK, Status.BUILD_FAILED}
    assert {r.workload.spec for r in records} == {
        f"recorded_kernel kernel={__name__}.scale problem=n:100,torch.float32"
    }
    best = min((r for r in records if r.measurement.times_ns), key=lambda r: r.measurement.times_ns)
    assert (best.config.params["BLOCK"], best.measurement.median_ns) == (32, pytest.approx(1e5))
    assert not any(r.measurement.speedup for r in records), "they say nothing of a default"

    fresh = made(launches)  # as in another process: Triton remembers nothing of it
    fresh.run(Tensor(), 100)
    assert (launches.blocks[1:], launches.benchmarked) == ([32], 3)
    assert advisor(fresh).last[0] is Origin.EXACT
    again = made(launches, mode="tune")
    again.run(Tensor(), 100)
    assert launches.benchmarked == 3, "what is known is not benchmarked again"


def test_a_near_problem_is_predicted_and_a_far_one_is_not(launches: Launches) -> None:
    made(launches, mode="tune").run(Tensor(), 100)
    kernel = made(launches)
    for n, block, origin in ((128, 32, Origin.PREDICTED), (790, 32, Origin.PREDICTED), (900, 16, Origin.DEFAULT)):
        kernel.run(Tensor(), n)
        assert (launches.blocks[-1], advisor(kernel).last[0]) == (block, origin), n
    kernel.run(Tensor("torch.float16"), 100)
    assert advisor(kernel).last[0] is Origin.DEFAULT, "another dtype is another problem"
    assert launches.benchmarked == 3


def test_another_kernel_another_source_and_off_know_nothing(launches: Launches) -> None:
    made(launches, mode="tune").run(Tensor(), 100)
    for kernel in (made(launches, other), made(launches, mode="off")):
        kernel.run(Tensor(), 100)
        assert (launches.blocks[-1], advisor(kernel).last[0]) == (16, Origin.DEFAULT)
    changed = made(launches)
    advisor(changed).revision = "another"
    changed.run(Tensor(), 100)
    assert advisor(changed).last[0] is Origin.DEFAULT


def test_only_configs_of_the_list_are_chosen(launches: Launches) -> None:
    made(launches, mode="tune").run(Tensor(), 100)
    kernel = made(launches, prune_configs_by={"early_config_prune": lambda configs, named, **more: configs[::2]})
    kernel.run(Tensor(), 100)
    assert launches.blocks[-1] == 16, "the fastest is pruned, the third does not compile"


def test_kernels_of_others_are_adopted_once(launches: Launches) -> None:
    made(launches, mode="tune").run(Tensor(), 100)
    kernel = triton.jit(scale)
    kernel.run = lambda *args, BLOCK, **kwargs: launches.blocks.append(BLOCK)
    theirs = triton.autotune(configs=CONFIGS, key=["n"], do_bench=launches.do_bench)(kernel)
    assert adopt(SimpleNamespace(fn=theirs)).fn is theirs, "whatever is around it"
    adopt(theirs)
    assert advisor(theirs).inner is None
    theirs.run(Tensor(), 100)
    assert (launches.blocks[-1], launches.benchmarked) == (32, 3)


def test_no_benchmark_while_a_graph_is_recorded(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_kernels, "_capturing", lambda: True)
    made(launches, mode="tune").run(Tensor(), 100)
    assert (launches.blocks, launches.benchmarked) == ([16], 0)


def test_a_listener_that_was_there_hears_too(launches: Launches) -> None:
    heard: list[Any] = []
    triton.knobs.autotuning.listener = lambda **told: heard.append(told["key"])
    made(launches, mode="tune").run(Tensor(), 100)
    made(launches, other, mode="tune").run(Tensor(), 100)
    assert heard == [(100, "torch.float32")] * 2, "once each"


def test_a_damaged_database_is_a_warning_and_the_first_config(launches: Launches) -> None:
    path = Path(settings.database())
    path.parent.mkdir(parents=True)
    path.write_text("this is no database")
    kernel = made(launches)
    with pytest.warns(RuntimeWarning, match="is not an SQLite database"):
        kernel.run(Tensor(), 100)
    assert launches.blocks == [16]
    tuned = made(launches, mode="tune")
    with pytest.warns(RuntimeWarning):
        tuned.run(Tensor(), 7)
    assert launches.blocks[-1] in (16, 32)


def test_what_is_wrong_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="mode is one of lookup, tune, off"):
        autotune.triton(CONFIGS, ["n"], mode="always")
    with pytest.raises(InvalidInput, match="at least one config"):
        autotune.triton([], ["n"])
    with pytest.raises(InvalidInput, match="was not decorated"):
        adopt(scale)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(Unavailable, match="needs Triton"):
        autotune.triton(CONFIGS, ["n"])


def test_distances_are_octaves() -> None:
    assert distance("M:64,N:32,torch.float32", "M:256,N:16,torch.float32") == 3
    for far in ("M:64,N:32,torch.float16", "M:64,torch.float32", "M:64,K:32,torch.float32", "M:x,N:32,torch.float32"):
        assert distance("M:64,N:32,torch.float32", far) == float("inf")
    assert distance("M:0,N:1", "M:1,N:0") == 0


def test_times_that_are_none_are_failures() -> None:
    assert measurement([float("inf")] * 3).status is Status.BUILD_FAILED
    assert measurement([0.0, 0.0, 0.0]).status is Status.RUN_FAILED


INTERPRETED = """
    import autotune, torch, triton
    import triton.language as tl

    def never(*args, **kwargs):
        raise AssertionError("benchmarked")

    @autotune.triton(configs=[triton.Config({"BLOCK": b}) for b in (16, 32)], key=["n"], do_bench=never)
    @triton.jit
    def add_one(x, y, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)

    x = torch.randn(50)
    y = torch.empty_like(x)
    add_one[lambda meta: (triton.cdiv(50, meta["BLOCK"]),)](x, y, 50)
    print(torch.equal(y, x + 1), add_one.best_config.kwargs["BLOCK"], add_one.early_config_prune.last[1])
"""


def test_a_kernel_runs_under_the_interpreter(tmp_path: Path) -> None:
    script = tmp_path / "interpreted.py"
    script.write_text(textwrap.dedent(INTERPRETED))
    environ = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environ, timeout=120)
    assert done.stdout.split() == ["True", "16", "n:50,torch.float32,torch.float32"], done.stderr
