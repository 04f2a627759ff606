"""LocalExecutor: this process and this machine. A job takes its next step when it is polled.

So whatever keeps the results is done with it before the next candidate is timed, and disturbs nothing.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.cluster import Event, Executor, Kind, Node
from autotune.devices import Found, here
from autotune.job import CandidatesOf, Job, JobOrder, run_job
from autotune.measure import Runner
from autotune.search import candidates_for
from autotune.types import Environment, HardwareProfile


@dataclass(frozen=True)
class Part:
    """A device of this machine: what it is called here, what it is, and the software it works with."""

    device: str
    hardware: HardwareProfile
    environment: Environment


class LocalExecutor(Executor):
    """Takes over the runner and closes it. `more`: devices beside the CPU, each a node."""

    def __init__(
        self,
        runner: Runner,
        hardware: HardwareProfile,
        environment: Environment,
        candidates_of: CandidatesOf = candidates_for,
        more: Sequence[Part] = (),
    ) -> None:
        self._runner = runner
        self._parts = [Part("cpu", hardware, environment), *more]
        self._candidates_of = candidates_of
        self._running: tuple[int, Part, str, Job] | None = None
        self._machine = socket.gethostname()

    @property
    def useful_s(self) -> float:
        return self._runner.effort.useful_s

    def nodes(self) -> tuple[Node, ...]:
        doing = self._running[2] if self._running else ""
        return tuple(
            Node(self._name(part), part.hardware, part.environment, doing, self._machine) for part in self._parts
        )

    def _name(self, part: Part) -> str:
        return self._machine if part.device == "cpu" else f"{self._machine} {part.device}"

    def submit(self, job: int, order: JobOrder, kind: Kind) -> bool:
        part = next((p for p in self._parts if Kind(p.hardware.key, p.environment.key) == kind), None)
        if self._running is not None or part is None:
            return False
        steps = run_job(order, part.hardware, part.environment, self._runner, self._candidates_of, part.device)
        self._running = (job, part, order.workload.spec, steps)
        return True

    def poll(self, seconds: float) -> list[Event]:
        if self._running is None:
            return []
        job, part, _, steps = self._running
        try:
            return [Event(job, self._name(part), batch=next(steps))]
        except StopIteration as stop:
            self._running = None
            if stop.value.state == "failed" and self._is_gone(part):
                self._parts.remove(part)
                return [Event(job, self._name(part), lost=stop.value.reason)]
            return [Event(job, self._name(part), end=stop.value)]
        except BaseException:
            self._running = None
            raise

    def _is_gone(self, part: Part) -> bool:
        """Whether the device has disappeared since the sweep began: the CPU's jobs go on without it."""
        return part.device != "cpu" and Found(part.device, part.hardware) not in here()

    def close(self) -> None:
        self._running = None
        self._runner.close()
