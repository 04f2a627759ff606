"""What the project's own C++ kernels share: element types, vector registers, and the threads they may use."""

from __future__ import annotations

from autotune import environment
from autotune.kernels import thread_counts
from autotune.noun import Noun, noun

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autotune.types import HardwareProfile

REALS = {"f32": ("float", 4), "f64": ("double", 8)}
"""dtype → its C++ type, bytes."""


@noun
class Isa(Noun):
    """`vector_bytes`: usable widths, widest first. `registers`: vector registers."""

    vector_bytes: tuple[int, ...]
    registers: int


def native_isa(hardware: HardwareProfile) -> Isa:
    """AVX-512 has 32 registers at either width; AVX2 and SSE have 16; NEON has 32 of 16 bytes."""
    if "avx512f" in hardware.isa:
        return Isa((64, 32) if "avx512vl" in hardware.isa else (64,), 32)
    if "avx2" in hardware.isa:
        return Isa((32,), 16)
    return Isa((16,), 32 if hardware.arch in ("aarch64", "arm64") else 16)


def parallel_threads(hardware: HardwareProfile) -> tuple[int, ...]:
    """All counts where torch runs on libgomp, whose pool the kernels borrow; otherwise the calling thread."""
    return thread_counts(hardware) if environment.current().threads == "gomp" else (1,)
