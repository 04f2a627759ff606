"""gemm: c[batch, m, n] = a[batch, m, k] · b[batch, k, n], both operands dynamic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from autotune.dtypes import ITEMSIZE_BYTES, TORCH_NAMES, product_tolerance
from autotune.errors import InvalidInput
from autotune.ops import Op
from autotune.types import StrideClass, Workload

if TYPE_CHECKING:
    import torch

LAYOUTS = tuple(layout.value for layout in StrideClass)


@dataclass(frozen=True, eq=False)
class Gemm(Workload):
    """A matrix product, batched when `batch` > 1. Layouts are the stride classes of the last two dimensions."""

    op: ClassVar[str] = "gemm"
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"a_layout": LAYOUTS, "b_layout": LAYOUTS}

    m: int
    n: int
    k: int
    batch: int = 1
    dtype: str = "f32"
    a_layout: str = "contiguous"
    b_layout: str = "contiguous"

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        return self.batch * (self.m * self.k + self.k * self.n + self.m * self.n) * ITEMSIZE_BYTES[self.dtype]

    @classmethod
    def of(cls, a: torch.Tensor, b: torch.Tensor) -> Gemm:
        """The workload of `a @ b`: [m, k] by [k, n], or [batch, m, k] by [batch, k, n]."""
        from autotune.ops.layout import classify

        names = {name: short for short, name in TORCH_NAMES.items()}
        dtype = str(a.dtype).removeprefix("torch.")
        fits = a.dim() == b.dim() and a.dim() in (2, 3) and a.shape[:-2] == b.shape[:-2] and a.shape[-1] == b.shape[-2]
        if not fits or a.dtype != b.dtype or dtype not in names:
            found = f"{list(a.shape)} {a.dtype} and {list(b.shape)} {b.dtype}"
            raise InvalidInput(f"gemm needs a [batch, m, k] and b [batch, k, n] of one dtype, not {found}")
        batch = a.shape[0] if a.dim() == 3 else 1
        return cls(a.shape[-2], b.shape[-1], a.shape[-1], batch, names[dtype], classify(a).value, classify(b).value)


class GemmOp(Op):
    name = "gemm"
    workload = Gemm

    def constants(self, workload: Workload, seed: int) -> dict[str, torch.Tensor | None]:
        return {}

    def inputs(self, workload: Workload, seed: int) -> tuple[torch.Tensor, ...]:
        import torch

        from autotune.ops.layout import lay_out

        w = _gemm(workload)
        random = torch.Generator().manual_seed(seed)
        dtype = getattr(torch, TORCH_NAMES[w.dtype])
        lead = (w.batch,) if w.batch != 1 else ()
        a = torch.randn((*lead, w.m, w.k), generator=random).mul_(1 / max(w.k, 1) ** 0.5).to(dtype)
        b = torch.randn((*lead, w.k, w.n), generator=random).to(dtype)
        return lay_out(a, w.a_layout), lay_out(b, w.b_layout)

    def reference(
        self, workload: Workload, constants: dict[str, torch.Tensor | None], inputs: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        import torch

        a, b = inputs
        return a.to(torch.float64) @ b.to(torch.float64)

    def check_constants(self, workload: Workload, constants: dict[str, Any]) -> None:
        if constants:
            raise InvalidInput("gemm has no constant operands: call build() and pass both matrices to the result")

    def accepts(self, workload: Workload, inputs: tuple[torch.Tensor, ...]) -> bool:
        import torch

        w = _gemm(workload)
        a, b = inputs
        lead = (w.batch,) if w.batch != 1 else ()
        want = getattr(torch, TORCH_NAMES[w.dtype])
        return (
            a.shape == (*lead, w.m, w.k)
            and b.shape == (*lead, w.k, w.n)
            and a.dtype is want
            and b.dtype is want
            and a.device.type == b.device.type == "cpu"
            and not ((a.requires_grad or b.requires_grad) and torch.is_grad_enabled())
        )

    def tolerance(self, workload: Workload) -> float:
        w = _gemm(workload)
        return product_tolerance(w.k, w.dtype)


def _gemm(workload: Workload) -> Gemm:
    assert isinstance(workload, Gemm)
    return workload
