# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""flash: attention in one pass, y = softmax(q · kᵀ · scale + mask) · v, and its join where keys are split.

Algorithm: FlashAttention-2 (Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning",
2023): each program holds BLOCK_M rows of queries, walks the keys in steps of BLOCK_N and keeps, per row, the running
maximum of the scores, the sum of their exponentials and the result so far, which is scaled when the maximum grows. Only
the steps at the end of the keys and at the border of a causal mask are masked; those beyond the border are left out.

Grouped queries: the queries of all heads that share keys are rows of one tile, position by position, so that a key is
read once for all of them: row r of a group is head r % group at position r // group.

Split: where there are too few tiles to fill the device, as in decoding, SPLITS programs share one tile's keys
(Flash-Decoding: Dao, Haziza, Massa and Sizov, 2023). Each writes its f32 result, not yet divided, with its
maximum and sum to a part of its own, and `join` adds the parts up in order: splits · rows · (head_dim + 2) numbers are
written and read again, which too fine a split pays for.

Tails: loads and stores are masked beyond q_len, kv_len and HEAD_DIM. Offsets of whole operands are 64 bits wide.
"""

import triton
import triton.language as tl

from autotune.kernels.triton.tile_kernel import multiply_add


@triton.jit
def step(
    q_tile, k_at, v_at, scale, start, last, end, in_n, in_d, k_row, v_row, top, total, sums,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Keys [start, start + BLOCK_N). `last`: the last key that each row sees. `end`: the first that no row does."""
    n = start + in_n
    k_tile_at = k_at + n[None, :].to(tl.int64) * k_row
    v_tile_at = v_at + n[:, None].to(tl.int64) * v_row
    if MASKED:
        k_tile = tl.load(k_tile_at, mask=(n[None, :] < end) & (in_d[:, None] < HEAD_DIM), other=0.0)
    elif BLOCK_D > HEAD_DIM:
        k_tile = tl.load(k_tile_at, mask=in_d[:, None] < HEAD_DIM, other=0.0)
    else:
        k_tile = tl.load(k_tile_at)
    scores = multiply_add(q_tile, k_tile, tl.zeros((q_tile.shape[0], in_n.shape[0]), tl.float32), PRECISION) * scale
    if MASKED:
        scores = tl.where((n[None, :] <= last[:, None]) & (n[None, :] < end), scores, float("-inf"))
    most = tl.maximum(top, tl.max(scores, 1))
    # a row that has seen nothing yet has no maximum to subtract
    base = tl.where(most == float("-inf"), 0.0, most)
    shares = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(top - base)
    total = total * shrink + tl.sum(shares, 1)
    if MASKED:
        v_tile = tl.load(v_tile_at, mask=(n[:, None] < end) & (in_d[None, :] < HEAD_DIM), other=0.0)
    elif BLOCK_D > HEAD_DIM:
        v_tile = tl.load(v_tile_at, mask=in_d[None, :] < HEAD_DIM, other=0.0)
    else:
        v_tile = tl.load(v_tile_at)
    sums = multiply_add(shares.to(v_tile.dtype), v_tile, sums * shrink[:, None], PRECISION)
    return most, total, sums


