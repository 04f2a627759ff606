"""The compiled part of `numba_tiled`: one register tile, and the loops that cover a product with it."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, NamedTuple

from autotune.kernels import gomp

ARGUMENTS = ("a", "a_stride", "b", "bias", "c", "m", "n", "k", "relu", "by_rows", "threads")
"""The int64 block that the kernel is given: addresses of f32, the rest in elements."""


class TileKernel(NamedTuple):
    """c[m, n] = a · b + bias, rows of a `a_stride` apart, b in zero-padded panels [panel][k][nr]; k ≥ 1."""

    call: Any  # ctypes function of the block's address: all of the work, given that the block says one thread
    address: int  # of the same function, for GOMP_parallel: each thread does its part
    owner: Any  # keeps the code alive


@cache
def compiled(mr: int, nr: int) -> TileKernel:
    """The kernel of an mr x nr tile, compiled on first use (about a second) and kept for the process."""
    import numba
    from numba import types

    carray: Any = numba.carray  # type: ignore[attr-defined]  # typed for ordinary Python, not for compiled code
    cover = _cover(mr, nr)
    addresses = [gomp.symbol_address(name) for name in ("omp_get_thread_num", "omp_get_num_threads")]
    size, pooled = len(ARGUMENTS), all(addresses)
    function = ctypes.CFUNCTYPE(ctypes.c_int)
    number, count = (function(address) for address in addresses) if pooled else (lambda: 0, lambda: 1)

    @numba.cfunc(types.void(types.voidptr), error_model="numpy")
    def kernel(address):  # type: ignore[no-untyped-def]  # typed by its signature
        block = carray(address, size, types.int64)
        if pooled and block[size - 1] > 1:
            # The pool may give fewer threads than asked for, so the number there are divides the work.
            cover(block, number(), count())
        else:
            cover(block, 0, 1)

    return TileKernel(kernel.ctypes, kernel.address or 0, kernel)


def _cover(mr: int, nr: int) -> Any:
    """Compiles this worker's part of the product: whole tiles straight into c, ragged ones by way of a scratch tile."""
    import numba

    tile, (room, copy) = _tile(mr, nr), _scratch(mr * nr)

    @numba.njit(error_model="numpy")
    def cover(block, worker, workers):  # type: ignore[no-untyped-def]  # compiled for its callers
        a, a_stride, b, bias, c, m, n, k, relu, by_rows = (
            block[0], block[1], block[2], block[3], block[4], block[5], block[6], block[7], block[8], block[9],
        )  # fmt: skip
        first_row, last_row, first_panel, last_panel = 0, (m + mr - 1) // mr, 0, (n + nr - 1) // nr
        if by_rows:
            first_row, last_row = last_row * worker // workers, last_row * (worker + 1) // workers
        else:
            first_panel, last_panel = last_panel * worker // workers, last_panel * (worker + 1) // workers
        scratch = room()
        for panel in range(first_panel, last_panel):
            columns = min(nr, n - panel * nr)
            for block_row in range(first_row, last_row):
                row = block_row * mr
                rows = min(mr, m - row)
                target, step = c + 4 * (row * n + panel * nr), 4 * n
                ragged = rows < mr or columns < nr
                if ragged:
                    target, step = scratch, 4 * nr
                from_a, from_b = a + 4 * row * a_stride, b + 4 * panel * k * nr
                tile(from_a, 4 * a_stride, from_b, bias + 4 * panel * nr, target, step, k, relu, rows)
                if ragged:
                    for i in range(rows):
                        for j in range(columns):
                            copy(c + 4 * ((row + i) * n + panel * nr + j), scratch + 4 * (i * nr + j))

    return cover


