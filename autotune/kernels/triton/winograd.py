"""triton_winograd: 3x3 convolutions on GPUs with 2.25 (m=2) or 4 (m=4) times fewer products; see winograd_kernel.py."""

from __future__ import annotations

import math

from autotune import paths
from autotune.kernels import Built, Constants
from autotune.kernels.operands import weight_and_bias
from autotune.kernels.triton import ELEMENTS, Launch, Needs, TritonAlgorithm
from autotune.kernels.triton.conv import refusal, strides
from autotune.kernels.triton.conv_operands import taken
from autotune.kernels.triton.gemm import MOST_INDEX, product_launch, product_needs
from autotune.kernels.triton.gemm_space import Tile, product_space
from autotune.kernels.winograd import error_bound, not_for_winograd
from autotune.ops.conv2d import Conv2d, conv
from autotune.space import SearchSpace

TYPE_CHECKING = False
if TYPE_CHECKING:
    import torch

    from autotune.space import Params
    from autotune.types import HardwareProfile, ParamValue, Workload

KERNELS = "autotune.kernels.triton.winograd_kernel"
BLOCK = 128
"""(Tile, channel) pairs of one program of a transform: one per thread."""

OUTPUTS = (4, 2)
"""Of a tile, per dimension."""


class TritonWinograd(TritonAlgorithm):
    """F(m x m, 3x3) in three launches: transform, product, transform back. The filters are transformed once.

    A NaN in the image spreads over the tiles that read it, and so does an infinity, as NaN.

    - `m`: outputs of a tile per dimension. The others are those of the product, see `triton_gemm`; its rows are
      tiles of the image and its columns output channels, in NCHW the other way round.
    """

    name = "triton_winograd"
    ops = ("conv2d",)
    sources = tuple(
        paths.package_file("kernels", "triton", f"{name}_kernel.py") for name in ("winograd", "gemm", "tile")
    )

    def workload_refusal(self, workload: Workload, hardware: HardwareProfile) -> str:
        w = conv(workload)
        general = refusal(w, hardware.arch) or not_for_winograd(w)
        if general:
            return general
        return "" if _tiles(w, 2) <= MOST_INDEX else "the Triton Winograd kernels count tiles in 32 bits"

    def error_bound(self, workload: Workload) -> float:
        """The CPU kernel's: the points are the same. Transformed values are rounded to the operands' type."""
        return error_bound(conv(workload))

    def space(self, workload: Workload, hardware: HardwareProfile) -> SearchSpace:
        w = conv(workload)
        spaces = {m: _of_product(w, m, hardware) for m in OUTPUTS}
        largest = spaces[2].parameters
        parameters: dict[str, tuple[ParamValue, ...]] = {"m": OUTPUTS, **largest}

        def fits_the_product(p: Params) -> bool:
            m = p["m"]
            assert isinstance(m, int)
            return spaces[m].contains({name: value for name, value in p.items() if name != "m"})

        constraints = (fits_the_product, self.fits(workload, hardware.arch))
        bare = SearchSpace(parameters, constraints)
        seeds = [{"m": m, **seed} for m in OUTPUTS for seed in spaces[m].seeds[:6]]
        return SearchSpace(parameters, constraints, tuple(seed for seed in seeds if bare.contains(seed)))

    def needs(self, workload: Workload, params: Params, arch: str) -> Needs:
        w, m = conv(workload), _m(params)
        shape, a, b = _product(w, m)
        return product_needs(Tile.of(params), w.dtype, shape, a[1:], b[1:], arch)

    def launches(self, workload: Workload, params: Params) -> tuple[Launch, ...]:
        w, m, tile = conv(workload), _m(params), Tile.of(params)
        shape, a, b = _product(w, m)
        return (
            _spread(w, m),
            product_launch(tile, w.dtype, "fp32", shape, (m + 2) ** 2, a, b),
            _gather(w, m),
        )

    def build(self, workload: Workload, params: Params, constants: Constants) -> Built:
        import torch

        from autotune.kernels.triton.running import bind

        w, m = conv(workload), _m(params)
        launches = self.launches(workload, params)
        spread, product, gather = (bind(launch) for launch in launches)
        weight, bias = weight_and_bias(constants)
        filters = transformed(weight.resolve_neg(), m, w.layout)
        count, positions = _tiles(w, m), (m + 2) ** 2
        shape = (w.n, w.k, w.out_h, w.out_w)
        stored = torch.channels_last if w.layout == "channels_last" else torch.contiguous_format

        def call(x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
            x, added = taken(w, x, residual)
            y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=stored)
            image = torch.empty((positions, count, w.c), dtype=x.dtype, device=x.device)
            sums = torch.empty((positions, count, w.k), dtype=torch.float32, device=x.device)
            spread(launches[0].blocks, x=x, positions=image, **launches[0].scalars)
            a, b = (image, filters) if w.layout == "channels_last" else (filters, image)
            product(launches[1].blocks, a=a, b=b, c=sums, bias=filters, **launches[1].scalars)
            gather(
                launches[2].blocks, sums=sums, y=y, bias=filters if bias is None else bias,
                residual=y if added is None else added, **launches[2].scalars,
            )  # fmt: skip
            return y

        scratch = positions * count * (w.c * weight.element_size() + 4 * w.k)
        return Built(call, filters.numel() * filters.element_size() + scratch)


