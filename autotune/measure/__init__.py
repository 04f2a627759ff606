"""Runner contract: takes a candidate and returns a Measurement, whatever the candidate does.

A runner belongs to one thread. `measure` never raises for what a candidate does wrong (it crashes, hangs,
lies, eats memory): that is a `Status`. It raises `Unavailable` only when nothing at all can be measured.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from autotune.types import BenchmarkSpec, Config, HardwareProfile, Measurement, Stage, Workload


@dataclass(frozen=True)
class Task:
    """What all candidates of one job share. `seed` makes the random operands; it differs from job to job.

    `device`: which of the machine's devices of that hardware measures, as torch calls it.
    """

    workload: Workload
    hardware: HardwareProfile
    spec: BenchmarkSpec = field(default_factory=BenchmarkSpec)
    seed: int = 0
    device: str = "cpu"


@dataclass
class Effort:
    """Seconds a runner spent in each phase, for the sweep's account of its own overhead."""

    build_s: float = 0.0
    check_s: float = 0.0
    time_s: float = 0.0

    @property
    def useful_s(self) -> float:
        return self.build_s + self.check_s + self.time_s


class Runner(ABC):
    """Builds, checks and times candidates of one task after another."""

    effort: Effort

    def start(self) -> None:  # noqa: B027 - optional: only saves time
        """Begins whatever takes long to start, without waiting for it."""

    def prepare(self, task: Task, configs: Sequence[Config]) -> None:  # noqa: B027 - optional: only saves time
        """Does ahead, in parallel, what `measure` of these configs would do one by one: compiling."""

    @abstractmethod
    def measure(self, task: Task, config: Config, stage: Stage) -> Measurement:
        """Builds the config, checks it against the reference and times it in pairs with the default."""

    @abstractmethod
    def close(self) -> None:
        """Ends whatever the runner started. The runner cannot be used afterwards."""

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
