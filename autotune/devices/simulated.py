"""A device that does not exist, for tests: memory of its own, calls that return before they are done, exact times.

It is a discrete-event simulation on a clock of its own, so that times are exact and nothing waits. A call costs the
host `LAUNCH_NS`, is queued, and takes the device what `cost` says. Until the host has synchronised, its result holds
NaN (or the largest integer). Kernels read and write this device's memory only: a tensor of the host is an illegal
access, after which the device can be used no more by this process, as on a GPU.

Nothing finds it unless a package registers it as a device (`autotune.devices` entry point, or `registered()` in a
test). Its profile says so, in the vendor, which is part of the profile's key.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune import registry
from autotune.devices import Backend, Device, Found, Sampler, Watch, span
from autotune.errors import Unavailable
from autotune.hardware.transfer import Link
from autotune.types import SIMULATED, BenchmarkSpec, Config, HardwareProfile, Workload

if TYPE_CHECKING:
    import torch

    from autotune.ops import Kernel

PROFILE = HardwareProfile(
    kind="gpu",
    name="Simulated GPU",
    vendor=SIMULATED,
    arch="sim_1",
    model=SIMULATED,
    physical_cores=16,
    logical_cores=16,
    memory_bytes=1 << 30,
    peak_gflops={"f32": 10_000.0},
    bandwidth_gbs=500.0,
)
LINK = Link(latency_ns=10_000.0, to_device_gbs=10.0, to_host_gbs=8.0, measured=True)
LAUNCH_NS = 2_000
FLUSH_NS = 50_000


def roofline_ns(workload: Workload, config: Config) -> int:
    """What a call takes the device: 5 µs, and the work at its peak or the bytes at its bandwidth."""
    work = workload.flops / PROFILE.peak_gflops["f32"]
    return 5_000 + round(max(work, workload.bytes / PROFILE.bandwidth_gbs))


@dataclass(frozen=True)
class Pending:
    """A result that is written when the device's clock has reached `done_ns`."""

    done_ns: int
    target: torch.Tensor
    value: torch.Tensor


class Simulated(Device):
    """`cost`: ns that a call of a config takes the device, replaced by tests."""

    cost: Callable[[Workload, Config], int] = staticmethod(roofline_ns)

    def __init__(self, name: str = "sim:0") -> None:
        self.name = name
        self.host_ns = 0
        """The host's clock."""
        self.device_ns = 0
        """When the device will have done all that was launched."""
        self.events = 0
        self.flushes = 0
        self.broken = ""
        self._memory: dict[int, torch.Tensor] = {}  # by address of the storage, which is kept alive
        self._pending: list[Pending] = []

    # memory

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.holds(tensor):
            return tensor
        self._transfer(LINK.ns(_bytes(tensor), to_device=True))
        return self._own(span(tensor, lambda memory: memory.clone()))

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        self.synchronize()
        self._transfer(LINK.ns(_bytes(tensor), to_device=False))
        return span(tensor, lambda memory: memory.clone())

    def holds(self, tensor: torch.Tensor) -> bool:
        return not tensor.numel() or tensor.untyped_storage().data_ptr() in self._memory

    def _own(self, tensor: torch.Tensor) -> torch.Tensor:
        self._memory[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def _transfer(self, ns: float) -> None:
        self.synchronize()
        self.host_ns = self.device_ns = self.host_ns + round(ns)

    # work

    def kernel(self, call: Kernel, workload: Workload, config: Config) -> Kernel:
        def launch(*inputs: torch.Tensor) -> torch.Tensor:
            if self.broken:
                raise RuntimeError(self.broken)
            if not all(self.holds(tensor) for tensor in inputs):
                self.broken = "simulated error: an illegal memory access was encountered"
                raise RuntimeError(self.broken)
            value = call(*map(self._future, inputs)).clone()
            target = self._own(value.clone())
            self.enqueue(self.cost(workload, config))
            self._pending.append(Pending(self.device_ns, target, value))
            _poison(target)
            return target

        return launch

    def _future(self, tensor: torch.Tensor) -> torch.Tensor:
        """What the tensor holds when the device gets to a call that is launched now."""
        address = tensor.untyped_storage().data_ptr()
        for pending in reversed(self._pending):
            if pending.target.untyped_storage().data_ptr() == address:
                return pending.value.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        return tensor

    def enqueue(self, ns: int) -> None:
        """Launches something that takes the device so long."""
        self.host_ns += LAUNCH_NS
        self.device_ns = max(self.device_ns, self.host_ns) + ns

    def synchronize(self) -> None:
        self.host_ns = self.device_ns = max(self.host_ns, self.device_ns)
        self._write(self.host_ns)

    def _write(self, until_ns: float) -> None:
        for pending in self._pending:
            if pending.done_ns <= until_ns:
                pending.target.copy_(pending.value)
        self._pending = [pending for pending in self._pending if pending.done_ns > until_ns]

    # time

    def sampler(self, spec: BenchmarkSpec) -> Sampler:
        def sample(call: Callable[[], object], repeats: int) -> int:
            total = 0
            for _ in range(repeats):
                self.synchronize()
                if spec.cache_state == "cold":
                    self.flushes += 1
                    self.enqueue(FLUSH_NS)
                if spec.clock == "wall":
                    self.synchronize()
                    begin = self.host_ns
                    call()
                    self.synchronize()
                    total += self.host_ns - begin
                else:
                    begin = self._event()
                    call()
                    total += self._event() - begin
            self.synchronize()
            return max(1, total // repeats)

        return sample

    def _event(self) -> int:
        """The device's clock when it gets there."""
        self.events += 1
        return max(self.device_ns, self.host_ns)

    def copy_ns(self, size_bytes: int, to_device: bool, pinned: bool) -> int:
        begin = self.host_ns
        self._transfer(LINK.ns(size_bytes, to_device, pinned))
        return self.host_ns - begin

    def watch(self) -> Watch:
        return _Quiet()

    def fatal(self, error: BaseException) -> bool:
        return bool(self.broken) or "illegal memory access" in str(error)


class _Quiet(Watch):
    def contended(self, tolerated: float) -> bool:
        return False

    def note(self) -> str:
        return "at 1000 MHz and 40 °C"


class SimulatedBackend(Backend):
    """One device, unless `gone`."""

    placement = "sim"
    gone = False

    def found(self) -> tuple[Found, ...]:
        return () if self.gone else (Found("sim:0", PROFILE),)

    def open(self, name: str) -> Simulated:
        if self.gone or name not in ("sim", "sim:0"):
            raise Unavailable(f"the simulated device {name} is not there")
        return Simulated("sim:0")


@contextlib.contextmanager
def registered() -> Iterator[SimulatedBackend]:
    """The device exists in this process while the block runs."""
    registry.BUILT_IN["devices"]["sim"] = f"{__name__}:SimulatedBackend"
    registry.forget()
    try:
        backend = registry.device("sim")
        assert isinstance(backend, SimulatedBackend)
        yield backend
    finally:
        del registry.BUILT_IN["devices"]["sim"]
        registry.forget()


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _poison(tensor: Any) -> None:
    import torch

    if tensor.is_floating_point():
        tensor.fill_(float("nan"))
    elif tensor.dtype is not torch.bool:
        tensor.fill_(torch.iinfo(tensor.dtype).max)
