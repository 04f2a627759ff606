"""triton_gemm: linear and gemm on GPUs; see gemm_kernel.py for the algorithm."""

from __future__ import annotations

import math

from autotune import paths
from autotune.kernels import Built, Constants
from autotune.kernels.operands import weight_and_bias
from autotune.kernels.triton import ELEMENTS, Launch, Needs, TritonAlgorithm
from autotune.kernels.triton.dot import DotTile, dot_needs
from autotune.kernels.triton.gemm_space import Tile, dtype_refusal, product_space
from autotune.ops.gemm import Gemm
from autotune.ops.linear import Linear
from autotune.types import StrideClass

TYPE_CHECKING = False
if TYPE_CHECKING:
    import torch

    from autotune.space import Params, SearchSpace
    from autotune.types import HardwareProfile, Workload

KERNELS = "autotune.kernels.triton.gemm_kernel"
REDUCE_BLOCK = 1024
MOST_INDEX = 2**31 - 4096
"""Indices within m, n and k are 32 bits wide, and a tile may reach beyond; offsets are 64."""


class TritonGemm(TritonAlgorithm):
    """Any strides of the operands, tails of any size, and a fused bias and activation.

    - `tile`: (BLOCK_M, BLOCK_N, BLOCK_K). `warps`, `stages`: Triton's.
    - `group`: rows of tiles that are computed before the next column, for L2.
    - `split`: parts that k is cut into; beyond 1 a second kernel adds their f32 sums, m·n of them per part.
    - `precision` (f32): "ieee" multiplies f32 as such; "tf32x3" takes three products of tf32 parts on tensor cores,
      NVIDIA only, with an error near f32's that is measured like any other's. One tf32 product would exceed the budget.
    """

    name = "triton_gemm"
    ops = ("linear", "gemm")
    sources = tuple(paths.package_file("kernels", "triton", f"{name}_kernel.py") for name in ("gemm", "tile"))

    def workload_refusal(self, workload: Workload, hardware: HardwareProfile) -> str:
        w = _of(workload)
        if max(w.m, w.n, w.k) > MOST_INDEX:
            return "the Triton product counts m, n and k in 32 bits"
        return dtype_refusal(w.dtype, hardware.arch)

    def space(self, workload: Workload, hardware: HardwareProfile) -> SearchSpace:
        w = _of(workload)
        batch = w.batch if isinstance(w, Gemm) else 1
        return product_space((w.m, w.n, w.k), batch, w.dtype, hardware, self.fits(workload, hardware.arch))

    def needs(self, workload: Workload, params: Params, arch: str) -> Needs:
        w, tile = _of(workload), Tile.of(params)
        a, b = _operand_strides(w)
        return product_needs(tile, w.dtype, (w.m, w.n, w.k), a[1:], b[1:], arch)

    def launches(self, workload: Workload, params: Params) -> tuple[Launch, ...]:
        w, tile = _of(workload), Tile.of(params)
        a, b = _operand_strides(w)
        batch = w.batch if isinstance(w, Gemm) else 1
        shape = (w.m, w.n, w.k)
        if tile.split == 1:
            return (product_launch(tile, w.dtype, ELEMENTS[w.dtype], shape, batch, a, b, *_epilogue(w)),)
        return product_launch(tile, w.dtype, "fp32", shape, batch, a, b), _reduction(w, tile, batch)

    def build(self, workload: Workload, params: Params, constants: Constants) -> Built:
        launches = self.launches(workload, params)
        if isinstance(workload, Linear):
            return _build_linear(workload, Tile.of(params), launches, constants)
        return _build_gemm(_of(workload), Tile.of(params), launches)


def _of(workload: Workload) -> Linear | Gemm:
    assert isinstance(workload, (Linear, Gemm))
    return workload


def _operand_strides(w: Linear | Gemm) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """(batch, row, column) strides of a [batch, m, k] and b [batch, k, n]."""
    if isinstance(w, Linear):
        rows, columns = _strides(w.weight_layout, w.n, w.k)
        return (w.m * w.k, w.k, 1), (w.n * w.k, columns, rows)
    return (w.m * w.k, *_strides(w.a_layout, w.m, w.k)), (w.k * w.n, *_strides(w.b_layout, w.k, w.n))


def product_needs(
    tile: Tile, dtype: str, shape: tuple[int, int, int], a: tuple[int, int], b: tuple[int, int], arch: str
) -> Needs:  # fmt: skip
    """Of a product (m, n, k) of matrices with these (row, column) strides."""
    m, n, k = shape
    vectors = together(a, (m, k)), together(b, (k, n))
    needs = dot_needs(DotTile(tile.m, tile.n, tile.k, dtype, tile.precision, *vectors), tile.warps, tile.stages, arch)
    # with one product per sum, known when compiling, there is no loop to pipeline
    return needs if k > 1 else Needs(0, needs.threads, needs.registers)


def together(strides: tuple[int, int], extents: tuple[int, int]) -> int:
    """Elements that a load of a matrix may take at once: 16 where lines lie together and begin at multiples of 16."""
    for along, across in ((0, 1), (1, 0)):
        if strides[along] == 1 and strides[across] % 16 == 0 and extents[along] % 16 == 0:
            return 16
    return 1


def _strides(layout: str, rows: int, columns: int) -> tuple[int, int]:
    """(row, column) strides of a matrix laid out by `ops.layout.lay_out`."""
    match StrideClass(layout):
        case StrideClass.CONTIGUOUS:
            return columns, 1
        case StrideClass.TRANSPOSED:
            return 1, rows
        case StrideClass.STRIDED:
            return 2 * columns, 2
    return 0, 1


