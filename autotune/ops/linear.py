"""linear: y[m, n] = activation(x[m, k] · weight[n, k]ᵀ + bias[n]) with a constant weight."""

from __future__ import annotations

import math

from autotune.dtypes import ITEMSIZE_BYTES, TORCH_NAMES, product_tolerance
from autotune.errors import InvalidInput
from autotune.noun import noun
from autotune.ops import Op, typical_product
from autotune.ops.activations import ACTIVATIONS, apply_activation
from autotune.ops.constants import check_weight_and_bias
from autotune.types import StrideClass, Workload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import torch

LAYOUTS = tuple(layout.value for layout in StrideClass)


@noun
class Linear(Workload):
    """A linear layer: m rows of input (batch x sequence flattened), n outputs, k inputs.

    `bias`: whether there is one. `activation`: fused epilogue. `weight_layout`: stride class of the weight as
    the caller has it; packing kernels accept any, the framework's own speed depends on it.
    """

    op = "linear"
    choices = {"activation": ACTIVATIONS, "weight_layout": LAYOUTS}  # noqa: RUF012 - read-only

    m: int
    n: int
    k: int
    dtype: str = "f32"
    bias: bool = False
    activation: str = "none"
    weight_layout: str = "contiguous"

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        elements = self.m * self.k + self.n * self.k + self.m * self.n + (self.n if self.bias else 0)
        return elements * ITEMSIZE_BYTES[self.dtype]

    @property
    def input_bytes(self) -> int:
        return self.m * self.k * ITEMSIZE_BYTES[self.dtype]

    @property
    def output_bytes(self) -> int:
        return self.m * self.n * ITEMSIZE_BYTES[self.dtype]

    @classmethod
    def of(
        cls, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, activation: str = "none"
    ) -> Linear:
        """The workload of `F.linear(x, weight, bias)`: x [..., k], weight [n, k], bias [n]."""
        from autotune.ops.layout import classify

        names = {name: short for short, name in TORCH_NAMES.items()}
        dtype = str(weight.dtype).removeprefix("torch.")
        if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[1]:
            found = f"{list(x.shape)} and {list(weight.shape)}"
            raise InvalidInput(f"linear needs x [..., k] and weight [n, k], not {found}")
        if dtype not in names:
            raise InvalidInput(f"dtype {dtype} is not one of {', '.join(TORCH_NAMES.values())}")
        n, k = weight.shape
        return cls(math.prod(x.shape[:-1]), n, k, names[dtype], bias is not None, activation, classify(weight).value)


class LinearOp(Op):
    name = "linear"
    workload = Linear
    constant_names = ("weight", "bias")

    def constants(self, workload: Workload, seed: int) -> dict[str, torch.Tensor | None]:
        import torch

        from autotune.ops.layout import lay_out

        w = _linear(workload)
        random = torch.Generator().manual_seed(2 * seed)
        dtype = getattr(torch, TORCH_NAMES[w.dtype])
        weight = torch.randn((w.n, w.k), generator=random).mul_(1 / max(w.k, 1) ** 0.5).to(dtype)
        bias = torch.randn((w.n,), generator=random).to(dtype) if w.bias else None
        return {"weight": lay_out(weight, w.weight_layout), "bias": bias}

    def inputs(self, workload: Workload, seed: int) -> tuple[torch.Tensor, ...]:
        import torch

        w = _linear(workload)
        random = torch.Generator().manual_seed(2 * seed + 1)
        return (torch.randn((w.m, w.k), generator=random).to(getattr(torch, TORCH_NAMES[w.dtype])),)

    def reference(
        self, workload: Workload, constants: dict[str, torch.Tensor | None], inputs: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        import torch

        weight, bias = constants["weight"], constants["bias"]
        assert weight is not None
        exact = inputs[0].to(torch.float64) @ weight.to(torch.float64).T
        if bias is not None:
            exact += bias.to(torch.float64)
        return apply_activation(exact, _linear(workload).activation)

    def magnitude(
        self, workload: Workload, constants: dict[str, torch.Tensor | None], inputs: tuple[torch.Tensor, ...]
    ) -> float:
        weight = constants["weight"]
        assert weight is not None
        return typical_product(inputs[0], weight, _linear(workload).k)

    def check_constants(self, workload: Workload, constants: dict[str, Any]) -> None:
        w = _linear(workload)
        check_weight_and_bias(w.spec, constants, (w.n, w.k), w.n, w.dtype, w.bias)

    def acceptor(self, workload: Workload) -> Callable[..., bool]:
        import torch

        w = _linear(workload)
        k, dtype, grad_enabled = w.k, getattr(torch, TORCH_NAMES[w.dtype]), torch.is_grad_enabled

        def accepts(x: torch.Tensor) -> bool:
            return x.dtype is dtype and x.dim() > 0 and x.shape[-1] == k and not (x.requires_grad and grad_enabled())

        return accepts

    def tolerance(self, workload: Workload) -> float:
        w = _linear(workload)
        return product_tolerance(w.k, w.dtype)


def _linear(workload: Workload) -> Linear:
    assert isinstance(workload, Linear)
    return workload
