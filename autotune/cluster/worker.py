"""What runs on a node: one job after another in one thread, their results kept until the driver has taken them.

The driver asks, and the answer waits for the end of the job or for a while: few messages, and no time lost between
jobs. Answering is also the sign of life. Whatever was not yet confirmed is handed out again, so that an answer that
was lost on the way loses nothing.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

from autotune import environment, hardware, settings
from autotune.cluster import wire
from autotune.errors import Unavailable
from autotune.hardware import probe
from autotune.job import JobEnd, run_job
from autotune.measure import Runner
from autotune.measure.local import LocalRunner
from autotune.search import Candidates, candidates_for
from autotune.types import Environment, HardwareProfile, Workload


class Worker:
    """The work of a node. Subclasses pretend to be other machines, for tests and simulations.

    `by_engine`: an engine started this process and set variables in it that its node was not started with.
    """

    def __init__(self, name: str, by_engine: bool = False) -> None:
        self.name = name
        if by_engine:
            settings.restore_thread_count()
        self.hardware, self.environment = self.describe()
        self._lock = threading.Condition()
        self._order: tuple[int, str] | None = None  # given, and not begun
        self._closed = False
        self._ready: list[tuple[int, dict[str, Any]]] = []  # (number, event) not confirmed yet
        self._count = 0
        self._doing: dict[str, Any] = {}
        # One thread for all jobs: a measuring process dies with the thread that started it, and would be gone when
        # the next job begins.
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    # what a subclass may change

    def describe(self) -> tuple[HardwareProfile, Environment]:
        return probe.cached(hardware.detect()), environment.current()

    def make_runner(self) -> Runner:
        return LocalRunner()

    def candidates(self, workload: Workload, profile: HardwareProfile) -> Candidates:
        return candidates_for(workload, profile)

    # what the driver calls

    def announce(self) -> dict[str, Any]:
        """The machine this is."""
        return {"hardware": self.hardware.to_json(), "environment": self.environment.to_json()}

    def begin(self, job: int, order: str) -> bool:
        """Starts a job; False while another runs. The same job twice, as after a lost answer, is started once."""
        with self._lock:
            if self._doing:
                return bool(self._doing["job"] == job)
            self._doing = {"job": job, "workload": "", "since": time.time(), "trials": 0}
            self._order = (job, order)
            self._lock.notify_all()
            return True

    def collect(self, confirmed: int, wait_s: float = 0.0) -> list[tuple[int, dict[str, Any]]]:
        """Events after the one numbered `confirmed`, which the driver has kept; when a job runs, not before it has
        ended or `wait_s` has passed."""
        with self._lock:
            self._ready = [item for item in self._ready if item[0] > confirmed]
            if self._doing:
                self._lock.wait_for(lambda: not self._doing, wait_s)
            return list(self._ready)

    def status(self) -> dict[str, Any]:
        """For people: what the node does, since when (seconds since 1970), and how many trials it has done."""
        with self._lock:
            return {**self.announce(), **self._doing}

    def close(self) -> None:
        """Ends the thread once the job that runs is done."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        self._thread.join()

    def _work(self) -> None:
        with self.make_runner() as runner:
            with contextlib.suppress(Unavailable):  # tried again, and said, when something is to be measured
                runner.start()
            while True:
                with self._lock:
                    self._lock.wait_for(lambda: self._order is not None or self._closed)
                    if self._order is None:
                        return
                    (job, text), self._order = self._order, None
                self._run(runner, job, text)

    def _run(self, runner: Runner, job: int, text: str) -> None:
        before = runner.effort.useful_s
        try:
            order = wire.order_from_json(text, self.hardware, self.environment)
            with self._lock:
                self._doing["workload"] = order.workload.spec
            steps = run_job(order, self.hardware, self.environment, runner, self.candidates)
            while True:
                try:
                    batch = next(steps)
                except StopIteration as stop:
                    end: JobEnd = stop.value
                    break
                with self._lock:
                    self._doing["trials"] = batch.trials
                if batch.records:
                    self._say({"job": job, "batch": wire.batch_to_json(batch)})
        except Exception as error:  # whatever it is, the node goes on with the next job
            end = JobEnd("failed", reason=f"{type(error).__name__}: {error}")
        useful = runner.effort.useful_s - before
        with self._lock:
            self._say({"job": job, "end": wire.end_to_json(end), "useful_s": useful})
            self._doing = {}
            self._lock.notify_all()

    def _say(self, event: dict[str, Any]) -> None:
        with self._lock:  # it may be held by this thread already
            self._count += 1
            self._ready.append((self._count, event))
