"""im2col as a torch user writes it: `F.unfold`, then a matrix product. The classical baseline, buffer and all."""

from __future__ import annotations

from autotune.dtypes import ITEMSIZE_BYTES
from autotune.kernels import Algorithm, Built, thread_counts
from autotune.kernels.framework import Framework
from autotune.kernels.framework_conv import (
    finish_in_place,
    format_of,
    padded_bytes,
    padding_of,
    pinned,
    weight_of,
)
from autotune.kernels.threads import limited
from autotune.ops.conv2d import Conv2d, conv
from autotune.space import SearchSpace

TYPE_CHECKING = False
if TYPE_CHECKING:
    import torch

    from autotune.kernels import Constants
    from autotune.ops import Kernel
    from autotune.space import Params
    from autotune.types import HardwareProfile, Workload

LARGEST_BUFFER_BYTES = 256 << 20


class UnfoldMm(Algorithm):
    """Each image's patches are written out as a matrix [c·r·s, out_h·out_w], which weight [k, c·r·s] multiplies.

    A 1x1 filter at stride 1 needs no patches: the image is the matrix, and nothing is written out. The patches are in
    NCHW order; a channels_last layer that has any is converted there and back.
    """

    name = "unfold_mm"
    ops = ("conv2d",)

    def shape_refusal(self, workload: Workload, hardware: HardwareProfile) -> str:
        w = conv(workload)
        if w.dtype == "i8":
            return "torch sums i8 products in i8, which overflows"
        if w.groups > 1:
            return f"with groups={w.groups} im2col is many small products, and the whole buffer all the same"
        buffer = _buffer_bytes(w)
        if buffer > LARGEST_BUFFER_BYTES:
            most = LARGEST_BUFFER_BYTES >> 20
            return f"its buffer of patches would take {buffer >> 20} MiB, and {most} MiB is the most it may"
        return ""

    def space(self, workload: Workload, hardware: HardwareProfile) -> SearchSpace:
        return SearchSpace({"threads": thread_counts(hardware)}, seeds=({"threads": hardware.allowed_cpus},))

    def build(self, workload: Workload, params: Params, constants: Constants) -> Built:
        w = conv(workload)
        threads = params["threads"]
        assert isinstance(threads, int)
        if w.is_empty:
            return Framework().build(w, {"threads": threads}, constants)
        weight, bias = weight_of(constants)
        rows = weight.reshape(w.k, w.depth).contiguous()
        itemsize = ITEMSIZE_BYTES[w.dtype]
        held = 0 if rows.data_ptr() == weight.data_ptr() else rows.numel() * itemsize
        if _is_product(w) and w.layout == "channels_last":
            return Built(limited(_on_pixels(w, rows, bias), threads), held)
        held += _buffer_bytes(w) + padded_bytes(w, itemsize)
        if w.layout == "channels_last":
            held += w.n * (w.c * w.h * w.w + w.k * w.out_h * w.out_w) * itemsize
        return Built(limited(_on_patches(w, rows, bias), threads), held)


def _is_product(w: Conv2d) -> bool:
    return w.is_pointwise and w.strides == (1, 1)


def _buffer_bytes(w: Conv2d) -> int:
    return 0 if _is_product(w) else w.n * w.depth * w.out_h * w.out_w * ITEMSIZE_BYTES[w.dtype]


def _on_pixels(w: Conv2d, rows: torch.Tensor, bias: torch.Tensor | None) -> Kernel:
    """1x1 in channels_last: pixels [n·h·w, c] times weightᵀ."""
    import torch.nn.functional as F

    n, c, h, width, k, activation = w.n, w.c, w.h, w.w, w.k, w.activation

    def call(x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        pixels = pinned(x, "channels_last").permute(0, 2, 3, 1).reshape(n * h * width, c)
        y = F.linear(pixels, rows, bias).view(n, h, width, k).permute(0, 3, 1, 2)
        return finish_in_place(y, activation, residual)

    return call


def _on_patches(w: Conv2d, rows: torch.Tensor, bias: torch.Tensor | None) -> Kernel:
    """weight [k, c·r·s] times the patches [c·r·s, out_h·out_w] of each image."""
    import torch
    import torch.nn.functional as F

    padding, pad = padding_of(w)
    own, product, column = format_of(w.layout), _is_product(w), None if bias is None else bias[:, None]
    filters = rows.expand(w.n, w.k, w.depth)
    shape = (w.n, w.k, w.out_h, w.out_w)

    def call(x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        x = x.contiguous()
        patches = (
            x.view(w.n, w.c, w.h * w.w) if product else F.unfold(pad(x), (w.r, w.s), w.dilations, padding, w.strides)
        )
        if w.n == 1:
            y = torch.mm(rows, patches[0]) if column is None else torch.addmm(column, rows, patches[0])
        else:
            y = torch.bmm(filters, patches) if column is None else torch.baddbmm(column, filters, patches)
        return finish_in_place(y.view(shape).contiguous(memory_format=own), w.activation, residual)

    return call
