"""What the project's own convolution kernels share around their C++: types, activations, loading and the call."""

from __future__ import annotations

import ctypes
from functools import cache

from autotune.errors import Unavailable
from autotune.kernels.native import REALS
from autotune.ops.conv2d import Conv2d, in_layout, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    import torch

    from autotune.ops import Kernel

ACTIVATION_CODES = {"none": 0, "relu": 1, "silu": 4, "relu6": 5, "hardswish": 6}
"""The enum Activation of cpp/tile.hpp."""


@cache
def load(path: str) -> ctypes.CDLL:
    """The compiled convolution, its functions typed: convolve(plan, x, residual, y), scratch_size(plan) per thread."""
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise Unavailable(f"the compiled kernel {path} does not load: {error}") from error
    pointer = ctypes.c_void_p
    library.scratch_size.argtypes, library.scratch_size.restype = (pointer,), ctypes.c_int64
    library.convolve.argtypes, library.convolve.restype = (pointer, pointer, pointer, pointer), ctypes.c_int
    return library


def kernel(
    w: Conv2d,
    library: ctypes.CDLL,
    plan: ctypes.Structure,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    keep: tuple[object, ...],
) -> Kernel:
    """The callable: x [n, c, h, w] in any memory format, and the residual, to a fresh result in the workload's layout.

    `keep` lives as long as the kernel: what the plan points to. Without memory for scratch, torch takes over.
    """
    import torch

    layout = w.layout
    stored = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    shape = (w.n, w.k, w.out_h, w.out_w)
    address = ctypes.addressof(plan)
    run, empty = library.convolve, torch.empty

    def call(x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        if x.is_neg() or not x.is_contiguous(memory_format=stored):  # lazily negated memory has the other sign
            x = in_layout(x.resolve_neg(), layout)
        added = 0
        if residual is not None:
            if residual.is_neg() or not residual.is_contiguous(memory_format=stored):
                residual = in_layout(residual.resolve_neg(), layout)
            added = residual.data_ptr()
        y = empty(shape, dtype=x.dtype, memory_format=stored)
        if run(address, x.data_ptr(), added, y.data_ptr()):
            return in_layout(plain(w, weight, bias, x, residual), layout)
        return y

    call._keep = (plan, *keep)  # type: ignore[attr-defined]  # the kernel holds their addresses
    return call


def unsupported(kernel: str, w: Conv2d) -> str:
    """Why none of these kernels can compute that here, whatever its shape; "" when they can. `kernel`: its name."""
    if w.dtype not in REALS:
        return f"the {kernel} kernel computes f32 and f64, not {w.dtype}"
    return ""
