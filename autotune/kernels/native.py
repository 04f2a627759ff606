"""What the project's own C++ kernels share: element types, vector registers, and the threads they may use."""

from __future__ import annotations

from autotune import environment
from autotune.kernels import thread_counts
from autotune.noun import Noun, noun

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autotune.space import Params
    from autotune.types import HardwareProfile

REALS = {"f32": ("float", 4), "f64": ("double", 8)}
"""dtype → its C++ type, bytes."""

ELEMENTS = {"f32": ("float", 0), "f64": ("double", 0), "bf16": ("float", 1), "f16": ("float", 2)}
"""dtype → the C++ type that is computed with, and how elements lie in memory: ELEMENT of cpp/elements.hpp."""


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


def elements(dtype: str, params: Params) -> dict[str, str | int]:
    """The defines of cpp/elements.hpp and, for kernels without a register tile, cpp/tile.hpp. `vector`: bytes computed
    with at once."""
    real, element = ELEMENTS[dtype]
    lanes = number(params, "vector") // (8 if real == "double" else 4)
    return {"REAL": real, "ELEMENT": element, "LANES": lanes, "MR": 1, "NV": 1, "UNROLL": 1, "ACT": 0}


def number(params: Params, name: str) -> int:
    """An integer parameter."""
    value = params[name]
    assert isinstance(value, int)
    return value
