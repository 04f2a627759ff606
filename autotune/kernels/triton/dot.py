"""What a pipelined product of tiles takes of a block, by formula; shared by every kernel whose loop is one tl.dot.

The formula is what Triton 3.9 was seen to allocate (scripts/bench_compile.py compares the two), a bound from below:

- Loads whose threads take at least 4 bytes at once are pipelined: the operand is in shared memory once per stage in
  flight. That is every stage where the product reads shared memory itself and may still do so when the next load is
  issued (wgmma and tcgen05: sm_90 and sm_100, 16 bits, 64 rows or more, 4 warps or more), one less elsewhere, and
  none on sm_75, which has no asynchronous copies.
- An operand that is not pipelined passes through shared memory once, to change hands between threads. On AMD, and
  with f32, not both of them at the same time, or not at all.
- tf32x3 on wgmma keeps both parts of b, beside the buffers.
- The sums are in registers, those of sm_100 in tensor memory.
"""

from __future__ import annotations

from autotune.dtypes import ITEMSIZE_BYTES
from autotune.hardware.gpu_limits import limits_of
from autotune.kernels.triton import Needs
from autotune.noun import Noun, noun

COPY_BYTES = 4
"""The least that a thread copies asynchronously (PTX ISA, cp.async)."""

TENSOR_MEMORY = ("sm_100", "sm_103")
"""Architectures whose products keep their sums there."""


@noun
class DotTile(Noun):
    """[m, k] · [k, n] per step. `a_vector`, `b_vector`: elements that lie together and aligned in memory."""

    m: int
    n: int
    k: int
    dtype: str
    precision: str = "ieee"
    a_vector: int = 16
    b_vector: int = 16


def dot_needs(tile: DotTile, warps: int, stages: int, arch: str) -> Needs:
    """Of a loop over products of such tiles."""
    limits = limits_of(arch)
    assert limits is not None
    threads = warps * limits.warp_size
    registers = 0 if arch in TENSOR_MEMORY else tile.m * tile.n // threads
    return Needs(shared_bytes(tile, warps, stages, arch, threads), threads, registers)


def shared_bytes(tile: DotTile, warps: int, stages: int, arch: str, threads: int) -> int:
    item = ITEMSIZE_BYTES[tile.dtype]
    a, b = tile.m * tile.k, tile.k * tile.n
    if arch == "sm_75":
        return max(a, b) * item
    large = tile.m >= 64 and warps >= 4
    asynchronous = large and tile.dtype != "f32" and (arch == "sm_90" or arch in TENSOR_MEMORY)
    buffers = stages if asynchronous else stages - 1

    def pipelined(elements: int, vector: int) -> bool:
        return stages > 1 and min(vector, elements // threads) * item >= COPY_BYTES

    flying = [pipelined(a, tile.a_vector), pipelined(b, tile.b_vector)]
    if not any(flying):
        return min(a, b) * item if arch.startswith("gfx") or tile.dtype == "f32" else (a + b) * item
    parts = 2 * b if large and arch == "sm_90" and tile.precision == "tf32x3" else 0
    return (a * (buffers if flying[0] else 1) + b * (buffers if flying[1] else 1) + parts) * item
