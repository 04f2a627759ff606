"""conv2d through torch: the default, and what the kernels that call other libraries share around their convolution.

A tensor with one channel, or with one pixel, is contiguous in both layouts at once, and torch guesses which one is
meant from its strides. `pinned` writes the strides of the layout that is meant, so that nothing is left to guess.
"""

from __future__ import annotations

from autotune.kernels import Built
from autotune.kernels.operands import weight_and_bias
from autotune.ops.conv2d import plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from autotune.kernels import Constants
    from autotune.ops.conv2d import Conv2d


def format_of(layout: str) -> torch.memory_format:
    """torch's name of a workload's layout."""
    import torch

    return torch.channels_last if layout == "channels_last" else torch.contiguous_format


def pinned(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """[n, c, h, w] in `layout`, with that layout's own strides even where others would do as well."""
    tensor = tensor.contiguous(memory_format=format_of(layout))
    _, c, h, w = tensor.shape
    strides = (c * h * w, 1, w * c, c) if layout == "channels_last" else (c * h * w, h * w, w, 1)
    return tensor if tensor.stride() == strides or not tensor.numel() else tensor.as_strided(tensor.shape, strides)


def padding_of(w: Conv2d) -> tuple[tuple[int, int], Callable[[torch.Tensor], torch.Tensor]]:
    """What a convolution takes as its (vertical, horizontal) padding, and what is done to the image before it.

    Sides that differ are padded by hand, since torch's bindings take one number for both.
    """
    import torch.nn.functional as F

    top, bottom, left, right = w.sides
    if top == bottom and left == right:
        return (top, left), lambda x: x
    return (0, 0), lambda x: F.pad(x, (left, right, top, bottom))


def padded_bytes(w: Conv2d, itemsize_bytes: int) -> int:
    """Size of the copy of the image that `padding_of` makes where the sides differ."""
    top, bottom, left, right = w.sides
    if top == bottom and left == right:
        return 0
    return w.n * w.c * (w.h + top + bottom) * (w.w + left + right) * itemsize_bytes


def reads_past_the_image(w: Conv2d, layout: str) -> str:
    """Why torch's own convolution is wrong in that layout, in one sentence; "" where it is right.

    Found by comparing random shapes with f64 (torch 2.13, oneDNN 3.12, AVX-512): uninitialised memory in the result.
    """
    left_over = w.w + w.sides[2] + w.sides[3] > w.extent_w
    several = w.groups == w.c < w.k
    if w.dtype in ("bf16", "f16") and layout == "channels_last" and several and w.out_w == 1 and left_over:
        return "oneDNN reads past the image in 16 bits where channels have several filters and the result one column"
    return ""


def finish_in_place(y: torch.Tensor, activation: str, residual: torch.Tensor | None = None) -> torch.Tensor:
    """Adds the residual and activates, both written over a fresh `y`."""
    import torch
    import torch.nn.functional as F

    if residual is not None:
        y.add_(residual)
    match activation:
        case "none":
            return y
        case "relu":
            return torch.relu_(y)
        case "relu6":
            return F.relu6(y, inplace=True)
        case "silu":
            return F.silu(y, inplace=True)
        case "hardswish":
            return F.hardswish(y, inplace=True)
    raise ValueError(f"unknown activation {activation!r}")


def weight_of(constants: Constants) -> tuple[torch.Tensor, torch.Tensor | None]:
    """weight [k, c / groups, r, s] as the caller has it and bias [k] or None, without history or lazy signs."""
    weight, bias = weight_and_bias(constants)
    return weight.resolve_neg(), bias


def default(w: Conv2d, constants: Constants) -> Built:
    """`ops.conv2d.plain`, and the result in the workload's layout whatever torch chose.

    An NCHW layer takes its weight in NCHW, too: one in channels_last would turn the whole layer around. It takes
    images of any size and batch, and autograd, for it also stands in for tuned kernels.
    """
    given, bias = weight_of(constants)
    weight = given.contiguous() if w.layout == "nchw" else given
    wanted, one_channel, layout = format_of(w.layout), w.c == 1, w.layout

    def call(x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        if one_channel and x.dim() == 4:
            x = pinned(x, layout)
        y = plain(w, weight, bias, x, residual)
        return y if y.dim() != 4 or y.is_contiguous(memory_format=wanted) else y.contiguous(memory_format=wanted)

    copied = 0 if weight.data_ptr() == given.data_ptr() else weight.numel() * weight.element_size()
    return Built(call, copied + padded_bytes(w, weight.element_size()))
