"""The CPU: calls are done when they return, and the clock on the wall times them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from autotune import hardware
from autotune.devices import Backend, Device, Found, Sampler, Watch, span
from autotune.errors import InvalidInput, Unavailable
from autotune.measure.contention import ContentionWatch
from autotune.measure.pairs import sample_ns
from autotune.types import BenchmarkSpec, HardwareProfile

if TYPE_CHECKING:
    import torch

ASSUMED_CACHE_BYTES = 32 << 20


class CpuBackend(Backend):
    placement = "cpu"

    def found(self) -> tuple[Found, ...]:
        return (Found("cpu", hardware.detect()),)

    def open(self, name: str) -> Device:
        if name != "cpu":
            raise Unavailable(f"there is one CPU, called cpu, not {name!r}")
        return Cpu()


class Cpu(Device):
    """Times as `pairs.sample_ns` does; with `cache_state` "cold" it writes over all caches before each call."""

    name = "cpu"

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.is_cpu else span(tensor, lambda memory: memory.cpu())

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cpu

    def synchronize(self) -> None:
        pass

    def sampler(self, spec: BenchmarkSpec) -> Sampler:
        if spec.clock != "wall":
            raise InvalidInput("a CPU has no clock but the one on the wall")
        return sample_ns if spec.cache_state == "warm" else one_by_one(_flusher(hardware.detect()))

    def watch(self) -> Watch:
        return _CpuWatch()


class _CpuWatch(ContentionWatch, Watch):
    """Whether tasks waited for a CPU."""


def one_by_one(
    before: Callable[[], object], after: Callable[[], object] = lambda: None
) -> Callable[[Callable[[], object], int], int]:
    """A sampler on the wall clock that calls `before` ahead of each call and `after` behind it; only that is timed."""

    def sample(call: Callable[[], object], repeats: int) -> int:
        total = 0
        for _ in range(repeats):
            before()
            begin = time.perf_counter_ns()
            call()
            after()
            total += time.perf_counter_ns() - begin
        return max(1, total // repeats)

    return sample


def _flusher(profile: HardwareProfile) -> Callable[[], Any]:
    """Writes twice the last level of all caches, so that nothing of the operands is left in them."""
    import torch

    last = max(profile.caches, key=lambda cache: cache.level, default=None)
    instances = -(-profile.logical_cores // last.shared_by) if last else 1
    size = 2 * (last.size_bytes * instances if last else ASSUMED_CACHE_BYTES)
    buffer = torch.empty(size, dtype=torch.uint8)
    return lambda: buffer.fill_(1)
