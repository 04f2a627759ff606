"""The gate: a candidate's results against the f64 reference, element by element, before it is timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.ops import Kernel, relative_error
from autotune.types import Status

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Case:
    """Dynamic operands, the f64 reference, and the typical size of its elements (see `Op.magnitude`).

    `dtype`: of the result; that of the first operand when None.
    """

    inputs: tuple[torch.Tensor, ...]
    reference: torch.Tensor
    magnitude: float = 0.0
    dtype: torch.dtype | None = None


@dataclass(frozen=True)
class Verdict:
    """`max_error`: worst element over all cases; None when the result is no number to compare."""

    status: Status
    message: str
    max_error: float | None


@contextmanager
def poisoned_allocations() -> Iterator[None]:
    """New tensors of torch hold NaN (integers their largest value) instead of whatever was in memory."""
    import torch

    deterministic: Any = torch.utils.deterministic  # its switch is a property that stubs do not know
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fill = deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)
        deterministic.fill_uninitialized_memory = fill


def check(
    kernel: Kernel, cases: list[Case], bound: float, problem: Callable[[torch.Tensor], str] = lambda _: ""
) -> Verdict:
    """Runs every case with poisoned outputs; the result of each is overwritten with NaN before the next.

    A kernel that leaves part of its output unwritten, reuses one buffer for all its results or returns another
    shape or dtype gives WRONG_RESULT, whatever an aggregate would say. `problem` is asked about each result, too.
    """
    worst = 0.0
    earlier: list[torch.Tensor] = []
    with poisoned_allocations():
        for case in cases:
            inputs, reference = case.inputs, case.reference
            before = [tensor.clone() for tensor in inputs]
            result = kernel(*inputs)
            if not all(same(old, new) for old, new in zip(before, inputs, strict=True)):
                return Verdict(Status.WRONG_RESULT, "an input was overwritten", None)
            wanted = case.dtype or inputs[0].dtype
            if result.dtype != wanted:
                return Verdict(Status.WRONG_RESULT, f"the result is {result.dtype}, not {wanted}", None)
            if result.shape != reference.shape:
                wrong = f"the result has shape {list(result.shape)}, not {list(reference.shape)}"
                return Verdict(Status.WRONG_RESULT, wrong, None)
            told = problem(result)
            if told:
                return Verdict(Status.WRONG_RESULT, told, None)
            error = relative_error(result, reference, case.magnitude)
            if not error <= bound:
                finite = error < float("inf")
                told = (
                    f"an element is off by {error:.2g}, more than {bound:.2g}"
                    if finite
                    else "an element is NaN or infinite"
                )
                return Verdict(Status.WRONG_RESULT, told, error if finite else None)
            if result.numel() and any(result.data_ptr() == other.data_ptr() for other in earlier):
                return Verdict(Status.WRONG_RESULT, "the result shares memory with an earlier result", None)
            result.fill_(float("nan"))
            earlier.append(result)
            worst = max(worst, error)
    return Verdict(Status.OK, "", worst)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal, with NaN equal to NaN."""
    return bool(((a == b) | (a.isnan() & b.isnan())).all()) if a.is_floating_point() else bool((a == b).all())
