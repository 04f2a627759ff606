"""Contract of algorithms written in Triton: what they launch, and what a block of it needs.

A `TritonAlgorithm` is an `Algorithm` for GPUs. Its kernels are functions under `@triton.jit` in files of their own
(`gemm_kernel.py` …), the only ones that import triton; everything else here is imported by lookups and
must not load it, nor torch. The algorithm says for each workload and config which functions it launches and with what
(`launches`); from that the compile stage compiles for any target, with or without a GPU (see `compiling`), and
`running.bind` makes what `build` calls. `needs` is the same config's shared memory, threads and registers by formula,
so that a config that no block of the device can hold is refused before anything is compiled.

`build` works on tensors of whatever device the constants and inputs are on. Under Triton's interpreter
(TRITON_INTERPRET=1, set before triton is imported) that is the CPU, and the same code runs as on a GPU.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cache

from autotune.canonical import content_key, text_key
from autotune.errors import InvalidInput
from autotune.hardware.gpu_limits import limits_of
from autotune.kernels import Algorithm
from autotune.noun import Noun, noun

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, ClassVar

    from autotune.space import Constraint, Params
    from autotune.types import HardwareProfile, ParamValue, Workload

ELEMENTS = {"f32": "fp32", "f16": "fp16", "bf16": "bf16"}
"""Element types by our short names, as Triton writes them."""

MOST_BLOCKS = 2**31 - 1
"""Along the first dimension of a grid (CUDA programming guide). The others take 65535: kernels here use the first."""


@noun
class Launch(Noun):
    """One launch of a kernel function: what is compiled for it, and what it is called with.

    `kernel`: "module:function". `pointers`: the element type ("fp32") of each tensor argument; tensors are taken to be
    aligned to 16 bytes, as fresh ones are. `scalars`: run-time numbers. `constants`: compile-time values
    (tl.constexpr). The three hold every parameter of the function by name, in any order. `blocks`: how many the
    workload launches.
    """

    kernel: str
    pointers: Mapping[str, str]
    scalars: Mapping[str, int | float]
    constants: Mapping[str, ParamValue]
    blocks: int
    num_warps: int = 4
    num_stages: int = 1

    def __post_init__(self) -> None:
        names = [*self.pointers, *self.scalars, *self.constants]
        if len(set(names)) != len(names):
            raise InvalidInput(f"{self.kernel} has an argument twice: {', '.join(sorted(names))}")
        if self.num_warps < 1 or self.num_warps & (self.num_warps - 1) or self.num_stages < 0:
            raise InvalidInput(f"{self.kernel} takes a power of two of warps and no negative stages")

    def specialized(self) -> dict[str, Any]:
        """What decides the compiled code, as JSON: of scalars the classes that Triton specializes for, not the values.

        1 becomes a constant, multiples of 16 are known to be, and what does not fit 32 bits is 64 bits wide. Nothing
        of the workload is left but what the constants say, so that one compiled kernel serves many shapes.
        """
        return {
            "kernel": self.kernel,
            "pointers": dict(self.pointers),
            "scalars": {name: scalar_class(value) for name, value in self.scalars.items()},
            "constants": dict(self.constants),
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
        }

    def key(self, revision: str, arch: str, compiler: str) -> str:
        """Of the compiled code; `revision` is that of the sources, `compiler` for example "triton 3.9.0"."""
        return content_key({**self.specialized(), "revision": revision, "arch": arch, "compiler": compiler})


def scalar_class(value: int | float) -> str:
    """One of "1", "i32", "i32:16" (a multiple of 16), "i64", "i64:16", "fp32": what Triton's launcher tells apart."""
    if isinstance(value, float):
        return "fp32"
    if value == 1:
        return "1"
    width = "i32" if -(2**31) <= value < 2**31 else "i64"
    return f"{width}:16" if value % 16 == 0 else width


@noun
class Needs(Noun):
    """What one block of a config takes at least, by formula; the largest of each over a config's launches.

    `registers`: 32-bit ones per thread that nothing but spilling could take away, such as accumulators.
    """

    shared_bytes: int = 0
    threads: int = 0
    registers: int = 0


