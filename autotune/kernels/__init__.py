"""Algorithm contract: HOW an op is computed. One file per family; found through `registry.algorithm`.

An `Algorithm` is stateless and its module imports torch only inside methods: lookup asks for revisions
without it. `compile` and `build` may raise anything; the caller turns that into a `Status`, `NotApplicable` into
that of its name. A built kernel
returns a fresh tensor on every call and is called from one thread at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from autotune.noun import Noun, noun

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import ClassVar, TypeAlias

    import torch

    from autotune.ops import Kernel
    from autotune.space import Params, SearchSpace
    from autotune.types import HardwareProfile, Workload

    Constants: TypeAlias = Mapping[str, torch.Tensor | None]
else:
    Constants = object  # to be imported by name; only annotations use it


class NotApplicable(Exception):
    """This config cannot run on this device, whatever is installed: its text says which limit it is beyond."""


@noun
class Built(Noun):
    """A kernel ready to call, and the bytes it holds beyond the operands and the result (packed weights, scratch)."""

    call: Kernel
    workspace_bytes: int = 0


class Algorithm(ABC):
    """One way to compute one or more ops."""

    name: ClassVar[str]
    ops: ClassVar[tuple[str, ...]]
    kinds: ClassVar[tuple[str, ...]] = ("cpu",)
    """Kinds of hardware (`HardwareProfile.kind`) it runs on."""
    stands_in_for: ClassVar[str] = ""
    """Name of an algorithm that makes this one superfluous wherever it applies."""

    def revision(self) -> str:
        """Changes when results measured before are no longer about this code. Kernels of ours hash their sources."""
        return "1"

    def refusal(self, workload: Workload, hardware: HardwareProfile, software: bool = True) -> str:
        """Why this algorithm cannot compute this workload here, in one sentence; "" when it can.

        Algorithms say so in the two parts it is made of; `software` False leaves the second out.
        """
        if hardware.kind not in self.kinds:
            return f"{self.name} runs on {' and '.join(f'{kind.upper()}s' for kind in self.kinds)} only"
        return self.shape_refusal(workload, hardware) or (self.software_refusal(workload) if software else "")

    def shape_refusal(self, workload: Workload, hardware: HardwareProfile) -> str:
        """The part of `refusal` that workload and machine alone decide; imports nothing heavy."""
        return ""

    def software_refusal(self, workload: Workload) -> str:
        """The part that the libraries installed here decide; it may import them, which takes seconds.

        A predicted lookup leaves it to `build` while torch is not loaded.
        """
        return ""

    @abstractmethod
    def space(self, workload: Workload, hardware: HardwareProfile) -> SearchSpace:
        """The tunables for this workload; only asked when `refusal` is ""."""

    def error_bound(self, workload: Workload) -> float:
        """Stated per-element relative error (see `ops.relative_error`); beyond it a result is WRONG_RESULT."""
        from autotune import registry

        return registry.op(workload.op).tolerance(workload)

    def compile(self, workload: Workload, params: Params) -> None:  # noqa: B027 - optional step, nothing by default
        """Whatever can be done before operands exist, and in parallel: compiling, mostly. Idempotent."""

    @abstractmethod
    def build(self, workload: Workload, params: Params, constants: Constants) -> Built:
        """The kernel for these constants; the caller keeps the constants alive and unchanged."""


def thread_counts(hardware: HardwareProfile) -> tuple[int, ...]:
    """1, 2, 4 … and all allowed CPUs: the values of a `threads` parameter."""
    most = hardware.allowed_cpus
    return tuple(sorted({*(1 << i for i in range(most.bit_length()) if 1 << i < most), most}))
