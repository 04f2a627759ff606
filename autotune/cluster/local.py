"""LocalExecutor: this process and this machine. A job takes its next step when it is polled.

So whatever keeps the results is done with it before the next candidate is timed, and disturbs nothing.
"""

from __future__ import annotations

import socket

from autotune.cluster import Event, Executor, Kind, Node
from autotune.job import CandidatesOf, Job, JobOrder, run_job
from autotune.measure import Runner
from autotune.search import candidates_for
from autotune.types import Environment, HardwareProfile


class LocalExecutor(Executor):
    """Takes over the runner and closes it."""

    def __init__(
        self,
        runner: Runner,
        hardware: HardwareProfile,
        environment: Environment,
        candidates_of: CandidatesOf = candidates_for,
    ) -> None:
        self._runner, self._hardware, self._environment = runner, hardware, environment
        self._candidates_of = candidates_of
        self._running: tuple[int, str, Job] | None = None
        self._name = socket.gethostname()

    @property
    def useful_s(self) -> float:
        return self._runner.effort.useful_s

    def nodes(self) -> tuple[Node, ...]:
        doing = self._running[1] if self._running else ""
        return (Node(self._name, self._hardware, self._environment, doing),)

    def submit(self, job: int, order: JobOrder, kind: Kind) -> bool:
        (node,) = self.nodes()
        if self._running is not None or kind != node.kind:
            return False
        steps = run_job(order, self._hardware, self._environment, self._runner, self._candidates_of)
        self._running = (job, order.workload.spec, steps)
        return True

    def poll(self, seconds: float) -> list[Event]:
        if self._running is None:
            return []
        job, _, steps = self._running
        try:
            return [Event(job, self._name, batch=next(steps))]
        except StopIteration as stop:
            self._running = None
            return [Event(job, self._name, end=stop.value)]
        except BaseException:
            self._running = None
            raise

    def close(self) -> None:
        self._running = None
        self._runner.close()
