"""The nouns of measuring: how a candidate was timed, what came out, and the record that keeps it.

Like types.py: frozen, validated, standard library only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property

from autotune import stats
from autotune.canonical import content_key, text_key
from autotune.errors import InvalidInput
from autotune.types import Config, Environment, HardwareProfile, Workload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class Status(StrEnum):
    """What became of a candidate. Failure is data: a row with a reason, never inf or a missing row."""

    OK = "OK"
    NOT_APPLICABLE = "NOT_APPLICABLE"
    BUILD_FAILED = "BUILD_FAILED"
    RUN_FAILED = "RUN_FAILED"
    TIMEOUT = "TIMEOUT"
    WRONG_RESULT = "WRONG_RESULT"


class Stage(StrEnum):
    """How far a measurement was taken: a short screening, or the many pairs that decide a winner."""

    SCREEN = "screen"
    FINAL = "final"


_CHOICES = {"cache_state": ("warm", "cold", "unknown"), "operands_on": ("device", "host"), "clock": ("wall", "events")}
_LATER = ("operands_on", "clock", "graph")


@dataclass(frozen=True)
class BenchmarkSpec:
    """How a candidate is timed. The protocol is a value, and part of each record's identity."""

    screen_pairs: int = 10
    final_pairs: int = 40
    max_final_pairs: int = 80  # taken when the interval of 40 still straddles the decision
    min_sample_ns: int = 100_000  # a sample repeats a short kernel until it lasts this long
    give_up_ratio: float = 0.6  # a screening stops early when 3 pairs are all slower than this
    screen_budget_s: float = 2.0  # slow workloads take fewer pairs than asked, but at least 3 …
    final_budget_s: float = 2.0  # … and at least 10 to decide
    build_timeout_s: float = 60.0
    run_timeout_s: float = 120.0
    memory_limit_bytes: int = 8 << 30  # on top of what the operands need
    tolerated_contention: float = 0.1  # share of the time that others may want the CPUs before a result is flagged
    cache_state: str = "warm"  # operands are reused from sample to sample; "cold": caches are flushed before each call
    allocator: str = "mallopt mmap_max=0 trim_threshold=max"  # set in the measuring process
    operands_on: str = "device"  # inputs and results live where the kernel runs; "host": moving them is in the time
    clock: str = "wall"  # "events": those of the device, which say when it began and ended, whatever the host did
    graph: bool = False  # calls are replayed from a device graph, without the host's cost of launching

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise InvalidInput(f"{name} of a benchmark is {' or '.join(known)}, not {getattr(self, name)!r}")
        if self.graph and self.operands_on == "host":
            raise InvalidInput("a device graph holds no transfers from the host")

    def for_kind(self, kind: str) -> BenchmarkSpec:
        """The protocol on hardware of that kind: a GPU is timed by its own events, with its cache flushed before."""
        if kind != "gpu" or self.clock == "events" or self.operands_on == "host":
            return self
        return replace(self, clock="events", cache_state="cold")

    def to_json(self) -> dict[str, Any]:
        """Without the later fields that have their default, so that adding them changed no key."""
        return {
            item.name: getattr(self, item.name)
            for item in fields(self)
            if item.name not in _LATER or getattr(self, item.name) != item.default
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BenchmarkSpec:
        known = {item.name for item in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in known})

    @cached_property
    def key(self) -> str:
        return content_key(self.to_json())


@dataclass(frozen=True)
class Measurement:
    """Raw times of a candidate and of its paired baseline (ns per call), or the status that says why there are none.

    `times_ns[i]` and `baseline_ns[i]` were taken next to each other. `speedup` (median of baseline/candidate
    ratios) and its 95 % bootstrap interval are derived once, at construction. What was imported from a tool that times
    no default beside a candidate is not `paired`: it has no baseline, hence no speed-up, and decides nothing.
    """

    status: Status
    message: str = ""
    times_ns: tuple[float, ...] = ()
    baseline_ns: tuple[float, ...] = ()
    max_error: float | None = None  # per element against the f64 reference; see ops.relative_error
    prepare_ns: int = 0  # packing or converting the weight, once
    build_ns: int = 0  # compiling or loading, once
    workspace_bytes: int = 0
    contended: bool = False  # something else was using the machine
    paired: bool = True

    def __post_init__(self) -> None:
        if self.status is Status.OK:
            problem = self._time_problem()
            if problem:  # a clock that lies is a failed run, not a fast kernel
                object.__setattr__(self, "status", Status.RUN_FAILED)
                object.__setattr__(self, "message", problem)
        if self.status is not Status.OK:
            object.__setattr__(self, "times_ns", ())
            object.__setattr__(self, "baseline_ns", ())
            object.__setattr__(self, "paired", True)  # a failure says all that there is
        if self.max_error is not None and not math.isfinite(self.max_error):
            object.__setattr__(self, "max_error", None)

    def _time_problem(self) -> str:
        if not self.times_ns:
            return "no time was recorded"
        if len(self.times_ns) * self.paired != len(self.baseline_ns):
            return f"{len(self.times_ns)} times but {len(self.baseline_ns)} baseline times"
        for value in (*self.times_ns, *self.baseline_ns):
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
                return f"recorded time {value!r} is not a positive finite number"
        return ""

    @property
    def median_ns(self) -> float | None:
        return stats.median(self.times_ns) if self.times_ns else None

    @property
    def baseline_median_ns(self) -> float | None:
        return stats.median(self.baseline_ns) if self.baseline_ns else None

    @property
    def speedup(self) -> float | None:
        """Median of paired ratios baseline/candidate; > 1 is faster than the default."""
        return stats.median_ratio(self.baseline_ns, self.times_ns) if self.baseline_ns else None

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """95 % bootstrap interval of `speedup`; computed on first use (a few ms), then kept."""
        return stats.bootstrap_interval(self.baseline_ns, self.times_ns) if self.baseline_ns else None


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class TuningRecord:
    """Workload × Config × HardwareProfile × Environment × BenchmarkSpec → Measurement, with source and time."""

    workload: Workload
    config: Config
    hardware: HardwareProfile
    environment: Environment
    spec: BenchmarkSpec
    measurement: Measurement
    kernel_revision: str = ""  # hash of the kernel's sources, or the wrapper's version
    stage: Stage = Stage.SCREEN
    job: str = ""  # the sweep job that measured it
    repetition: int = 0  # counts repeated measurements of one config in one job and stage
    source: str = "measured"
    measured_at: datetime = field(default_factory=utc_now)

    def __post_init__(self) -> None:
        if self.measured_at.tzinfo is None:
            raise InvalidInput("measured_at must carry a time zone")
        if self.stage is Stage.FINAL and not self.measurement.paired:
            raise InvalidInput("what was measured without the default beside it cannot decide")
        if self.stage is Stage.FINAL and self.spec.operands_on != "device":
            raise InvalidInput("times that contain transfers cannot decide: they are of this host, too")
        object.__setattr__(self, "measured_at", self.measured_at.astimezone(UTC))

    @property
    def uid(self) -> str:
        """The measurement's identity: storing it twice is storing it once."""
        parts = (
            self.workload.key, self.config.key, self.hardware.key, self.environment.key, self.spec.key,
            self.kernel_revision, self.stage.value, self.job, str(self.repetition), self.source,
        )  # fmt: skip
        return text_key("\n".join(parts))
