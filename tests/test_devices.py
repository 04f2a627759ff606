"""Devices: one contract for all of them, exact times of the simulated one, and what measuring does with each."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune import devices, environment, hardware, lookup, registry
from autotune import sweep as sweeping
from autotune.cluster.local import LocalExecutor, Part
from autotune.devices import Device, simulated
from autotune.devices.cpu import Cpu
from autotune.devices.cuda import FATAL, Cuda, CudaBackend
from autotune.devices.telemetry import GpuWatch
from autotune.errors import InvalidInput, Unavailable
from autotune.job import Limits
from autotune.measure import Task, wire
from autotune.measure.bench import Bench
from autotune.measure.local import LocalRunner
from autotune.measure.worker import limit_memory
from autotune.search import Candidates, candidates_for
from autotune.store.sql import open_store
from autotune.sweep import Event, Sweep
from autotune.types import BenchmarkSpec, Config, HardwareProfile, Measurement, Stage, Status, TuningRecord, Workload
from tests import store_samples as sample

SPEC = BenchmarkSpec(screen_pairs=3, final_pairs=10, max_final_pairs=12, min_sample_ns=1000, run_timeout_s=60)
GPU_SPEC = SPEC.for_kind("gpu")
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")

GEMM = Config("torch", {}, "sim")


class DeviceContract:
    """What any device does."""

    @pytest.fixture
    def device(self) -> Device:
        raise AssertionError("each implementation provides its device")

    @pytest.mark.parametrize("layout", ["plain", "transposed", "strided", "expanded", "part", "empty", "scalar"])
    def test_tensors_arrive_with_their_strides_and_come_back(self, device: Device, layout: str) -> None:
        base = torch.arange(24.0).reshape(4, 6)
        tensor = {
            "plain": base, "transposed": base.t(), "strided": base[::2, ::3], "expanded": base[:1].expand(5, 6),
            "part": base[1:, 2:], "empty": base[:0], "scalar": base[2, 3],
        }[layout]  # fmt: skip
        there = device.put(tensor)
        assert device.holds(there)
        assert device.put(there) is there
        if tensor.numel():
            assert there.stride() == tensor.stride()
        assert torch.equal(device.fetch(there), tensor)

    @pytest.mark.parametrize("repeats", [1, 3])
    def test_a_sample_makes_its_calls(self, device: Device, repeats: int) -> None:
        calls: list[int] = []
        for cache_state in ("warm", "cold"):
            assert device.sampler(BenchmarkSpec(cache_state=cache_state))(lambda: calls.append(1), repeats) >= 1
        assert len(calls) == 2 * repeats

    def test_nothing_is_recorded_or_broken_at_first(self, device: Device) -> None:
        assert not device.capturing()
        assert not device.fatal(ValueError("no such tile"))
        assert device.watch().contended(1.0) is False
        assert isinstance(device.watch().note(), str)
        device.synchronize()
        device.settle()

    def test_a_copy_takes_time(self, device: Device) -> None:
        assert device.copy_ns(4, True, False) >= 1


class TestCpu(DeviceContract):
    @pytest.fixture
    def device(self) -> Device:
        return Cpu()

    def test_it_has_no_events_and_no_graphs(self, device: Device) -> None:
        with pytest.raises(InvalidInput, match="no clock but the one on the wall"):
            device.sampler(GPU_SPEC)
        with pytest.raises(InvalidInput, match="no device graphs"):
            device.prepared(lambda: None, replace(SPEC, graph=True))


class TestSimulated(DeviceContract):
    @pytest.fixture
    def device(self) -> Device:
        return simulated.Simulated()


@GPU
class TestCuda(DeviceContract):
    @pytest.fixture
    def device(self) -> Device:
        return devices.opened("cuda:0")

    def test_a_graph_replays_the_call(self, device: Device) -> None:
        x, y = (device.put(torch.ones(8)) for _ in range(2))
        replay = device.prepared(lambda: y.copy_(x + y), replace(GPU_SPEC, graph=True))
        before = device.fetch(y)[0].item()
        replay()
        assert device.fetch(y)[0].item() == before + 1


# What the simulated device does


@pytest.fixture
def sim() -> Iterator[simulated.SimulatedBackend]:
    with simulated.registered() as backend:
        yield backend


def opened_bench(spec: BenchmarkSpec, workload: str = "gemm m=8 n=8 k=8") -> tuple[Bench, simulated.Simulated]:
    bench = Bench(Task(registry.parse_workload(workload), simulated.PROFILE, spec, 1, "sim:0"))
    assert isinstance(bench.device, simulated.Simulated)
    return bench, bench.device


def test_a_call_returns_before_its_result_is_there() -> None:
    device = simulated.Simulated()
    double = device.kernel(lambda x: x * 2, registry.parse_workload("gemm m=1 n=1 k=1"), GEMM)
    x = device.put(torch.ones(3))
    result = double(double(x))  # what is launched later sees what was launched before
    assert result.isnan().all()
    device.synchronize()
    assert result.tolist() == [4.0] * 3
    assert double(x).isnan().all()
    assert device.fetch(double(x)).tolist() == [2.0] * 3, "fetching waits"


@pytest.mark.parametrize("workload", ["gemm m=8 n=8 k=8", "gemm m=512 n=512 k=512"])
def test_c40_the_time_is_that_of_the_work_and_never_that_of_its_launch(
    sim: simulated.SimulatedBackend, workload: str
) -> None:
    bench, device = opened_bench(GPU_SPEC, workload)
    cost = simulated.roofline_ns(bench.task.workload, GEMM)
    call = device.kernel(lambda: torch.ones(2), bench.task.workload, GEMM)
    begin = device.host_ns
    call()
    assert device.host_ns - begin == simulated.LAUNCH_NS < cost, "what a clock on the host sees"
    found = bench.measure(GEMM, Stage.SCREEN)
    assert (found.status, set(found.times_ns), set(found.baseline_ns)) == (Status.OK, {cost}, {cost})
    assert found.max_error is not None
    assert device.flushes >= 6, "the cache is flushed before each call"
    assert "MHz" in found.message


@pytest.mark.parametrize("workload", ["gemm m=8 n=8 k=8", "gemm m=256 n=256 k=256"])
def test_c40_operands_on_the_host_are_moved_and_that_is_counted(sim: simulated.SimulatedBackend, workload: str) -> None:
    bench, _ = opened_bench(replace(SPEC, operands_on="host"), workload)
    found = bench.measure(GEMM, Stage.SCREEN)
    size = bench.task.workload
    link = simulated.LINK
    there = sum(link.ns(t.numel() * 4, True) for t in registry.op("gemm").inputs(size, 1))
    work = simulated.LAUNCH_NS + simulated.roofline_ns(size, GEMM)
    assert found.status is Status.OK
    expected = there + work + link.ns(size.output_bytes, False)
    assert all(time_ns == pytest.approx(expected, abs=4) for time_ns in found.times_ns)


def test_c40_a_check_waits_for_the_result(sim: simulated.SimulatedBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, _ = opened_bench(GPU_SPEC)
    assert bench.measure(GEMM, Stage.SCREEN).status is Status.OK
    monkeypatch.setattr(bench, "_awaited", lambda kernel: kernel)
    assert bench.measure(GEMM, Stage.SCREEN).status is Status.WRONG_RESULT, "what was launched is not what is done"


def test_an_access_to_the_hosts_memory_ends_the_process_for_that_device(sim: simulated.SimulatedBackend) -> None:
    bench, device = opened_bench(GPU_SPEC)
    inputs = registry.op("gemm").inputs(bench.task.workload, 1)
    call = device.kernel(lambda a, b: a @ b, bench.task.workload, GEMM)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        call(*inputs)
    found = bench.measure(GEMM, Stage.SCREEN)
    assert found.status is Status.RUN_FAILED
    assert bench.spent


def test_nothing_is_timed_while_a_graph_is_recorded(
    sim: simulated.SimulatedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulated.Simulated, "capturing", lambda self: True)
    with pytest.raises(Unavailable, match="recording a graph"):
        opened_bench(GPU_SPEC)


def test_a_simulated_device_is_found_only_when_registered_and_is_no_real_one() -> None:
    assert "sim" not in registry.names("devices")
    with pytest.raises(InvalidInput, match="unknown device 'sim'"):
        devices.opened("sim:0")
    with simulated.registered():
        assert [found.name for found in devices.here()][-1] == "sim:0"
    assert all(found.name != "sim:0" for found in devices.here())
    profile = simulated.PROFILE
    assert profile.placement == "sim"
    real = replace(profile, vendor="NVIDIA")
    assert real.key != profile.key
    assert real.placement == "cuda"
    assert HardwareProfile.from_json(profile.to_json()).placement == "sim"


def test_torch_on_a_gpu_has_no_threads_to_tune() -> None:
    torch_ = registry.algorithm("torch")
    for spec, names in (("linear m=4 n=8 k=8", {"weight"}), ("gemm m=4 n=8 k=8", set())):
        workload = registry.parse_workload(spec)
        assert set(torch_.space(workload, simulated.PROFILE).parameters) == names


# The protocol


def test_later_fields_of_the_protocol_change_no_key() -> None:
    assert BenchmarkSpec().key == "3cae3c12ca4ce991dcd1cbc9773b8417"
    assert "clock" not in BenchmarkSpec().to_json()
    assert GPU_SPEC.to_json()["clock"] == "events"
    assert BenchmarkSpec.from_json(GPU_SPEC.to_json()) == GPU_SPEC
    assert GPU_SPEC.key != SPEC.key
    assert SPEC.for_kind("cpu") is SPEC
    for wrong in ({"clock": "sundial"}, {"cache_state": "tepid"}, {"operands_on": "host", "graph": True}):
        with pytest.raises(InvalidInput):
            BenchmarkSpec(**wrong)  # type: ignore[arg-type]


def test_times_that_contain_transfers_decide_nothing() -> None:
    record = sample.record()
    host = replace(record.spec, operands_on="host")
    with pytest.raises(InvalidInput, match="contain transfers"):
        TuningRecord(
            record.workload, record.config, record.hardware, record.environment, host, record.measurement,
            stage=Stage.FINAL,
        )  # fmt: skip


def test_a_task_names_its_device_on_the_wire() -> None:
    task = Task(registry.parse_workload("gemm m=1 n=1 k=1"), simulated.PROFILE, GPU_SPEC, 3, "sim:0")
    assert wire.task_from_json(wire.task_to_json(task)) == task


def test_the_address_space_of_a_gpus_process_is_not_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    limits: list[Any] = []
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: limits.append(pair))
    monkeypatch.setattr(resource, "getrlimit", lambda which: (5, resource.RLIM_INFINITY))
    workload = registry.parse_workload("gemm m=1 n=1 k=1")
    limit_memory(Task(workload, simulated.PROFILE, GPU_SPEC, device="sim:0"))
    limit_memory(Task(workload, hardware.detect(), SPEC))
    assert limits[0] == (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert 0 < limits[1][0] < 1 << 50


# In the measuring process


@pytest.mark.usefixtures("device_plugin")
def test_a_child_measures_on_the_device_and_is_replaced_when_it_is_lost_to_it() -> None:
    task = Task(registry.parse_workload("scale n=64"), simulated.PROFILE, GPU_SPEC, 1, "sim:0")
    with LocalRunner() as runner:
        good = runner.measure(task, Config("scale_twice", {"chunks": 2, "pair": (1, 2)}, "sim"), Stage.SCREEN)
        assert (good.status, set(good.times_ns), set(good.baseline_ns)) == (Status.OK, {4000}, {8000}), good.message
        first = runner._child
        assert runner.measure(task, Config("misbehaving", {"way": "raise"}, "sim"), Stage.SCREEN).status is (
            Status.RUN_FAILED
        )
        assert runner._child is first, "an exception harms nobody"
        bad = runner.measure(task, Config("misbehaving", {"way": "illegal"}, "sim"), Stage.SCREEN)
        assert bad.status is Status.RUN_FAILED
        assert "illegal memory access" in bad.message
        assert runner._child is None
        again = runner.measure(task, Config("scale_torch", {}, "sim"), Stage.SCREEN)
        assert again.status is Status.OK
        missing = replace(task, device="cuda:99")
        with pytest.raises(Unavailable, match=r"cuda:99 cannot be used|no GPUs"):
            runner.measure(missing, Config("scale_torch", {}, "sim"), Stage.SCREEN)


def without_trouble(workload: Workload, profile: HardwareProfile) -> Candidates:
    """Children that crash take seconds to start again."""
    found = candidates_for(workload, profile)
    return replace(found, spaces={name: space for name, space in found.spaces.items() if name != "misbehaving"})


def parts() -> tuple[Part, ...]:
    return (Part("sim:0", simulated.PROFILE, environment.current("gpu")),)


@pytest.mark.usefixtures("device_plugin")
def test_one_sweep_explores_the_cpu_and_the_device(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "both.sqlite")
    monkeypatch.setenv("AUTOTUNE_DB", path)
    workload = registry.parse_workload("scale n=64")
    with (
        open_store(path) as store,
        LocalExecutor(
            LocalRunner(), hardware.detect(), environment.current(), without_trouble, more=parts()
        ) as executor,
    ):
        assert [node.hardware.kind for node in executor.nodes()] == ["cpu", "gpu"]
        assert len({node.host for node in executor.nodes()}) == 1
        report = Sweep(store, executor, replace(SPEC, tolerated_contention=1.0)).run([workload])
        records = list(store.records(workload.key))
    assert [job.state for job in report.jobs] == ["tuned", "tuned"]
    by_place = {p: [r for r in records if r.config.placement == p] for p in ("cpu", "sim")}
    assert sum(map(len, by_place.values())) == len(records)
    assert {r.hardware.key for r in by_place["sim"]} == {simulated.PROFILE.key}
    assert {r.spec.clock for r in by_place["sim"]} == {"events"}
    assert {r.spec.clock for r in by_place["cpu"]} == {"wall"}
    winner = report.jobs[1].winner
    assert winner is not None
    assert (winner.config.params["chunks"], winner.speedup) == (2, 2.0)

    near = lookup("scale n=64", inputs_on="cpu")
    assert near.device == "cpu", "not worth the way"
    far = lookup("scale n=64", inputs_on="sim:0")
    assert (far.device, far.config, far.origin.value) == ("sim:0", winner.config, "EXACT")
    assert {one.device for one in far.placements} == {"cpu", "sim:0"}


def test_a_device_that_disappears_is_a_lost_node_and_the_cpu_goes_on(
    sim: simulated.SimulatedBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(LocalRunner):
        def prepare(self, *args: Any) -> None:
            pass

        def measure(self, task: Task, config: Config, stage: Stage) -> Measurement:
            if task.device != "cpu":
                sim.gone = True
                raise Unavailable("the simulated device sim:0 is not there")
            return Measurement(Status.OK, "", (100,) * 10, (100,) * 10, 0.0)

    told: list[Event] = []
    with (
        open_store(tmp_path / "lost.sqlite") as store,
        LocalExecutor(Gone(), hardware.detect(), environment.current(), more=parts()) as executor,
    ):
        monkeypatch.setattr(sweeping, "GRACE_S", 0.2)
        sweep = Sweep(store, executor, SPEC, Limits(trials=4), observe=told.append)
        report = sweep.run([registry.parse_workload(f"gemm m={m} n=4 k=4") for m in (2, 3)])
    assert [job.state for job in report.jobs] == ["tuned", "failed", "tuned", "failed"]
    assert {job.reason for job in report.jobs if job.state == "failed"} == {"no machine of its kind is left"}
    assert [event.lost for event in told if event.lost] == ["the simulated device sim:0 is not there"]


# GPUs without a GPU


def fake_torch(count: int = 1, capability: tuple[int, int] = (9, 0), built: tuple[str, ...] = ("sm_80",)) -> Any:
    properties = SimpleNamespace(major=capability[0], minor=capability[1], L2_cache_size=1 << 20, uuid="")
    cuda = SimpleNamespace(
        is_available=lambda: count > 0,
        device_count=lambda: count,
        set_device=lambda index: None,
        init=lambda: None,
        get_device_properties=lambda index: properties,
        get_arch_list=lambda: list(built),
    )
    return SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=None), __version__="9.9")


@pytest.mark.parametrize(
    ("name", "torch_", "told"),
    [
        ("cuda:0", fake_torch(0), "torch 9.9 sees no GPUs here: cuda:0 cannot be used"),
        ("cuda:1", fake_torch(1), "torch 9.9 sees 1 GPUs here: cuda:1 cannot be used"),
        ("cuda:x", fake_torch(1), "is no GPU"),
        ("cuda:0", fake_torch(1, (3, 5)), "cuda:0 is sm_35, for which torch 9.9 was not built"),
        ("cuda:0", None, "needs torch"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_one_sentence(
    name: str, torch_: Any, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch_)
    with pytest.raises(Unavailable, match=told):
        Cuda(name)


def test_a_driver_that_fails_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = fake_torch(1)

    def init() -> None:
        raise RuntimeError("CUDA driver version is insufficient\nwith more lines")

    broken.cuda.init = init
    monkeypatch.setitem(sys.modules, "torch", broken)
    with pytest.raises(Unavailable) as raised:
        Cuda("cuda:0")
    assert str(raised.value) == "cuda:0 cannot be used: CUDA driver version is insufficient"


def test_what_a_context_does_not_survive_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch(1))
    device = Cuda("cuda:0")
    assert all(device.fatal(RuntimeError(f"CUDA error: {part.upper()}")) for part in FATAL)
    assert not device.fatal(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"))


def test_c18_gpus_are_named_in_the_order_that_the_process_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    from autotune.hardware import gpu

    seen = [replace(simulated.PROFILE, vendor="NVIDIA", slice=part) for part in ("1g.18gb", "2g.35gb")]
    monkeypatch.setattr(gpu, "profiles", lambda environ: tuple(seen))
    assert [(f.name, f.hardware.slice) for f in CudaBackend().found()] == [("cuda:0", "1g.18gb"), ("cuda:1", "2g.35gb")]


class FakeNvml:
    """Answers like NVML; `reasons` of the second reading on."""

    def __init__(self, reasons: int = 0) -> None:
        self.reasons, self.asked = reasons, 0

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != "GPU-1":
            raise KeyError(uuid)
        return uuid

    def nvmlDeviceGetClockInfo(self, handle: str, which: int) -> int:
        return 1980

    def nvmlDeviceGetTemperature(self, handle: str, which: int) -> int:
        return 61

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        self.asked += 1
        return self.reasons if self.asked > 1 else 0


@pytest.mark.parametrize(("reasons", "contended"), [(0, False), (0x4, False), (0x40, True), (0x8, True)])
def test_a_gpu_that_throttled_for_heat_is_disturbed(reasons: int, contended: bool) -> None:
    watch = GpuWatch("1", FakeNvml(reasons))
    assert watch.contended(0.1) is contended
    assert watch.note() == "at 1980 MHz and 61 °C"


def test_a_gpu_that_tells_nothing_is_taken_for_quiet() -> None:
    for watch in (GpuWatch("2", FakeNvml()), GpuWatch("", FakeNvml())):
        assert not watch.contended(0.1)
        assert watch.note() == ""
