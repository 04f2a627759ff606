"""Executor contract: runs jobs where the hardware is, one at a time on each node, and brings back what they measure.

An executor belongs to one thread, which calls `poll` again and again and keeps what it returns before it calls
again: until then a batch may come twice, and records have an identity of their own, so that keeping one twice is
keeping it once. Nothing a job or a node does raises: it is an event. `Unavailable` is raised when the whole
cluster cannot be reached.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

from autotune.job import Batch, JobEnd, JobOrder
from autotune.types import Environment, HardwareProfile


@dataclass(frozen=True)
class Node:
    """A device of a machine that measures. `kind` says which jobs it can take: the keys of its profile and environment.

    Devices of one machine are nodes of their own, with one `machine`: jobs on them would disturb each other, so that
    at most one of them works, and they share its time.
    """

    name: str
    hardware: HardwareProfile
    environment: Environment
    doing: str = ""  # the workload that is tuned there, or on another device of the machine; "" while idle
    machine: str = ""  # `name` when empty

    @property
    def host(self) -> str:
        return self.machine or self.name

    @property
    def kind(self) -> Kind:
        return Kind(self.hardware.key, self.environment.key)


@dataclass(frozen=True)
class Kind:
    """What makes nodes exchangeable: results measured on one hold for the others."""

    hardware_key: str
    environment_key: str


@dataclass(frozen=True)
class Event:
    """Something happened to the job of that number: it measured, it ended, or the node that had it is lost."""

    job: int
    node: str
    batch: Batch | None = None
    end: JobEnd | None = None
    lost: str = ""  # why the node is lost; the job may be submitted again


class Executor(ABC):
    """Nodes, and the jobs they work on."""

    @property
    @abstractmethod
    def useful_s(self) -> float:
        """Seconds that went into building, checking and timing candidates, on all nodes together, as far as known."""

    @abstractmethod
    def nodes(self) -> tuple[Node, ...]:
        """The nodes that can take jobs now; they may come and go."""

    @abstractmethod
    def submit(self, job: int, order: JobOrder, kind: Kind) -> bool:
        """Gives the job to an idle node of that kind; False when there is none now. `job` is the caller's number."""

    @abstractmethod
    def poll(self, seconds: float) -> list[Event]:
        """What happened, waiting up to that long for something to happen."""

    @abstractmethod
    def close(self) -> None:
        """Ends the jobs that run and gives the nodes back. The executor cannot be used afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
