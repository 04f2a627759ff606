"""torch's convolution in the other memory format than the caller's: converted there and back, both counted."""

from __future__ import annotations

from autotune.dtypes import ITEMSIZE_BYTES
from autotune.kernels import Algorithm, Built, thread_counts
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


class TorchOtherLayout(Algorithm):
    """An NCHW layer computed in channels_last, or the other way round, by `F.conv2d`.

    The weight is kept in that format. Bias is added by the convolution; the residual and the activation
    come after the result is back in the caller's layout, in place.
    """

    name = "torch_other_layout"
    ops = ("conv2d",)

    def shape_refusal(self, workload: Workload, hardware: HardwareProfile) -> str:
        w = conv(workload)
        if w.dtype == "i8":
            return "torch sums i8 products in i8, which overflows"
        return reads_past_the_image(w, _other(w))

    def space(self, workload: Workload, hardware: HardwareProfile) -> SearchSpace:
        return SearchSpace({"threads": thread_counts(hardware)}, seeds=({"threads": hardware.allowed_cpus},))

    def build(self, workload: Workload, params: Params, constants: Constants) -> Built:
        import torch.nn.functional as F

        w = conv(workload)
        threads = params["threads"]
        assert isinstance(threads, int)
        other = _other(w)
        weight, bias = weight_of(constants)
        weight = pinned(weight, other)
        own = format_of(w.layout)
        padding, pad = padding_of(w)
        strides, dilations, groups, activation = w.strides, w.dilations, w.groups, w.activation

        def call(x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
            y = F.conv2d(pad(pinned(x, other)), weight, bias, strides, padding, dilations, groups)
            return finish_in_place(y.contiguous(memory_format=own), activation, residual)

        itemsize = ITEMSIZE_BYTES[w.dtype]
        images = w.n * (w.c * w.h * w.w + w.k * w.out_h * w.out_w) * itemsize  # both in the other layout
        return Built(limited(call, threads), weight.numel() * itemsize + images + padded_bytes(w, itemsize))


def _other(w: Conv2d) -> str:
    return "nchw" if w.layout == "channels_last" else "channels_last"
