"""The dynamic operands of a convolution as its Triton kernels take them."""

from __future__ import annotations

from autotune.ops.conv2d import Conv2d, in_layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    import torch


def taken(
    w: Conv2d, x: torch.Tensor, residual: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """Image and residual in the workload's layout, copied only where they are not."""
    return _plain(w, x), None if residual is None else _plain(w, residual)


def _plain(w: Conv2d, tensor: torch.Tensor) -> torch.Tensor:
    import torch

    tensor = tensor.detach().resolve_neg()
    stored = torch.channels_last if w.layout == "channels_last" else torch.contiguous_format
    return tensor if tensor.is_contiguous(memory_format=stored) else in_layout(tensor, w.layout)
