"""Matrices laid out as a `StrideClass` says, and the class of a given one."""

from __future__ import annotations

from autotune.types import StrideClass

TYPE_CHECKING = False
if TYPE_CHECKING:
    import torch


def classify(matrix: torch.Tensor) -> StrideClass:
    """The stride class of the last two dimensions of `matrix`."""
    if any(stride == 0 and size > 1 for size, stride in zip(matrix.shape, matrix.stride(), strict=True)):
        return StrideClass.EXPANDED
    if matrix.is_contiguous():
        return StrideClass.CONTIGUOUS
    if matrix.dim() >= 2 and matrix.transpose(-1, -2).is_contiguous():
        return StrideClass.TRANSPOSED
    return StrideClass.STRIDED


def lay_out(matrix: torch.Tensor, layout: str) -> torch.Tensor:
    """A copy of contiguous `matrix` [..., rows, cols] with the wanted stride class.

    Equal in value, except that an expanded matrix repeats its first row, as an expanded operand does.
    """
    import torch

    match StrideClass(layout):
        case StrideClass.CONTIGUOUS:
            return matrix.contiguous()
        case StrideClass.TRANSPOSED:
            return matrix.transpose(-1, -2).contiguous().transpose(-1, -2)
        case StrideClass.STRIDED:
            *batch, rows, cols = matrix.shape
            wide = torch.empty((*batch, rows, 2 * cols), dtype=matrix.dtype)
            view = wide[..., ::2]
            view.copy_(matrix)
            return view
        case StrideClass.EXPANDED:
            return matrix[..., :1, :].expand(matrix.shape)