def _tile(mr: int, nr: int) -> Any:
    """tile(a, a_step, b, bias, c, c_step, k, relu, rows), addresses and steps in bytes, as LLVM vectors of nr floats.

    All mr rows of c are written; rows of a from `rows` on repeat the last one, so nothing beyond a is read.
    NaN passes through ReLU, as it does in torch.
    """
    from llvmlite import ir  # type: ignore[import-untyped]  # has no stubs
    from numba import types
    from numba.core.cgutils import get_or_insert_function
    from numba.extending import intrinsic

    scalar, vector, word = ir.FloatType(), ir.VectorType(ir.FloatType(), nr), ir.IntType(64)
    lanes = ir.Constant(ir.VectorType(ir.IntType(32), nr), None)

    def number(value: int) -> Any:
        return ir.Constant(word, value)

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        a, a_step, b, bias, c, c_step, k, relu, rows = args
        fused = get_or_insert_function(builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fmuladd.v{nr}f32")  # type: ignore[no-untyped-call]  # untyped

        def load(kind: Any, address: Any) -> Any:
            return builder.load(builder.inttoptr(address, kind.as_pointer()), align=4)

        def spread(value: Any) -> Any:
            one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
            return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), lanes)

        last = builder.sub(rows, number(1))
        bases = []
        for i in range(mr):
            inside = builder.icmp_signed("<", number(i), rows)
            bases.append(builder.add(a, builder.mul(builder.select(inside, number(i), last), a_step)))

        before, loop = builder.block, builder.append_basic_block("k")
        after = builder.append_basic_block("done")
        builder.branch(loop)
        builder.position_at_end(loop)
        step = builder.phi(word)
        sums = [builder.phi(vector) for _ in range(mr)]
        column = load(vector, builder.add(b, builder.mul(step, number(4 * nr))))
        offset = builder.mul(step, number(4))
        totals = []
        for base, total in zip(bases, sums, strict=True):
            totals.append(builder.call(fused, (spread(load(scalar, builder.add(base, offset))), column, total)))
        following = builder.add(step, number(1))
        builder.cbranch(builder.icmp_signed("<", following, k), loop, after)
        for phi, start, again in zip(
            (step, *sums), (number(0), *[ir.Constant(vector, None)] * mr), (following, *totals), strict=True
        ):
            phi.add_incoming(start, before)
            phi.add_incoming(again, loop)

        builder.position_at_end(after)
        offsets, zero = load(vector, bias), ir.Constant(vector, None)
        clip = builder.icmp_signed("!=", relu, number(0))
        for i, total in enumerate(totals):
            value = builder.fadd(total, offsets)
            clipped = builder.select(builder.fcmp_ordered("<", value, zero), zero, value)
            target = builder.add(c, builder.mul(number(i), c_step))
            builder.store(builder.select(clip, clipped, value), builder.inttoptr(target, vector.as_pointer()), align=4)
        return _context.get_dummy_value()

    @intrinsic
    def tile(typing, a, a_step, b, bias, c, c_step, k, relu, rows):  # type: ignore[no-untyped-def]  # numba reads the names
        return types.void(*(types.int64,) * 9), generate

    return tile


def _scratch(floats: int) -> tuple[Any, Any]:
    """room(): address of that many floats on the stack. copy(to, source): one float."""
    from llvmlite import ir
    from numba import types
    from numba.core.cgutils import alloca_once
    from numba.extending import intrinsic

    scalar = ir.FloatType()

    def generate_room(_context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        return builder.ptrtoint(alloca_once(builder, ir.ArrayType(scalar, floats)), ir.IntType(64))  # type: ignore[no-untyped-call]  # untyped

    def generate_copy(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        to, source = (builder.inttoptr(address, scalar.as_pointer()) for address in args)
        builder.store(builder.load(source, align=4), to, align=4)
        return context.get_dummy_value()

    @intrinsic
    def room(typing):  # type: ignore[no-untyped-def]  # numba reads the names
        return types.int64(), generate_room

    @intrinsic
    def copy(typing, to, source):  # type: ignore[no-untyped-def]  # likewise
        return types.void(types.int64, types.int64), generate_copy

    return room, copy
