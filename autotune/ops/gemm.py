"""gemm: c[batch, m, n] = a[batch, m, k] · b[batch, k, n], both operands dynamic."""

from __future__ import annotations

from autotune.dtypes import ITEMSIZE_BYTES, TORCH_NAMES, product_tolerance
from autotune.errors import InvalidInput
from autotune.noun import noun
from autotune.ops import Op, typical_product
from autotune.types import StrideClass, Workload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import torch

    from autotune.ops import Kernel

LAYOUTS = tuple(layout.value for layout in StrideClass)


@noun
class Gemm(Workload):
    """A matrix product, batched when `batch` > 1. Layouts are the stride classes of the last two dimensions."""

    op = "gemm"
    choices = {"a_layout": LAYOUTS, "b_layout": LAYOUTS}  # noqa: RUF012 - read-only

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

    @property
    def input_bytes(self) -> int:
        return self.batch * (self.m * self.k + self.k * self.n) * ITEMSIZE_BYTES[self.dtype]

    @property
    def output_bytes(self) -> int:
        return self.batch * self.m * self.n * ITEMSIZE_BYTES[self.dtype]

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

    def magnitude(
        self, workload: Workload, constants: dict[str, torch.Tensor | None], inputs: tuple[torch.Tensor, ...]
    ) -> float:
        a, b = inputs
        return typical_product(a, b, _gemm(workload).k)

    def plain(self, workload: Workload, constants: dict[str, Any]) -> Kernel:
        """`a @ b`."""
        return lambda a, b: a @ b

    def check_constants(self, workload: Workload, constants: dict[str, Any]) -> None:
        if constants:
            raise InvalidInput("gemm has no constant operands: call build() and pass both matrices to the result")

    def acceptor(self, workload: Workload) -> Callable[..., bool]:
        import torch

        w = _gemm(workload)
        lead = (w.batch,) if w.batch != 1 else ()
        shape_a, shape_b = (*lead, w.m, w.k), (*lead, w.k, w.n)
        dtype, grad_enabled = getattr(torch, TORCH_NAMES[w.dtype]), torch.is_grad_enabled

        def accepts(a: torch.Tensor, b: torch.Tensor) -> bool:
            return (
                a.shape == shape_a
                and b.shape == shape_b
                and a.dtype is dtype
                and b.dtype is dtype
                and not ((a.requires_grad or b.requires_grad) and grad_enabled())
            )

        return accepts

    def tolerance(self, workload: Workload) -> float:
        w = _gemm(workload)
        return product_tolerance(w.k, w.dtype)


def _gemm(workload: Workload) -> Gemm:
    assert isinstance(workload, Gemm)
    return workload
