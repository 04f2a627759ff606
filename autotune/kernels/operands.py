"""What linear kernels share around their product: constants, rows of input, and the activation."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from autotune.kernels import Constants
    from autotune.ops import Kernel
    from autotune.ops.linear import Linear


def weight_and_bias(constants: Constants) -> tuple[torch.Tensor, torch.Tensor | None]:
    """weight [n, k] in its own layout and bias [n], contiguous, or None; both without autograd history."""
    weight, bias = constants["weight"], constants["bias"]
    assert weight is not None
    return weight.detach(), None if bias is None else bias.detach().resolve_neg().contiguous()


def activate_in_place(value: torch.Tensor, activation: str) -> torch.Tensor:
    """`activation` of a fresh `value`, written over it: no second result to allocate and fill."""
    import torch
    import torch.nn.functional as F

    match activation:
        case "none":
            return value
        case "relu":
            return torch.relu_(value)
        case "gelu":
            return torch.ops.aten.gelu_(value)  # type: ignore[no-any-return]  # operators are untyped
        case "gelu_tanh":
            return torch.ops.aten.gelu_(value, approximate="tanh")  # type: ignore[no-any-return]  # likewise
        case "silu":
            return F.silu(value, inplace=True)
    raise ValueError(f"unknown activation {activation!r}")


def on_rows(product: Callable[[torch.Tensor], torch.Tensor], workload: Linear, activation: str) -> Kernel:
    """A kernel for x [..., k] from `product`, which takes rows [m, k], unit stride along k, to fresh [m, n].

    Rows may be any distance apart, 0 included (an expanded operand). `activation` is what the product leaves to do.
    """
    n, k = workload.n, workload.k

    def call(x: torch.Tensor) -> torch.Tensor:
        rows = x.detach().reshape(-1, k)
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        result = activate_in_place(product(rows), activation)
        return result if x.dim() == 2 else result.view(*x.shape[:-1], n)

    return call
