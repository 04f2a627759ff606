"""The check that ops with a constant weight and an optional bias make of what a user gives them."""

from __future__ import annotations

from autotune.dtypes import TORCH_NAMES
from autotune.errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def check_weight_and_bias(
    spec: str, constants: dict[str, Any], shape: tuple[int, ...], outputs: int, dtype: str, has_bias: bool
) -> None:
    """Raises `InvalidInput`, naming the workload, unless weight has `shape` and bias has `outputs` values."""
    import torch

    weight, bias = constants.get("weight"), constants.get("bias")
    want = getattr(torch, TORCH_NAMES[dtype])
    if not isinstance(weight, torch.Tensor) or tuple(weight.shape) != shape:
        found = list(weight.shape) if isinstance(weight, torch.Tensor) else type(weight).__name__
        raise InvalidInput(f"{spec} needs a weight of shape {list(shape)}, not {found}")
    if weight.dtype != want:
        raise InvalidInput(f"{spec} needs a {dtype} weight, not {weight.dtype}")
    if weight.device.type != "cpu":
        raise InvalidInput(f"{spec} was looked up for the CPU but its weight is on {weight.device}")
    if (bias is not None) != has_bias:
        wrong = "needs a bias" if has_bias else "has no bias"
        raise InvalidInput(f"{spec} {wrong}: write bias={int(not has_bias)} in the workload if that is meant")
    if bias is not None and (tuple(bias.shape) != (outputs,) or bias.dtype != want):
        raise InvalidInput(f"{spec} needs a {dtype} bias of shape [{outputs}], not {bias.dtype} {list(bias.shape)}")
