"""Format contract: results of other tools, read as text, as records of our own kind.

A format says what it is called, what its files are, and reads a text into records and bad lines, in the order of
the file. Imported records are marked by their `source`, are never decisive (`Stage.SCREEN`) and name algorithms that
are not ours: no lookup serves them and no model of ours learns from them unasked. Where the other tool recorded no time
of a default beside a candidate's, the measurement says so (`Measurement.paired`): no speed-up is made up.

Formats are stateless and may be used from any thread. Standard library only.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from autotune.errors import InvalidInput
from autotune.types import BenchmarkSpec, Environment, HardwareProfile, TuningRecord, Workload


@dataclass(frozen=True, slots=True)
class BadLine:
    """What could not be read: the number of the line from 1 (of the entry, where a file has no lines), and why."""

    number: int
    reason: str


@dataclass(frozen=True)
class Origin:
    """What is known of a text beside its contents. `device`: the user's word for it, "" where the file tells."""

    file: str
    folder: str = ""  # the name of the folder that it is in
    device: str = ""
    kernel: str = ""
    problem: str = ""


class Format(ABC):
    """One external format."""

    name: ClassVar[str]
    what: ClassVar[str]
    """One line for people."""

    workloads: ClassVar[tuple[type[Workload], ...]]
    """The kinds of workload its records are of, where they are not ops of ours."""

    @abstractmethod
    def read(self, text: str, origin: Origin) -> Iterator[TuningRecord | BadLine]:
        """Records and bad lines in the order of the file. Raises `InvalidInput` where the text is not of this format
        at all, or the device cannot be told.
        """


UNKNOWN_SPEC = BenchmarkSpec(
    screen_pairs=0, final_pairs=0, max_final_pairs=0, min_sample_ns=0, give_up_ratio=0.0, screen_budget_s=0.0,
    final_budget_s=0.0, build_timeout_s=0.0, run_timeout_s=0.0, memory_limit_bytes=0, tolerated_contention=1.0,
    cache_state="unknown", allocator="",
)  # fmt: skip
"""How records made elsewhere were timed: nobody wrote it down."""


def environment(tool: str) -> Environment:
    """The software of records made elsewhere: all that is known of it is the tool."""
    return Environment(framework=tool, threads="", system="")


def named_device(name: str) -> HardwareProfile:
    """A GPU of which only the name is known: it is its identity too, and no machine that was detected has the same.

    Raises `InvalidInput` for an empty name.
    """
    words = " ".join(name.replace("_", " ").split())
    if not words:
        raise InvalidInput("the file does not tell its GPU: name it with --device")
    vendor = "AMD" if re.match(r"(?i)amd|radeon|instinct|gfx|mi\d|w\d{4}", words) else "NVIDIA"
    return HardwareProfile("gpu", words, vendor, "", f"named {words}")


def word(value: object) -> str:
    """A name or size as the words of a spec string take it: no spaces, sizes joined by x."""
    if isinstance(value, (list, tuple)):
        return "x".join(map(str, value))
    text = str(value if value is not None else "").strip("[]() ")
    return re.sub(r"[^\w.:+-]+", "-", re.sub(r"(?<=\d)\s*,\s*(?=\d)", "x", text)).strip("-")[:200]
