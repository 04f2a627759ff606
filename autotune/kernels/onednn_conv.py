"""oneDNN's convolution on a weight reordered once, with its epilogue inside, through torch's own binding."""

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
    reads_past_the_image,
    weight_of,
)
from autotune.kernels.threads import limited
from autotune.ops.conv2d import Conv2d, conv
from autotune.space import SearchSpace

TYPE_CHECKING = False
if TYPE_CHECKING:
    import torch

    from autotune.kernels import Constants
    from autotune.space import Params
    from autotune.types import HardwareProfile, Workload

POST_OPS = {"silu": "swish", "hardswish": "hardswish"}
"""Activation → torch's name of oneDNN's post-op. ReLU and ReLU6 are not among them: oneDNN's turn NaN into 0."""


class OneDnnConv(Algorithm):
    """`mkldnn::_convolution_pointwise`: f32 everywhere oneDNN runs; bf16 and f16 where the silicon has them.

    - `weight`: "packed" is reordered at build time to what oneDNN prefers for this very workload. oneDNN then
      works in channels_last and returns it, so an NCHW layer pays two conversions. "plain" leaves the weight and
      the caller's layout as they are; it differs from torch's default only in what is fused, and is left out
      where nothing is.

    SiLU and Hardswish are fused, and so is the residual where it lies in the layout oneDNN works in; an activation
    after a residual, ReLU and ReLU6 are applied in place.
    """

    name = "onednn_conv"
    ops = ("conv2d",)

    def shape_refusal(self, workload: Workload, hardware: HardwareProfile) -> str:
        w = conv(workload)
        dtype = w.dtype
        if dtype not in ("f32", "bf16", "f16"):
            return f"oneDNN's convolution takes f32, bf16 and f16, not {dtype}"
        return reads_past_the_image(w, "channels_last")

    def software_refusal(self, workload: Workload) -> str:
        import torch

        dtype = workload.dims()["dtype"]
        if not torch._C._has_mkldnn:
            return "this build of torch has no oneDNN"
        if dtype == "bf16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return "oneDNN needs AVX-512 or AVX-NE-CONVERT (or bf16 instructions on Arm) for bf16"
        if dtype == "f16" and not torch.ops.mkldnn._is_mkldnn_fp16_supported():
            return "oneDNN needs AVX512-FP16 or AVX-NE-CONVERT for f16"
        return ""

    def space(self, workload: Workload, hardware: HardwareProfile) -> SearchSpace:
        w = conv(workload)
        weights = ("packed", "plain") if w.residual or w.activation in POST_OPS else ("packed",)
        return SearchSpace(
            {"weight": weights, "threads": thread_counts(hardware)},
            seeds=tuple({"weight": weight, "threads": hardware.allowed_cpus} for weight in weights),
        )

    def build(self, workload: Workload, params: Params, constants: Constants) -> Built:
        w = conv(workload)
        threads = params["threads"]
        assert isinstance(threads, int)
        if w.is_empty:
            return Framework().build(w, {"threads": threads}, constants)
        return _build(w, params["weight"] == "packed", threads, constants)


def _build(w: Conv2d, packed: bool, threads: int, constants: Constants) -> Built:
    import torch

    weight, bias = weight_of(constants)
    padding, pad = padding_of(w)
    itemsize = ITEMSIZE_BYTES[w.dtype]
    copied = padded_bytes(w, itemsize)
    layout = "channels_last" if packed else w.layout  # oneDNN works in
    if packed:
        reorder = limited(torch.ops.mkldnn._reorder_convolution_weight, threads)
        size = (w.n, w.c, w.h, w.w) if not copied else (w.n, w.c, w.h + sum(w.sides[:2]), w.w + sum(w.sides[2:]))
        weight = reorder(weight.contiguous(), padding, w.strides, w.dilations, w.groups, size)
        copied += int(torch.ops.mkldnn._nbytes(weight))
        if w.layout != layout:
            copied += w.n * (w.c * w.h * w.w + w.k * w.out_h * w.out_w) * itemsize
    else:
        kept = pinned(weight, w.layout)
        copied += 0 if kept.data_ptr() == weight.data_ptr() else kept.numel() * itemsize
        weight = kept
    own = format_of(w.layout)
    adds = w.residual and w.layout == layout
    post_op = POST_OPS.get(w.activation, "none") if not w.residual else "none"
    remaining = w.activation if post_op == "none" else "none"
    plain, with_add = (
        torch.ops.mkldnn._convolution_pointwise.default,
        torch.ops.mkldnn._convolution_pointwise.binary,
    )
    shape = (padding, w.strides, w.dilations, w.groups)

    def call(x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        x = pad(pinned(x, layout))
        if adds:
            y = with_add(x, residual, weight, bias, *shape, "add", 1.0, None, [], None)
            return finish_in_place(y.contiguous(memory_format=own), remaining)
        y = plain(x, weight, bias, *shape, post_op, [], "")
        return finish_in_place(y.contiguous(memory_format=own), remaining, residual)

    return Built(limited(call, threads), copied)
