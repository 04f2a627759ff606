"""Activations that an epilogue may carry, in f64 for references and through torch for defaults."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import torch

ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")


def apply_activation(value: torch.Tensor, activation: str) -> torch.Tensor:
    """`activation` of `value` by the framework's own function, in value's dtype."""
    import torch.nn.functional as F

    match activation:
        case "none":
            return value
        case "relu":
            return F.relu(value)
        case "gelu":
            return F.gelu(value)
        case "gelu_tanh":
            return F.gelu(value, approximate="tanh")
        case "silu":
            return F.silu(value)
    raise ValueError(f"unknown activation {activation!r}")
