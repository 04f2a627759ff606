"""GPUs by torch: NVIDIA's, and AMD's, which torch calls cuda, too.

Timing: a pair of device events stands around each call (around all calls of a sample while the cache is warm), and the
host waits once, at the end. Flushing the second-level cache keeps the device busy while the host launches what comes
after it, so that launching is hidden; of a short kernel with a warm cache the time is that of launching, unless the
protocol asks for a device graph.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from autotune.devices import Backend, Device, Found, Sampler, Watch, span
from autotune.devices.cpu import one_by_one
from autotune.devices.telemetry import GpuWatch
from autotune.errors import Unavailable
from autotune.hardware import gpu
from autotune.types import BenchmarkSpec

if TYPE_CHECKING:
    import torch

ASSUMED_L2_BYTES = 128 << 20
LEAST_FLUSH_BYTES = 64 << 20
WARM_UPS = 3
"""Calls on another stream before one is recorded in a graph: libraries make their workspaces then."""

FATAL = (
    "illegal memory access",
    "misaligned address",
    "device-side assert",
    "unspecified launch failure",
    "illegal instruction",
    "launch timed out",
    "uncorrectable ecc",
    "hardware stack error",
    "device is lost",
    "gpu is lost",
    "fallen off the bus",
    "context is destroyed",
    "invalid program counter",
    "memory aperture violation",
)
"""Parts of the driver's messages after which the process can use the device no more."""


class CudaBackend(Backend):
    placement = "cuda"

    def found(self) -> tuple[Found, ...]:
        return tuple(Found(f"cuda:{index}", profile) for index, profile in enumerate(gpu.profiles(os.environ)))

    def open(self, name: str) -> Device:
        return Cuda(name)


class Cuda(Device):
    """`name`: "cuda:0"; "cuda" alone is the first. Tensors live in torch's caching allocator."""

    def __init__(self, name: str) -> None:
        try:
            import torch
        except ImportError as error:
            raise Unavailable(f"measuring on {name} needs torch: pip install 'autotune[tune]' ({error})") from None
        kind, _, number = name.partition(":")
        index = int(number) if number.isdigit() else 0
        if kind != "cuda" or (number and not number.isdigit()):
            raise Unavailable(f"{name!r} is no GPU: they are called cuda:0, cuda:1 …")
        self._torch: Any = torch
        self.name = f"cuda:{index}"
        self._index = index
        try:
            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
            if index < count:
                torch.cuda.set_device(index)
                torch.cuda.init()  # type: ignore[no-untyped-call]  # torch's
                self._capability = torch.cuda.get_device_properties(index)
        except (RuntimeError, AssertionError) as error:
            raise Unavailable(f"{self.name} cannot be used: {first_line(error)}") from None
        if index >= count:
            raise Unavailable(f"torch {torch.__version__} sees {count or 'no'} GPUs here: {self.name} cannot be used")
        self._refuse_foreign(name)
        self._flush_buffer: torch.Tensor | None = None

    def _refuse_foreign(self, name: str) -> None:
        """Raises `Unavailable` where this build of torch has no code for the device: every launch would fail."""
        if self._torch.version.hip:
            return
        built = [word.rpartition("_")[2].rstrip("af") for word in self._torch.cuda.get_arch_list()]
        majors = {int(word) // 10 for word in built if word.isdigit()}
        if majors and self._capability.major < min(majors):
            arch = f"sm_{self._capability.major}{self._capability.minor}"
            raise Unavailable(f"{name} is {arch}, for which torch {self._torch.__version__} was not built")

    def found(self) -> gpu.GpuDevice:
        """What torch says this device is."""
        return gpu.from_torch(self._torch)[self._index]

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.holds(tensor):
            return tensor
        return span(tensor, lambda memory: memory.to(self.name))

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.cpu()

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cuda and tensor.device.index == self._index

    def synchronize(self) -> None:
        self._torch.cuda.synchronize(self._index)

    def capturing(self) -> bool:
        return bool(self._torch.cuda.is_current_stream_capturing())

    def fatal(self, error: BaseException) -> bool:
        text = str(error).lower()
        return any(part in text for part in FATAL)

    def settle(self) -> None:
        self._torch.cuda.empty_cache()

    def watch(self) -> Watch:
        return GpuWatch(str(getattr(self._capability, "uuid", "")))

    def sampler(self, spec: BenchmarkSpec) -> Sampler:
        if spec.clock == "wall":
            return self._by_the_wall(spec)
        return self._warm if spec.cache_state == "warm" else self._cold

    def _by_the_wall(self, spec: BenchmarkSpec) -> Sampler:
        def before() -> None:
            if spec.cache_state == "cold":
                self._flush()
            self.synchronize()

        return one_by_one(before, self.synchronize)

    def _warm(self, call: Callable[[], object], repeats: int) -> int:
        begin, end = self._event(), self._event()
        self.synchronize()
        begin.record()
        for _ in range(repeats):
            call()
        end.record()
        self.synchronize()
        return max(1, round(float(begin.elapsed_time(end)) * 1e6 / repeats))

    def _cold(self, call: Callable[[], object], repeats: int) -> int:
        events = [(self._event(), self._event()) for _ in range(repeats)]
        self.synchronize()
        for begin, end in events:
            self._flush()
            begin.record()
            call()
            end.record()
        self.synchronize()
        total_ms = sum(float(begin.elapsed_time(end)) for begin, end in events)
        return max(1, round(total_ms * 1e6 / repeats))

    def _event(self) -> Any:
        return self._torch.cuda.Event(enable_timing=True)

    def _flush(self) -> None:
        if self._flush_buffer is None:
            l2 = int(getattr(self._capability, "L2_cache_size", 0)) or ASSUMED_L2_BYTES
            size = max(2 * l2, LEAST_FLUSH_BYTES)
            self._flush_buffer = self._torch.empty(size, dtype=self._torch.uint8, device=self.name)
        self._flush_buffer.zero_()

    def copy_ns(self, size_bytes: int, to_device: bool, pinned: bool) -> int:
        torch = self._torch
        host = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=pinned).fill_(1)  # written: its pages are there
        there = torch.empty(size_bytes, dtype=torch.uint8, device=self.name)
        source, target = (host, there) if to_device else (there, host)
        self.synchronize()
        begin = time.perf_counter_ns()
        target.copy_(source)
        self.synchronize()
        return time.perf_counter_ns() - begin

    def prepared(self, call: Callable[[], object], spec: BenchmarkSpec) -> Callable[[], object]:
        if not spec.graph:
            return call
        cuda = self._torch.cuda
        side = cuda.Stream(self._index)
        side.wait_stream(cuda.current_stream(self._index))
        with cuda.stream(side):
            for _ in range(WARM_UPS):
                call()
        cuda.current_stream(self._index).wait_stream(side)
        self.synchronize()
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            call()
        replay: Callable[[], object] = graph.replay
        return replay


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