def transformed(weight: torch.Tensor, m: int, layout: str) -> torch.Tensor:
    """Filters [k, c, 3, 3] at the (m + 2)² points, in f64, then rounded: [points, c, k], in NCHW [points, k, c]."""
    import torch

    points = [(1.0, 2.0), (-1.0, 2.0)]
    if m == 4:
        p, q = 2 / 3, 3 / 2
        of_p, of_q = 2 * p * p * (p * p - q * q), 2 * q * q * (q * q - p * p)
        points = [(p, of_p), (-p, of_p), (q, of_q), (-q, of_q)]
    rows = [(1.0, 0.0, 0.0), *((1 / scale, x / scale, x * x / scale) for x, scale in points), (0.0, 0.0, 1.0)]
    g = torch.tensor(rows, dtype=torch.float64, device=weight.device)
    order = "ijck" if layout == "channels_last" else "ijkc"
    at_points = torch.einsum(f"ir,kcrs,js->{order}", g, weight.double(), g)
    return at_points.flatten(0, 1).to(weight.dtype).contiguous()


def _m(params: Params) -> int:
    m = params["m"]
    assert isinstance(m, int)
    return m


def _grid(w: Conv2d, m: int) -> tuple[int, int]:
    """Tiles per image: (rows, columns)."""
    return -(-w.out_h // m), -(-w.out_w // m)


def _tiles(w: Conv2d, m: int) -> int:
    return w.n * math.prod(_grid(w, m))


def _product(w: Conv2d, m: int) -> tuple[tuple[int, int, int], tuple[int, int, int], tuple[int, int, int]]:
    """((m, n, k), strides of a, strides of b), the latter as (batch, row, column)."""
    tiles = _tiles(w, m)
    if w.layout == "channels_last":
        return (tiles, w.k, w.c), (tiles * w.c, w.c, 1), (w.c * w.k, w.k, 1)
    return (w.k, tiles, w.c), (w.k * w.c, w.c, 1), (w.c * tiles, tiles, 1)


def _of_product(w: Conv2d, m: int, hardware: HardwareProfile) -> SearchSpace:
    """Without `split`: the positions are many products already."""
    shape, _, _ = _product(w, m)
    space = product_space(shape, (m + 2) ** 2, w.dtype, hardware, lambda params: True)
    parameters = {name: values for name, values in space.parameters.items() if name != "split"}
    seeds = [
        {name: value for name, value in seed.items() if name != "split"} for seed in space.seeds if seed["split"] == 1
    ]
    return SearchSpace(parameters, space.constraints, tuple(seeds))


def _spread(w: Conv2d, m: int) -> Launch:
    image, channel, row, column = strides(w, w.c, w.h, w.w)
    (tiles_h, tiles_w), tiles = _grid(w, m), _tiles(w, m)
    return Launch(
        f"{KERNELS}:spread",
        {"x": ELEMENTS[w.dtype], "positions": ELEMENTS[w.dtype]},
        {
            "tiles": tiles, "tiles_h": tiles_h, "tiles_w": tiles_w, "channels": w.c, "h": w.h, "w": w.w,
            "top": w.sides[0], "left": w.sides[2], "x_image": image, "x_channel": channel, "x_row": row,
            "x_column": column,
        },
        {"M": m, "TILES_LAST": w.layout == "nchw", "BLOCK": BLOCK},
        math.ceil(tiles * w.c / BLOCK),
    )  # fmt: skip


def _gather(w: Conv2d, m: int) -> Launch:
    element = ELEMENTS[w.dtype]
    image, channel, row, column = strides(w, w.k, w.out_h, w.out_w)
    (tiles_h, tiles_w), tiles = _grid(w, m), _tiles(w, m)
    return Launch(
        f"{KERNELS}:gather",
        {"sums": "fp32", "y": element, "bias": element, "residual": element},
        {
            "tiles": tiles, "tiles_h": tiles_h, "tiles_w": tiles_w, "filters": w.k, "out_h": w.out_h,
            "out_w": w.out_w, "y_image": image, "y_channel": channel, "y_row": row, "y_column": column,
        },
        {
            "M": m, "TILES_LAST": w.layout == "nchw", "BLOCK": BLOCK, "HAS_BIAS": w.bias,
            "HAS_RESIDUAL": w.residual, "ACTIVATION": w.activation,
        },
        math.ceil(tiles * w.k / BLOCK),
    )  # fmt: skip