class TritonAlgorithm(Algorithm):
    """An algorithm whose kernels are Triton's. Subclasses also give `name`, `ops`, `space` and `build`."""

    kinds = ("gpu",)
    sources: ClassVar[tuple[str, ...]]
    """The files of its kernel functions, all that they call included; their code is the revision."""

    def revision(self) -> str:
        return source_revision(*self.sources)

    @abstractmethod
    def launches(self, workload: Workload, params: Params) -> tuple[Launch, ...]:
        """What one call launches, in order, on operands laid out as the workload says."""

    @abstractmethod
    def needs(self, workload: Workload, params: Params, arch: str) -> Needs:
        """By formula, never more than the compiler will ask for: a refusal for it must be right."""

    def workload_refusal(self, workload: Workload, hardware: HardwareProfile) -> str:
        """Why these kernels cannot compute this workload on that GPU; "" when they can."""
        return ""

    def shape_refusal(self, workload: Workload, hardware: HardwareProfile) -> str:
        if limits_of(hardware.arch) is None:
            return f"{self.name} is not known to run on {hardware.arch}: its limits are not in the table"
        return self.workload_refusal(workload, hardware)

    def software_refusal(self, workload: Workload) -> str:
        return missing_reason()

    def over_limit(self, workload: Workload, params: Params, arch: str) -> str:
        """Why no block of that config fits a device of `arch`, by formula; "" when it may."""
        return exceeded(self.needs(workload, params, arch), arch) or _too_many_blocks(self.launches(workload, params))

    def fits(self, workload: Workload, arch: str) -> Constraint:
        """`over_limit` as a constraint of the search space."""
        return lambda params: not self.over_limit(workload, params, arch)

    def compile(self, workload: Workload, params: Params) -> None:
        """Into Triton's cache for the GPU of this process, in a child; raises `NotApplicable` beyond its limits."""
        from autotune.kernels.triton.compiling import compile_here

        compile_here(self, workload, params)


def exceeded(needs: Needs, arch: str) -> str:
    """The limit of a device of `arch` that is exceeded, as a sentence; "" when none is, or none is known."""
    limits = limits_of(arch)
    if limits is None:
        return ""
    if needs.shared_bytes > limits.shared_per_block_bytes:
        return f"a block needs {needs.shared_bytes} bytes of shared memory; {arch} has {limits.shared_per_block_bytes}"
    if needs.threads > limits.threads_per_block:
        return f"a block needs {needs.threads} threads; {arch} takes {limits.threads_per_block}"
    if needs.registers > limits.registers_per_thread:
        return f"a thread needs {needs.registers} registers; {arch} has {limits.registers_per_thread}"
    if needs.registers * needs.threads > limits.registers_per_sm:
        return f"a block needs {needs.registers * needs.threads} registers; {arch} has {limits.registers_per_sm}"
    return ""


def _too_many_blocks(launches: tuple[Launch, ...]) -> str:
    most = max((launch.blocks for launch in launches), default=0)
    return f"it takes {most} blocks; a grid holds {MOST_BLOCKS}" if most > MOST_BLOCKS else ""


def missing_reason() -> str:
    """Why nothing can be compiled, as a sentence; "" when triton is installed. Does not import it."""
    from importlib.util import find_spec

    return "" if find_spec("triton") else "Triton is not installed: pip install 'autotune[gpu]'"


@cache
def source_revision(*paths: str) -> str:
    """Hash of Python sources without docstrings, comments and layout: it changes when the code does."""
    return text_key("\n".join(_code_only(path) for path in paths))


def _code_only(path: str) -> str:
    with open(path, encoding="utf-8") as source:
        code = source.read().split('"' * 3)[::2]  # what stands between triple quotes are docstrings
    lines = (line for part in code for line in part.splitlines())
    return " ".join(word for line in lines for word in line.partition("#")[0].split())
