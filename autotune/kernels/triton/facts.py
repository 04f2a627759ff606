"""What a compiler made of a launch, and what follows from that on an architecture: verdict and occupancy."""

from __future__ import annotations

from autotune.hardware.gpu_limits import GpuLimits, limits_of
from autotune.noun import Noun, fields, noun

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

TENSOR_MEMORY_COLUMNS = 512
"""Of a Blackwell multiprocessor (sm_100): CUDA C++ Programming Guide."""


@noun
class CompileFacts(Noun):
    """Of one kernel function, compiled for one architecture. `problem` says why there is no code, "" when there is.

    `registers`: 32-bit ones per thread, 0 where no tool was there to tell. `stack_bytes`: memory per thread that
    registers were spilled to. `tensor_memory`: columns (sm_100 only).
    """

    arch: str
    compiler: str  # "triton 3.9.0"
    warps: int
    shared_bytes: int = 0
    registers: int = 0
    stack_bytes: int = 0
    code_bytes: int = 0
    tensor_memory: int = 0
    seconds: float = 0.0
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(type(self))}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CompileFacts:
        known = {item.name for item in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in known})

    @property
    def over_limit(self) -> str:
        """Why no device of the architecture can launch it, as a sentence; "" when one can."""
        limits = limits_of(self.arch)
        if self.problem or limits is None:
            return ""
        if self.shared_bytes > limits.shared_per_block_bytes:
            most = limits.shared_per_block_bytes
            return f"a block takes {self.shared_bytes} bytes of shared memory; {self.arch} has {most}"
        if self.warps * limits.warp_size > limits.threads_per_block:
            return f"a block takes {self.warps * limits.warp_size} threads; {self.arch} has {limits.threads_per_block}"
        if self.tensor_memory > TENSOR_MEMORY_COLUMNS:
            return f"a block takes {self.tensor_memory} columns of tensor memory; there are {TENSOR_MEMORY_COLUMNS}"
        if self.registers and _blocks_by_registers(self, limits) < 1:
            return f"a block takes {self.registers} registers per thread; {self.arch} has too few for that"
        return ""

    @property
    def verdict(self) -> str:
        """ "fits", or in one sentence why it was not compiled or cannot be launched."""
        return self.problem or self.over_limit or "fits"

    @property
    def blocks_per_sm(self) -> int:
        """How many blocks one multiprocessor holds at a time; 0 where that is not known or none fits."""
        limits = limits_of(self.arch)
        if limits is None or self.problem or self.over_limit:
            return 0
        shared = self.shared_bytes + limits.shared_reserved_bytes
        by_shared = limits.shared_per_sm_bytes // shared if shared else limits.blocks_per_sm
        by_threads = limits.threads_per_sm // (self.warps * limits.warp_size)
        return min(limits.blocks_per_sm, by_threads, by_shared, _blocks_by_registers(self, limits))

    @property
    def occupancy(self) -> float:
        """Warps that a multiprocessor holds, of the most it could."""
        limits = limits_of(self.arch)
        if limits is None:
            return 0.0
        return self.blocks_per_sm * self.warps * limits.warp_size / limits.threads_per_sm


def _blocks_by_registers(facts: CompileFacts, limits: GpuLimits) -> int:
    if not facts.registers:
        return limits.blocks_per_sm
    per_warp = -(-facts.registers * limits.warp_size // limits.register_unit) * limits.register_unit
    return limits.registers_per_sm // (per_warp * facts.warps)
