"""What a vector kernel needs to know of the instruction set: register width and count."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.types import HardwareProfile


@dataclass(frozen=True)
class Isa:
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
