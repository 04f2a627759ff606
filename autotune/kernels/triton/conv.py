"""triton_conv: conv2d on GPUs as implicit GEMM; see conv_kernel.py for the algorithm."""

from __future__ import annotations

import math

from autotune import paths
from autotune.kernels import Built, Constants
from autotune.kernels.operands import weight_and_bias
from autotune.kernels.triton import ELEMENTS, Launch, Needs, TritonAlgorithm
from autotune.kernels.triton.conv_operands import taken
from autotune.kernels.triton.dot import DotTile, dot_needs
from autotune.kernels.triton.gemm_space import Tile, dtype_refusal, product_space
from autotune.ops.conv2d import Conv2d, conv

TYPE_CHECKING = False
if TYPE_CHECKING:
    import torch

    from autotune.space import Params, SearchSpace
    from autotune.types import HardwareProfile, Workload

KERNELS = "autotune.kernels.triton.conv_kernel"
FINISH_BLOCK = 1024
MOST_INDEX = 2**31 - 4096
"""Pixels and depth are counted in 32 bits, and a tile may reach beyond."""


class TritonConv(TritonAlgorithm):
    """Any filter, stride, dilation, padding and groups, in both layouts; bias, residual and activation fused.

    Parameters as of `triton_gemm`: `tile` is (pixels, output channels, depth), and `split` cuts the depth.
    """

    name = "triton_conv"
    ops = ("conv2d",)
    sources = tuple(paths.package_file("kernels", "triton", f"{name}_kernel.py") for name in ("conv", "tile"))

    def workload_refusal(self, workload: Workload, hardware: HardwareProfile) -> str:
        return refusal(conv(workload), hardware.arch)

    def space(self, workload: Workload, hardware: HardwareProfile) -> SearchSpace:
        w = conv(workload)
        fits = self.fits(workload, hardware.arch)
        return product_space((pixels(w), w.k // w.groups, w.depth), w.groups, w.dtype, hardware, fits)

    def needs(self, workload: Workload, params: Params, arch: str) -> Needs:
        w, tile = conv(workload), Tile.of(params)
        channels, filters = w.c // w.groups, w.k // w.groups
        lines = w.layout == "channels_last" and channels % 16 == 0 and w.c % 16 == 0
        dot = DotTile(
            tile.m, tile.n, tile.k, w.dtype, tile.precision, 16 if lines else 1, 16 if filters % 16 == 0 else 1
        )
        needs = dot_needs(dot, tile.warps, tile.stages, arch)
        # with one product per sum, known when compiling, there is no loop to pipeline
        return needs if w.depth > 1 else Needs(0, needs.threads, needs.registers)

    def launches(self, workload: Workload, params: Params) -> tuple[Launch, ...]:
        w, tile = conv(workload), Tile.of(params)
        return (_product(w, tile), *([_finish(w, tile)] if tile.split > 1 else []))

    def build(self, workload: Workload, params: Params, constants: Constants) -> Built:
        import torch

        from autotune.kernels.triton.running import bind

        w, tile = conv(workload), Tile.of(params)
        launches = self.launches(workload, params)
        product, finish = bind(launches[0]), bind(launches[1]) if tile.split > 1 else None
        weight, bias = weight_and_bias(constants)
        filters, channels = w.k // w.groups, w.c // w.groups
        packed = weight.resolve_neg().reshape(w.groups, filters, channels, w.r, w.s).permute(0, 3, 4, 2, 1).contiguous()
        scalars, blocks = launches[0].scalars, launches[0].blocks
        count, finish_blocks = int(launches[-1].scalars.get("count", 0)), launches[-1].blocks
        shape, stored = (w.n, w.k, w.out_h, w.out_w), _stored(w)

        def call(x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
            x, added = taken(w, x, residual)
            y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=stored)
            extra = {"bias": packed if bias is None else bias, "residual": y if added is None else added}
            if finish is None:
                product(blocks, x=x, weight=packed, y=y, **extra, **scalars)
                return y
            partial = torch.empty((tile.split, count), dtype=torch.float32, device=x.device)
            product(blocks, x=x, weight=packed, y=partial, **extra, **scalars)
            finish(finish_blocks, partial=partial, y=y, **extra, **launches[1].scalars)
            return y

        held = packed.numel() * packed.element_size()
        return Built(call, held + (4 * tile.split * count if tile.split > 1 else 0))


def refusal(w: Conv2d, arch: str) -> str:
    """What no kernel here takes, whatever its algorithm."""
    if max(pixels(w), w.depth, w.k, w.n * w.h * w.w) > MOST_INDEX:
        return "the Triton convolutions count pixels, depth and channels in 32 bits"
    return dtype_refusal(w.dtype, arch)


def pixels(w: Conv2d) -> int:
    """Of all results."""
    return w.n * w.out_h * w.out_w


def strides(w: Conv2d, channels: int, h: int, width: int) -> tuple[int, int, int, int]:
    """(image, channel, row, column) strides of a tensor [n, channels, h, width] in the workload's layout."""
    if w.layout == "channels_last":
        return h * width * channels, 1, width * channels, channels
    return channels * h * width, h * width, width, 1


def _stored(w: Conv2d) -> torch.memory_format:
    import torch

    return torch.channels_last if w.layout == "channels_last" else torch.contiguous_format


def _product(w: Conv2d, tile: Tile) -> Launch:
    element, whole = ELEMENTS[w.dtype], tile.split == 1
    x, y = strides(w, w.c, w.h, w.w), strides(w, w.k, w.out_h, w.out_w)
    tiles = math.ceil(pixels(w) / tile.m) * math.ceil(w.k // w.groups / tile.n)
    return Launch(
        f"{KERNELS}:conv",
        {"x": element, "weight": element, "y": element if whole else "fp32", "bias": element, "residual": element},
        {
            "pixels": pixels(w), "out_h": w.out_h, "out_w": w.out_w, "h": w.h, "w": w.w, "channels": w.c // w.groups,
            "filters": w.k // w.groups, "depth": w.depth, "x_image": x[0], "x_channel": x[1], "x_row": x[2],
            "x_column": x[3], "y_part": pixels(w) * w.k, "y_image": y[0], "y_pixel": y[3], "y_channel": y[1],
            "stride_h": w.strides[0], "stride_w": w.strides[1], "dilation_h": w.dilations[0],
            "dilation_w": w.dilations[1], "top": w.sides[0], "left": w.sides[2],
        },
        {
            "FILTER_W": w.s, "GROUPS": w.groups, "BLOCK_M": tile.m, "BLOCK_N": tile.n, "BLOCK_K": tile.k,
            "GROUP_M": tile.group, "SPLIT_K": tile.split, "EVEN_K": w.depth % (tile.k * tile.split) == 0,
            "HAS_BIAS": whole and w.bias, "HAS_RESIDUAL": whole and w.residual,
            "ACTIVATION": w.activation if whole else "none", "PRECISION": tile.precision,
        },
        tiles * w.groups * tile.split,
        tile.warps,
        tile.stages,
    )  # fmt: skip


def _finish(w: Conv2d, tile: Tile) -> Launch:
    element, count = ELEMENTS[w.dtype], pixels(w) * w.k
    return Launch(
        f"{KERNELS}:finish",
        {"partial": "fp32", "y": element, "bias": element, "residual": element},
        {
            "count": count, "per_channel": 1 if w.layout == "channels_last" else w.out_h * w.out_w, "filters": w.k,
        },
        {
            "SPLIT_K": tile.split, "BLOCK": FINISH_BLOCK, "HAS_BIAS": w.bias, "HAS_RESIDUAL": w.residual,
            "ACTIVATION": w.activation,
        },
        math.ceil(count / FINISH_BLOCK),
    )  # fmt: skip
