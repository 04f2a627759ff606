"""A register-tiled matrix product for machines without a C++ compiler: LLVM through Numba.

The tile is written as LLVM vectors, not as loops that a vectoriser may or may not recognise, so any tile
that fits the registers is fast. The loops around it are Numba's. See `revision` for what identifies results.
"""

from __future__ import annotations

from functools import cache

from autotune import paths
from autotune.canonical import text_key
from autotune.kernels import Algorithm, Built, thread_counts
from autotune.kernels.framework import Framework
from autotune.kernels.operands import on_rows, weight_and_bias
from autotune.ops.gemm import Gemm
from autotune.ops.linear import Linear
from autotune.space import SearchSpace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import torch

    from autotune.kernels import Constants
    from autotune.space import Params
    from autotune.types import HardwareProfile, Workload

TILES_16 = ("1x32", "2x32", "4x16", "5x16", "6x16")
"""Rows x columns that fit 16 registers of 8 floats, accumulators and operands together. LLVM splits a vector of a
power of two into registers; 48 columns were 20 times slower."""
TILES_32 = ("1x64", "2x64", "4x32", "8x32", "12x32")
"""The same for 32 registers of 16 floats."""


class NumbaTiled(Algorithm):
    """f32 `linear` (weight packed at build time) and `gemm` (b packed at every call).

    b lies in panels [panel][k][nr], padded with zeros; a is read in place. `split`: which axis the threads
    share out. Threads come from the pool torch already has; without it there is one.
    Compiling a tile takes about a second, once per process.
    """

    name = "numba_tiled"
    stands_in_for = "tiled"
    ops = ("linear", "gemm")

    def revision(self) -> str:
        return _revision()

    def shape_refusal(self, workload: Workload, hardware: HardwareProfile) -> str:
        dtype = workload.dims()["dtype"]
        if dtype != "f32":
            return f"the Numba kernel multiplies f32 only, not {dtype}"
        return ""

    def software_refusal(self, workload: Workload) -> str:
        from importlib.util import find_spec

        return "" if find_spec("numba") else "numba must be installed to compile the kernel"

    def space(self, workload: Workload, hardware: HardwareProfile) -> SearchSpace:
        from autotune.kernels import gomp

        assert isinstance(workload, (Linear, Gemm))
        tiles = TILES_16 + (TILES_32 if "avx512f" in hardware.isa else ())
        threads = thread_counts(hardware) if gomp.parallel_address() else (1,)

        def enough_pieces(params: Params) -> bool:
            rows, columns = _tile(params)
            pieces = -(-workload.n // columns) if params["split"] == "n" else -(-workload.m // rows)
            count = params["threads"]
            assert isinstance(count, int)
            return pieces >= count if count > 1 else params["split"] == "n"

        def no_spare_rows(params: Params) -> bool:
            return _tile(params)[0] < 2 * max(workload.m, 1)

        return SearchSpace(
            {"tile": tiles, "threads": threads, "split": ("n", "m")}, constraints=(enough_pieces, no_spare_rows)
        )

    def compile(self, workload: Workload, params: Params) -> None:
        from autotune.kernels import numba_tile

        numba_tile.compiled(*_tile(params))

    def build(self, workload: Workload, params: Params, constants: Constants) -> Built:
        threads = params["threads"]
        assert isinstance(threads, int)
        if isinstance(workload, Gemm):
            return Built(_gemm(params, threads))
        assert isinstance(workload, Linear)
        if workload.n == 0 or workload.k == 0:
            return Framework().build(workload, {"threads": threads}, constants)
        weight, bias = weight_and_bias(constants)
        panels = _pack(weight, _tile(params)[1])
        padded = panels.new_zeros(panels.shape[0] * panels.shape[2])
        if bias is not None:
            padded[: workload.n] = bias
        relu = workload.activation == "relu"
        run = _Run(params, threads)

        def product(rows: torch.Tensor) -> torch.Tensor:
            result = rows.new_empty((rows.shape[0], workload.n))
            run(rows, panels, padded, result, relu)
            return result

        call = on_rows(product, workload, "none" if relu else workload.activation)
        return Built(call, 4 * (panels.numel() + padded.numel()))


def _tile(params: Params) -> tuple[int, int]:
    rows, _, columns = str(params["tile"]).partition("x")
    return int(rows), int(columns)


def _pack(weight: torch.Tensor, nr: int) -> torch.Tensor:
    """weight [n, k], any strides, as panels [⌈n/nr⌉, k, nr], zero where there is no column."""
    n, k = weight.shape
    full, rest = divmod(n, nr)
    panels = weight.new_empty((full + bool(rest), k, nr))
    if full:
        panels[:full] = weight[: full * nr].view(full, nr, k).transpose(1, 2)
    if rest:
        panels[full, :, :rest] = weight[full * nr :].t()
        panels[full, :, rest:] = 0
    return panels


def _gemm(params: Params, threads: int) -> Any:
    nr = _tile(params)[1]
    run = _Run(params, threads)

    def call(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, b = a.detach(), b.detach()
        result = a.new_empty((*a.shape[:-1], b.shape[-1]))
        if a.shape[-1] == 0:
            return result.zero_()
        if result.numel() == 0:
            return result
        no_bias = a.new_zeros(-(-b.shape[-1] // nr) * nr)
        each = ((a, b, result),) if a.dim() == 2 else zip(a, b, result, strict=True)
        for left, right, out in each:
            rows = left if left.stride(1) == 1 else left.contiguous()
            run(rows, _pack(right.t(), nr), no_bias, out, False)
        return result

    return call


class _Run:
    """Calls the compiled kernel of one tile on tensors, on this thread or on torch's pool."""

    def __init__(self, params: Params, threads: int) -> None:
        import ctypes

        from autotune.kernels import gomp, numba_tile

        self.kernel = numba_tile.compiled(*_tile(params))
        self.by_rows = params["split"] == "m"
        address = gomp.parallel_address()
        self.threads = threads if address else 1
        fork = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        self.parallel = fork(address) if address else None

    def __call__(
        self, rows: torch.Tensor, panels: torch.Tensor, bias: torch.Tensor, result: torch.Tensor, relu: bool
    ) -> None:
        import ctypes

        rows = rows.resolve_neg()  # raw memory is read: a lazy sign must be applied first
        m, n = result.shape
        left, right, offsets, out = (tensor.data_ptr() for tensor in (rows, panels, bias, result))
        arguments = (left, rows.stride(0), right, offsets, out, m, n, panels.shape[1], relu, self.by_rows, self.threads)
        block = (ctypes.c_int64 * len(arguments))(*arguments)
        if self.parallel is None or self.threads == 1:
            self.kernel.call(ctypes.addressof(block))
        else:
            self.parallel(self.kernel.address, ctypes.addressof(block), self.threads, 0)


@cache
def _revision() -> str:
    """Hash of this file and of the compiled part, without docstrings, comments and layout."""
    words: list[str] = []
    for name in ("numba_tiled.py", "numba_tile.py"):
        with open(paths.package_file("kernels", name), encoding="utf-8") as source:
            code = source.read().split('"' * 3)[::2]
        words += (word for part in code for line in part.splitlines() for word in line.partition("#")[0].split())
    return text_key(" ".join(words))
