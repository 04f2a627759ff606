"""Store contract: the operator-tuning database, written by sweeps and read by scripts.

A store belongs to the process that opened it and may be used from one thread at a time; any number of
processes may have the same database open. Once `add` returns, its records are on disk: nothing committed
is lost. Methods raise `Unavailable` when the database cannot be reached or written and `Incompatible`
when its schema is not this version's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from autotune.types import Choice, Environment, HardwareProfile, TuningRecord, Workload


@dataclass(frozen=True)
class JobKey:
    """One tuning job: a workload on a machine under an environment, over a given set of candidates.

    `space_key` is the hash of the spaces and kernel revisions searched: adding an algorithm or a value makes
    it another job, whose known candidates are not measured again.
    """

    workload_key: str
    hardware_key: str
    environment_key: str
    space_key: str


@dataclass(frozen=True)
class JobReport:
    """How a job ended: trials known, and when."""

    trials: int
    finished_at: datetime


@dataclass(frozen=True)
class Wish:
    """A workload that somebody looked up and nobody had measured; `hardware_key` is "" where any machine will do.

    `asked` counts how often. `weight`: how many times a model runs it, so that a layer that is used often comes first.
    """

    workload: Workload
    hardware_key: str = ""
    asked: int = 1
    weight: float = 1.0


@dataclass(frozen=True)
class StoreStats:
    """Counts for `autotune db stats`."""

    measurements: int
    workloads: int
    configs: int
    hardware: int
    environments: int
    by_status: dict[str, int]
    by_op: dict[str, int]
    by_algorithm: dict[str, int]
    schema_revision: str
    size_bytes: int


class Store(ABC):
    """Everything a sweep writes and reads. Use as a context manager, or `close` it."""

    @abstractmethod
    def add(self, records: Iterable[TuningRecord]) -> int:
        """Stores records in one transaction and returns how many were new; a record stored before is left alone.

        FINAL records with status OK also become the decided entry of their config (`choices`), the one
        measured last winning; a FINAL failure takes that entry away. What is decided depends on the records alone,
        not on the order in which they arrive: a success older than a failure stays undecided. Raises
        `InvalidInput`, and stores nothing, when a record's hardware, environment or spec holds NaN or infinity.
        """

    @abstractmethod
    def records(
        self,
        workload_key: str | None = None,
        hardware_key: str | None = None,
        environment_key: str | None = None,
    ) -> Iterator[TuningRecord]:
        """Stored records that match, oldest first. Records of ops that are not installed are passed over."""

    @abstractmethod
    def choices(self, workload_key: str, hardware_key: str, environment_key: str) -> tuple[Choice, ...]:
        """The decided configs of that identity, fastest first (see `decide.ranked`).

        One whose error was not recorded has `max_error` infinity: it fits no budget.
        """

    @abstractmethod
    def workloads(self) -> tuple[Workload, ...]: ...

    @abstractmethod
    def hardware(self) -> tuple[HardwareProfile, ...]:
        """One profile per key: the first stored, until one with measured figures (`peak_gflops`) takes its place."""

    @abstractmethod
    def environments(self) -> tuple[Environment, ...]: ...

    @abstractmethod
    def gains(self, hardware_key: str) -> dict[str, float]:
        """Per op, the geometric mean of the speed-ups that lookups on that machine are served, 1.0 for a default.

        Ops without a decided workload are left out.
        """

    @abstractmethod
    def finish_job(self, job: JobKey, trials: int) -> None:
        """Remembers that the job is done; doing so again updates it."""

    @abstractmethod
    def finished_jobs(self, workload_key: str, hardware_key: str, environment_key: str) -> dict[str, JobReport]:
        """The reports of the finished jobs of that identity, by their `space_key`."""

    @abstractmethod
    def wish(self, wishes: Iterable[Wish]) -> None:
        """Queues workloads for tuning. Wishing again adds to `asked`, keeps the larger weight and reopens one
        that was granted. Wishes for nothing to compute are passed over.
        """

    @abstractmethod
    def wishes(self, hardware_key: str | None = None) -> tuple[Wish, ...]:
        """The open wishes that nobody has taken, those asked most first; with a hardware key, those it can grant."""

    @abstractmethod
    def take(self, wish: Wish, by: str, seconds: float) -> bool:
        """Takes a wish for that long, so that nobody else does; False when somebody has it or it was granted.

        One that was taken and not granted in time is open again: whoever took it may have died.
        """

    @abstractmethod
    def grant(self, wish: Wish) -> None:
        """Takes a wish from the queue for good: its workload is decided."""

    @abstractmethod
    def stats(self) -> StoreStats: ...

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
