# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""bag: y[bag] = sum, mean or maximum of the rows of a table that the bag's indices name.

Algorithm: each program computes BLOCK_D elements of one bag's result, reading BLOCK_L rows at once so that enough loads
are in flight to hide what memory takes (as FBGEMM's table-batched embeddings do: Khudia et al., 2021). Sums are f32.

An index that names no row, or offsets that are none, are never used as an address: the bag's result is NaN. A kernel
cannot raise, and waiting for it to tell would cost more than the lookup.

Offsets into the table are 64 bits wide.
"""

import triton
import triton.language as tl


@triton.jit
def bag(
    table, indices, offsets, weights, y, rows, dim, bags, lookups, pooling, stride,
    BLOCK_D: tl.constexpr, BLOCK_L: tl.constexpr, MODE: tl.constexpr, RAGGED: tl.constexpr, WEIGHTED: tl.constexpr,
):  # fmt: skip
    pieces = tl.cdiv(dim, BLOCK_D)
    program = tl.program_id(0)
    piece, which = program % pieces, tl.cast(program // pieces, tl.int64)
    in_d, in_l = piece * BLOCK_D + tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_L)
    if RAGGED:
        begin = tl.load(offsets + which).to(tl.int64)
        end = tl.load(offsets + which + 1, mask=which + 1 < bags, other=0).to(tl.int64)
        end = tl.where(which + 1 < bags, end, lookups)
        bad = (begin < 0) | (begin > end) | (end > lookups) | ((which == 0) & (begin != 0))
        begin = tl.where(bad, 0, begin)
        end = tl.where(bad, 0, end)
    else:
        begin = which * pooling
        end = begin + pooling
        bad = begin < 0
    wrong = tl.zeros((BLOCK_L,), tl.int32)
    result = tl.full((BLOCK_D,), float("-inf") if MODE == "max" else 0.0, tl.float32)
    for at in range(begin, end, BLOCK_L):
        there = at + in_l < end
        index = tl.load(indices + at + in_l, mask=there, other=0).to(tl.int64)
        is_row = (index >= 0) & (index < rows)
        wrong = wrong | (there & ~is_row).to(tl.int32)
        read = there & is_row
        row_at = table + index[:, None] * stride + in_d[None, :]
        values = tl.load(row_at, mask=read[:, None] & (in_d[None, :] < dim), other=0.0).to(tl.float32)
        if MODE == "max":
            values = tl.where(read[:, None], values, float("-inf"))
            result = tl.maximum(result, tl.max(values, 0))
        else:
            if WEIGHTED:
                weight = tl.load(weights + at + in_l, mask=there, other=0.0).to(tl.float32)
                values = values * weight[:, None]
            result += tl.sum(values, 0)
    count = end - begin
    if MODE == "mean":
        result = result / tl.maximum(count, 1).to(tl.float32)
    if MODE == "max":
        result = tl.where(count == 0, 0.0, result)
    result = tl.where(bad | (tl.max(wrong, 0) > 0), float("nan"), result)
    tl.store(y + which * dim + in_d, result.to(y.dtype.element_ty), mask=in_d < dim)
