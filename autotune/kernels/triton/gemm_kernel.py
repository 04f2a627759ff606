# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""gemm: c[batch, m, n] = activation(a[batch, m, k] · b[batch, k, n] + bias[n]), tiled, with a split of k.

Algorithm: each program computes one BLOCK_M x BLOCK_N tile of c for one batch entry and one of SPLIT_K ranges of k. It
walks its range in steps of BLOCK_K; the compiler keeps `num_stages` steps of both operands in shared memory in flight
and multiplies on tensor cores where the element type has them. Sums are f32.

Blocking: programs are numbered so that GROUP_M rows of tiles are done before the next column of tiles: those that run
at the same time share rows of a and columns of b in L2 (Tillet, Kung and Cox, "Triton: an intermediate language
and compiler for tiled neural network computations", MAPL 2019; the numbering is from its matrix product tutorial).

Split: where c has too few tiles to fill the device, k is split. Each part writes f32 sums of its own to
partial[split, batch, m, n], and `reduce` adds them in order, then applies bias and activation: the result does not
depend on which part finished first, as it would with atomic additions.

Tails: every load and store is masked where its index is beyond m, n or k; EVEN_K says that the steps divide k.
Offsets of whole operands are 64 bits wide.
"""

import triton
import triton.language as tl

from autotune.kernels.triton.tile_kernel import activate, multiply_add


@triton.jit
def gemm(
    a, b, c, bias, m, n, k, batch, a_batch, a_row, a_col, b_batch, b_row, b_col, c_batch, c_row,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SPLIT_K: tl.constexpr, EVEN_K: tl.constexpr, HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    rows, columns = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    program = tl.program_id(0)
    tiles = rows * columns
    tile, part = program % tiles, program // tiles
    split, entry = part // batch, tl.cast(part % batch, tl.int64)
    # GROUP_M rows of tiles by all columns of tiles make a group; within it, rows change fastest
    group = GROUP_M * columns
    first_row = tile // group * GROUP_M
    high = tl.minimum(rows - first_row, GROUP_M)
    tile_m, tile_n = first_row + tile % group % high, tile % group // high

    in_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    in_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    in_k = split * BLOCK_K + tl.arange(0, BLOCK_K)
    a_at = a + entry * a_batch + in_m[:, None].to(tl.int64) * a_row + in_k[None, :].to(tl.int64) * a_col
    b_at = b + entry * b_batch + in_k[:, None].to(tl.int64) * b_row + in_n[None, :].to(tl.int64) * b_col
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    step = BLOCK_K * SPLIT_K
    a_step, b_step = tl.cast(step, tl.int64) * a_col, tl.cast(step, tl.int64) * b_row
    for start in range(0, tl.cdiv(k, step)):
        if EVEN_K:
            a_tile = tl.load(a_at, mask=in_m[:, None] < m, other=0.0)
            b_tile = tl.load(b_at, mask=in_n[None, :] < n, other=0.0)
        else:
            left = k - start * step
            a_tile = tl.load(a_at, mask=(in_m[:, None] < m) & (in_k[None, :] < left), other=0.0)
            b_tile = tl.load(b_at, mask=(in_k[:, None] < left) & (in_n[None, :] < n), other=0.0)
        sums = multiply_add(a_tile, b_tile, sums, PRECISION)
        a_at += a_step
        b_at += b_step

    if HAS_BIAS and SPLIT_K == 1:
        sums += tl.load(bias + in_n, mask=in_n < n, other=0.0).to(tl.float32)[None, :]
    if SPLIT_K == 1:
        sums = activate(sums, ACTIVATION)
    c_at = c + tl.cast(part, tl.int64) * c_batch + in_m[:, None].to(tl.int64) * c_row + in_n[None, :]
    tl.store(c_at, sums.to(c.dtype.element_ty), mask=(in_m[:, None] < m) & (in_n[None, :] < n))


@triton.jit
def reduce(
    partial, c, bias, n, count,
    SPLIT_K: tl.constexpr, BLOCK: tl.constexpr, HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """c[batch, m, n], `count` elements in all, from partial[SPLIT_K, batch, m, n]."""
    at = tl.cast(tl.program_id(0), tl.int64) * BLOCK + tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), tl.float32)
    for split in range(SPLIT_K):
        sums += tl.load(partial + split * tl.cast(count, tl.int64) + at, mask=at < count, other=0.0)
    if HAS_BIAS:
        sums += tl.load(bias + at % n, mask=at < count, other=0.0).to(tl.float32)
    tl.store(c + at, activate(sums, ACTIVATION).to(c.dtype.element_ty), mask=at < count)
