"""Op contract: WHAT is computed. One file per op; built-ins and entry points are found by `registry.op`.

An `Op` is stateless and may be used from any thread. torch is imported inside the methods that need it,
so that a workload can be made and looked up without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from autotune.errors import InvalidInput, Unavailable
from autotune.types import Config, Workload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, ClassVar, TypeAlias

    import torch

    Kernel: TypeAlias = Callable[..., torch.Tensor]
    """What an algorithm builds: takes the dynamic operands, returns a fresh result."""
else:
    Kernel = object  # to be imported by name; only annotations use it


class Op(ABC):
    """An operator kind."""

    name: ClassVar[str]
    workload: ClassVar[type[Workload]]

    def default(self, workload: Workload) -> Config:
        """What the framework does when left alone; always a candidate, and the baseline of every timing."""
        return Config("torch")

    @abstractmethod
    def constants(self, workload: Workload, seed: int) -> dict[str, torch.Tensor | None]:
        """Operands known at load time (weight, bias), random, laid out as the workload says."""

    @abstractmethod
    def inputs(self, workload: Workload, seed: int) -> tuple[torch.Tensor, ...]:
        """Dynamic operands, random, laid out as the workload says."""

    @abstractmethod
    def reference(
        self, workload: Workload, constants: dict[str, torch.Tensor | None], inputs: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        """The result in f64."""

    def magnitude(
        self, workload: Workload, constants: dict[str, torch.Tensor | None], inputs: tuple[torch.Tensor, ...]
    ) -> float:
        """The size that a result's elements would typically have before an activation; 0.0 when the op does not say.

        It keeps the error of few or mostly clipped elements from being measured against next to nothing.
        """
        return 0.0

    def plain(self, workload: Workload, constants: dict[str, Any]) -> Kernel:
        """The workload as a user of torch writes it: what the algorithm `torch` builds for this op.

        It also stands in for tuned kernels, so it takes operands of any size, and autograd. An op whose default
        is an algorithm of its own need not have it.
        """
        raise Unavailable(f"{self.name} does not say how torch computes it")

    def input_sets(self, workload: Workload) -> int:
        """How many different inputs timing takes in turn: 1 where the values do not matter for speed."""
        return 1

    def result_dtype(self, workload: Workload, inputs: tuple[torch.Tensor, ...]) -> torch.dtype:
        """That of the first operand, unless the op says otherwise."""
        return inputs[0].dtype

    def other_layouts(self, workload: Workload) -> tuple[Workload, ...]:
        """The same computation on operands stored in another way, where the caller could have them so."""
        return ()

    def result_problem(self, workload: Workload, result: torch.Tensor) -> str:
        """What is wrong with a result besides its values, such as its memory layout; "" when nothing is."""
        return ""

    constant_names: ClassVar[tuple[str, ...]] = ()
    """Names of the constants in the order `Answer.build` takes them; those after the first may be left out."""

    def named_constants(self, workload: Workload, operands: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        """The arguments of `Answer.build` by name. Raises `InvalidInput` for too many or unknown ones."""
        if len(operands) > len(self.constant_names):
            raise InvalidInput(f"{self.name} is built from {len(self.constant_names)} operands, not {len(operands)}")
        given = dict(zip(self.constant_names, operands, strict=False))
        for name, value in named.items():
            if name not in self.constant_names or name in given:
                wrong = "given twice" if name in given else "unknown"
                raise InvalidInput(f"operand {name!r} is {wrong}; {self.name} is built from {self.constant_names}")
            given[name] = value
        return {name: given.get(name) for name in self.constant_names}

    @abstractmethod
    def check_constants(self, workload: Workload, constants: dict[str, Any]) -> None:
        """Raises `InvalidInput` in one sentence when a user's constants do not fit the workload."""

    @abstractmethod
    def acceptor(self, workload: Workload) -> Callable[..., bool]:
        """A quick test of the inputs: whether a tuned kernel may be given them; otherwise the default takes them.

        Where they are is not its concern: see `online.build`.
        """

    @abstractmethod
    def tolerance(self, workload: Workload) -> float:
        """Largest per-element relative error (see `relative_error`) of a result that counts as exact in the dtype.

        It is also the default error budget of a lookup.
        """


def relative_error(result: torch.Tensor, reference: torch.Tensor, magnitude: float = 0.0) -> float:
    """The largest |result - reference| / (|reference| + s) of any element; inf for NaN or a wrong shape.

    s is the root mean square of the reference, or `magnitude` (see `Op.magnitude`) where that is larger. Per
    element, so that one bad value cannot hide in an aggregate; s keeps elements that cancel to nearly nothing
    from counting the rounding of their large terms as error.
    """
    import torch

    if result.shape != reference.shape:
        return float("inf")
    if reference.numel() == 0:
        return 0.0
    exact = reference.to(torch.float64)
    difference = (result.to(torch.float64) - exact).abs()
    scale = exact.abs() + exact.square().mean().sqrt().clamp(min=magnitude)
    error = torch.where(difference == 0, 0.0, difference / scale)
    worst = float(error.max())
    return worst if worst == worst else float("inf")


def typical_product(a: torch.Tensor, b: torch.Tensor, k: int) -> float:
    """Root mean square of a sum of k products of independent elements of `a` and `b`: rms(a)·rms(b)·√k."""
    if a.numel() == 0 or b.numel() == 0:
        return 0.0
    return float((a.double().square().mean() * b.double().square().mean() * k).sqrt())