@triton.jit
def flash(
    q, k, v, y, parts, scale, q_len, kv_len, kv_heads, group, units,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, y_batch, y_head, y_row,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`scale` is in units of log 2: exponentials are powers of two. `units`: batch · kv_heads."""
    rows = q_len * group
    tiles = tl.cdiv(rows, BLOCK_M)
    program = tl.program_id(0)
    tile, entry = program % tiles, program // tiles
    if CAUSAL:
        tile = tiles - 1 - tile  # those that see most begin first
    unit, split = entry % units, entry // units
    head, batch = unit % kv_heads, tl.cast(unit // kv_heads, tl.int64)

    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    in_n, in_d = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    position, in_group = row // group, row % group
    query_head = tl.cast(head, tl.int64) * group + in_group
    there = (row[:, None] < rows) & (in_d[None, :] < HEAD_DIM)
    q_at = q + batch * q_batch + query_head[:, None] * q_head + position[:, None].to(tl.int64) * q_row + in_d[None, :]
    q_tile = tl.load(q_at, mask=there, other=0.0)
    k_at = k + batch * k_batch + tl.cast(head, tl.int64) * k_head + in_d[:, None]
    v_at = v + batch * v_batch + tl.cast(head, tl.int64) * v_head + in_d[None, :]

    # [begin, free) is seen by all rows, [free, end) by some; steps are whole but for the last
    steps = tl.cdiv(tl.cdiv(kv_len, BLOCK_N), SPLITS)
    begin = split * steps * BLOCK_N
    end = tl.minimum(kv_len, begin + steps * BLOCK_N)
    free = end
    last = tl.zeros((BLOCK_M,), tl.int32) + kv_len
    if CAUSAL:
        last = kv_len - q_len + position
        first_position = tile * BLOCK_M // group
        last_position = (tl.minimum(rows, (tile + 1) * BLOCK_M) - 1) // group
        end = tl.minimum(end, kv_len - q_len + last_position + 1)
        free = tl.minimum(end, kv_len - q_len + first_position + 1)
    free = begin + tl.maximum(free - begin, 0) // BLOCK_N * BLOCK_N

    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    sums = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start in range(begin, free, BLOCK_N):
        top, total, sums = step(
            q_tile, k_at, v_at, scale, start, last, end, in_n, in_d, k_row, v_row, top, total, sums,
            HEAD_DIM, BLOCK_D, False, PRECISION,
        )  # fmt: skip
    for start in range(free, end, BLOCK_N):
        top, total, sums = step(
            q_tile, k_at, v_at, scale, start, last, end, in_n, in_d, k_row, v_row, top, total, sums,
            HEAD_DIM, BLOCK_D, True, PRECISION,
        )  # fmt: skip

    if SPLITS == 1:
        result = sums / tl.where(total == 0, 1.0, total)[:, None]
        y_at = y + batch * y_batch + query_head[:, None] * y_head + position[:, None].to(tl.int64) * y_row
        tl.store(y_at + in_d[None, :], result.to(y.dtype.element_ty), mask=there)
    else:
        # parts [split][unit][row][HEAD_DIM + 2]
        at = (tl.cast(entry, tl.int64) * rows + row) * (HEAD_DIM + 2)
        tl.store(parts + at[:, None] + in_d[None, :], sums, mask=there)
        tl.store(parts + at + HEAD_DIM, top, mask=row < rows)
        tl.store(parts + at + HEAD_DIM + 1, total, mask=row < rows)


@triton.jit
def join(
    parts, y, q_len, kv_heads, group, units, y_batch, y_head, y_row,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """One row of one unit, from its parts."""
    rows = q_len * group
    program = tl.cast(tl.program_id(0), tl.int64)
    row, unit = program % rows, program // rows
    in_d = tl.arange(0, BLOCK_D)
    top = tl.full((1,), float("-inf"), tl.float32)
    total = tl.zeros((1,), tl.float32)
    sums = tl.zeros((BLOCK_D,), tl.float32)
    one = tl.arange(0, 1)
    for split in range(SPLITS):
        at = ((tl.cast(split, tl.int64) * units + unit) * rows + row) * (HEAD_DIM + 2)
        part = tl.load(parts + at + in_d, mask=in_d < HEAD_DIM, other=0.0)
        its_top, its_total = tl.load(parts + at + HEAD_DIM + one), tl.load(parts + at + HEAD_DIM + 1 + one)
        most = tl.maximum(top, its_top)
        base = tl.where(most == float("-inf"), 0.0, most)
        mine, its = tl.exp2(top - base), tl.exp2(its_top - base)
        total = total * mine + its_total * its
        sums = sums * mine + part * its
        top = most
    result = sums / tl.where(total == 0, 1.0, total)
    y_at = y + unit // kv_heads * y_batch + (unit % kv_heads * group + row % group) * y_head + row // group * y_row
    tl.store(y_at + in_d, result.to(y.dtype.element_ty), mask=in_d < HEAD_DIM)
