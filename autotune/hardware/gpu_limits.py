"""What one block and one multiprocessor of a GPU architecture may hold: limits that are functions of the architecture.

NVIDIA: CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability"; of the shared memory
of a multiprocessor 1 KiB per block is the system's. AMD: the CDNA 2, CDNA 3 and CDNA 4 instruction set architecture
documents and the HIP hardware features table; a "register" is one lane of a vector register, ordinary and accumulation
registers together, and shared memory is LDS.
"""

from __future__ import annotations

from autotune.noun import Noun, noun

KIB = 1024


@noun
class GpuLimits(Noun):
    """Of one architecture. `sm` stands for a streaming multiprocessor or compute unit."""

    arch: str  # "sm_90", "gfx942"
    shared_per_block_bytes: int
    shared_per_sm_bytes: int
    threads_per_sm: int
    blocks_per_sm: int
    warp_size: int = 32
    threads_per_block: int = 1024
    registers_per_sm: int = 65536  # 32-bit
    registers_per_thread: int = 255
    register_unit: int = 256  # a warp is given a multiple of it
    shared_reserved_bytes: int = KIB  # per block, taken by the system


_TABLE = (
    GpuLimits("sm_75", 64 * KIB, 64 * KIB, 1024, 16, shared_reserved_bytes=0),
    GpuLimits("sm_80", 163 * KIB, 164 * KIB, 2048, 32),
    GpuLimits("sm_86", 99 * KIB, 100 * KIB, 1536, 16),
    GpuLimits("sm_87", 163 * KIB, 164 * KIB, 1536, 16),
    GpuLimits("sm_89", 99 * KIB, 100 * KIB, 1536, 24),
    GpuLimits("sm_90", 227 * KIB, 228 * KIB, 2048, 32),
    GpuLimits("sm_100", 227 * KIB, 228 * KIB, 2048, 32),
    GpuLimits("sm_103", 227 * KIB, 228 * KIB, 2048, 32),
    GpuLimits("sm_120", 99 * KIB, 100 * KIB, 1536, 24),
    GpuLimits("sm_121", 99 * KIB, 100 * KIB, 1536, 24),
    *(
        GpuLimits(
            arch, lds * KIB, lds * KIB, 2048, 32, warp_size=64, registers_per_sm=131072,
            registers_per_thread=512, register_unit=512, shared_reserved_bytes=0,
        )
        for arch, lds in (("gfx90a", 64), ("gfx942", 64), ("gfx950", 160))
    ),
)  # fmt: skip

LIMITS = {limits.arch: limits for limits in _TABLE}


def limits_of(arch: str) -> GpuLimits | None:
    """The limits of "sm_90", "gfx942" …; None for an architecture that is not in the table."""
    return LIMITS.get(arch)
