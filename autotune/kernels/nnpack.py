"""NNPACK's convolution through torch's own binding: fast transforms on large NCHW images."""

from __future__ import annotations

import math

from autotune.kernels import Algorithm, Built
from autotune.kernels.framework import Framework
from autotune.kernels.framework_conv import (
    finish_in_place,
    format_of,
    padded_bytes,
    padding_of,
    weight_of,
)
from autotune.ops.conv2d import Conv2d, conv
from autotune.space import SearchSpace

TYPE_CHECKING = False
if TYPE_CHECKING:
    import torch

    from autotune.kernels import Constants
    from autotune.space import Params
    from autotune.types import HardwareProfile, Workload

LARGEST_FILTER = 16
"""Its largest transform has 16x16 points."""


class NnPack(Algorithm):
    """`torch._nnpack_spatial_convolution`: f32, NCHW, no groups, no dilation.

    NNPACK chooses: Winograd F(6x6,3x3) for 3x3 at stride 1, FFT of 8x8 or 16x16 tiles for other filters, a
    product of pixels for 1x1, and an implicit product where a stride is above 1. It transforms the weight anew in each
    call. It has a pool of threads of its own, one per CPU, made at its first call, so there is no thread count
    to tune.
    """

    name = "nnpack"
    ops = ("conv2d",)

    def shape_refusal(self, workload: Workload, hardware: HardwareProfile) -> str:
        w = conv(workload)
        if w.dtype != "f32":
            return f"NNPACK computes f32 only, not {w.dtype}"
        if w.layout != "nchw":
            return "NNPACK reads and writes NCHW only"
        if w.groups > 1:
            return f"NNPACK has no grouped convolution, and groups={w.groups}"
        if w.dilations != (1, 1):
            return "NNPACK has no dilated convolution"
        if max(w.r, w.s) > LARGEST_FILTER:
            return f"NNPACK's filters have at most {LARGEST_FILTER}x{LARGEST_FILTER} pixels, not {w.r}x{w.s}"
        (vertical, horizontal), _ = padding_of(w)
        if vertical >= w.r or horizontal >= w.s:
            return "NNPACK's padding must be smaller than the filter"
        return ""

    def software_refusal(self, workload: Workload) -> str:
        import torch

        if not torch._nnpack_available():  # which also initialises it
            return "this build of torch has no NNPACK, or NNPACK does not know this CPU"
        return ""

    def space(self, workload: Workload, hardware: HardwareProfile) -> SearchSpace:
        return SearchSpace({}, seeds=({},))

    def error_bound(self, workload: Workload) -> float:
        """F(6x6,3x3) multiplies by numbers up to 21/4 and back: measured at 2 to 5 times the rounding of the sum."""
        return 16 * super().error_bound(workload)

    def build(self, workload: Workload, params: Params, constants: Constants) -> Built:
        import torch

        w = conv(workload)
        if w.is_empty:
            return Framework().build(w, {}, constants)
        torch._nnpack_available()  # initialises it: another process may have asked `refusal`
        given, bias = weight_of(constants)
        weight = given.contiguous()
        padding, pad = padding_of(w)
        strides, activation, own = w.strides, w.activation, format_of(w.layout)
        run = torch._nnpack_spatial_convolution

        def call(x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
            y = run(pad(x.contiguous()), weight, bias, padding, strides)
            return finish_in_place(y.contiguous(memory_format=own), activation, residual)

        copied = 0 if weight.data_ptr() == given.data_ptr() else weight.numel() * 4
        return Built(call, copied + padded_bytes(w, 4) + _workspace_bytes(w))


def _workspace_bytes(w: Conv2d) -> int:
    """At most what NNPACK keeps for its transforms: of all filters, and of the tiles of image and result.

    It does not tell; from its sources, for the tile it chooses, not counting that it works on a part of the tiles.
    """
    if w.strides != (1, 1) or w.r == w.s == 1:
        return (w.c * w.r * w.s + w.k) * w.out_h * w.out_w * 4
    tile = 8 if max(w.r, w.s) <= 5 else 16
    tiles = math.ceil(w.out_h / (tile - w.r + 1)) * math.ceil(w.out_w / (tile - w.s + 1)) * w.n
    return tile * tile * 4 * (w.k * w.c + tiles * (w.c + w.k))