def _epilogue(w: Linear | Gemm) -> tuple[bool, str]:
    """(whether there is a bias, the activation)."""
    return (w.bias, w.activation) if isinstance(w, Linear) else (False, "none")


def blocks(m: int, n: int, batch: int, tile: Tile) -> int:
    return math.ceil(m / tile.m) * math.ceil(n / tile.n) * batch * tile.split


def product_launch(
    tile: Tile, dtype: str, result: str, shape: tuple[int, int, int], batch: int, a: tuple[int, int, int],
    b: tuple[int, int, int], bias: bool = False, activation: str = "none",
) -> Launch:  # fmt: skip
    """c[batch, m, n], contiguous, of elements `result`. `shape`: (m, n, k). `a`, `b`: (batch, row, column) strides."""
    (m, n, k), element = shape, ELEMENTS[dtype]
    return Launch(
        f"{KERNELS}:gemm",
        {"a": element, "b": element, "c": result, "bias": element},
        {
            "m": m, "n": n, "k": k, "batch": batch,
            "a_batch": a[0], "a_row": a[1], "a_col": a[2], "b_batch": b[0], "b_row": b[1], "b_col": b[2],
            "c_batch": m * n, "c_row": n,
        },
        {
            "BLOCK_M": tile.m, "BLOCK_N": tile.n, "BLOCK_K": tile.k, "GROUP_M": tile.group, "SPLIT_K": tile.split,
            "EVEN_K": k % (tile.k * tile.split) == 0, "HAS_BIAS": bias, "ACTIVATION": activation,
            "PRECISION": tile.precision,
        },
        blocks(m, n, batch, tile),
        tile.warps,
        tile.stages,
    )  # fmt: skip


def _reduction(w: Linear | Gemm, tile: Tile, batch: int) -> Launch:
    bias, activation = _epilogue(w)
    count = batch * w.m * w.n
    return Launch(
        f"{KERNELS}:reduce",
        {"partial": "fp32", "c": ELEMENTS[w.dtype], "bias": ELEMENTS[w.dtype]},
        {"n": w.n, "count": count},
        {"SPLIT_K": tile.split, "BLOCK": REDUCE_BLOCK, "HAS_BIAS": bias, "ACTIVATION": activation},
        math.ceil(count / REDUCE_BLOCK),
    )  # fmt: skip


def _multiply(tile: Tile, launches: tuple[Launch, ...]):  # type: ignore[no-untyped-def]  # a closure over tensors
    """product(a, b, bias, c, m, n, k, batch, strides of a, strides of b): writes contiguous c [batch, m, n]."""
    import torch

    from autotune.kernels.triton.running import bind

    product = bind(launches[0])
    reduction = bind(launches[1]) if tile.split > 1 else None

    def run(
        a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, c: torch.Tensor, m: int, n: int, k: int, batch: int,
        a_strides: tuple[int, int, int], b_strides: tuple[int, int, int],
    ) -> None:  # fmt: skip
        sums = c if reduction is None else torch.empty((tile.split, batch, m, n), dtype=torch.float32, device=c.device)
        product(
            blocks(m, n, batch, tile), a=a, b=b, c=sums, bias=bias, m=m, n=n, k=k, batch=batch,
            a_batch=a_strides[0], a_row=a_strides[1], a_col=a_strides[2],
            b_batch=b_strides[0], b_row=b_strides[1], b_col=b_strides[2], c_batch=m * n, c_row=n,
        )  # fmt: skip
        if reduction is not None:
            count = batch * m * n
            reduction(math.ceil(count / REDUCE_BLOCK), partial=sums, c=c, bias=bias, n=n, count=count)

    return run


def _build_linear(w: Linear, tile: Tile, launches: tuple[Launch, ...], constants: Constants) -> Built:
    weight, bias = weight_and_bias(constants)
    weight = weight.resolve_neg()
    n, k = weight.shape
    b_strides = (0, weight.stride(1), weight.stride(0))
    unused = weight if bias is None else bias  # a pointer that is not read
    multiply = _multiply(tile, launches)

    def call(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().resolve_neg()
        rows = x.reshape(-1, k) if k else x.new_empty((math.prod(x.shape[:-1]), 0))
        m = rows.shape[0]
        y = x.new_empty((*x.shape[:-1], n))
        multiply(rows, weight, unused, y, m, n, k, 1, (0, rows.stride(0), rows.stride(1)), b_strides)
        return y

    return Built(call, _partial_bytes(tile, w.m * n))


def _build_gemm(w: Linear | Gemm, tile: Tile, launches: tuple[Launch, ...]) -> Built:
    m, n, k = w.m, w.n, w.k
    multiply = _multiply(tile, launches)

    def strides(x: torch.Tensor) -> tuple[int, int, int]:
        return (x.stride(0) if x.dim() == 3 else 0, x.stride(-2), x.stride(-1))

    def call(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, b = a.detach().resolve_neg(), b.detach().resolve_neg()
        c = a.new_empty((*a.shape[:-1], b.shape[-1]))
        batch = a.shape[0] if a.dim() == 3 else 1
        multiply(a, b, a, c, m, n, k, batch, strides(a), strides(b))
        return c

    assert isinstance(w, Gemm)
    return Built(call, _partial_bytes(tile, w.batch * m * n))


def _partial_bytes(tile: Tile, results: int) -> int:
    return 4 * tile.split * results if tile.split > 1 else 0
