"""The offline loop: a job for each workload and kind of machine, and every result kept in the store.

The store is the only state. Results are committed as they come, so a sweep that is stopped in any way goes on
where it was when it is run again, and nothing is measured twice for the same identity. One thread does it all: it
gives jobs to the executor's idle nodes, keeps what comes back, and gives the job of a lost node to another one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import log2

from autotune import decide, registry
from autotune.budget import Job, by_gain
from autotune.cluster import Event as Happened
from autotune.cluster import Executor, Kind
from autotune.job import JobEnd, JobOrder, Limits
from autotune.store import JobKey, Store
from autotune.types import BenchmarkSpec, Choice, Config, TuningRecord, Workload
from autotune.wishes import roofline_ns

NEIGHBOURS = 3
"""Nearby workloads whose winners are tried first."""

LOSSES = 3
"""A job whose nodes are lost this often is given up: it may be the reason."""

GRACE_S = 120.0
"""How long jobs wait for a node of their kind after the last one was lost: it may be starting again."""

POLL_S = 0.5


@dataclass(frozen=True)
class JobResult:
    """How one workload's job ended. `winner` is None where the default won or nothing was decided."""

    workload: Workload
    state: str  # see `JobEnd`
    winner: Choice | None = None
    default_ns: float | None = None
    trials: int = 0
    failures: int = 0
    seconds: float = 0.0
    reason: str = ""
    node: str = ""


@dataclass(frozen=True)
class Event:
    """Told to the observer: a job begins, a trial was measured, or (with `result`) a job ended."""

    workload: Workload
    index: int  # of the job, from 0
    jobs: int
    trials: int = 0
    record: TuningRecord | None = None
    best: float = 1.0
    result: JobResult | None = None
    node: str = ""
    lost: str = ""  # a node was lost, why, and the job waits for another


@dataclass
class SweepReport:
    """All jobs, and the account of time: `useful_s` went into building, checking and timing candidates."""

    jobs: list[JobResult] = field(default_factory=list)
    wall_s: float = 0.0
    useful_s: float = 0.0


@dataclass(frozen=True)
class Sweep:
    """What stays the same over a sweep. `wanted`: hardware keys to tune for, all that the executor has when empty."""

    store: Store
    executor: Executor
    spec: BenchmarkSpec = field(default_factory=BenchmarkSpec)
    limits: Limits = field(default_factory=Limits)
    again: bool = False  # decide finished jobs anew, searching further
    observe: Callable[[Event], None] = lambda _: None
    wanted: frozenset[str] = frozenset()
    allot: Callable[[Sequence[Job], float], list[float]] = by_gain

    def run(
        self, workloads: Iterable[Workload], budget_s: float | None = None, counts: Mapping[Workload, int] | None = None
    ) -> SweepReport:
        """Tunes each workload once for each kind of machine there is.

        With a budget, before each job `allot` shares what is left among the jobs left (see budget.py), and jobs that
        are worth most come first. `counts`: how often the model runs each workload, once where not said.
        """
        return _Run(self, list(dict.fromkeys(workloads)), budget_s, counts or {}).run()


@dataclass
class _Waiting:
    """A job that is not done."""

    number: int
    workload: Workload
    kind: Kind
    worth: Job  # to the model
    losses: int = 0


class _Run:
    """One sweep's state."""

    def __init__(
        self, sweep: Sweep, workloads: list[Workload], budget_s: float | None, counts: Mapping[Workload, int]
    ) -> None:
        self.sweep, self.budget_s = sweep, budget_s
        self.begin = time.monotonic()
        self.hardware = {
            node.kind: node.hardware
            for node in sweep.executor.nodes()
            if not sweep.wanted or node.hardware.key in sweep.wanted
        }
        jobs = [
            _Waiting(number, workload, kind, Job(counts.get(workload, 1), roofline_ns(workload, profile)))
            for number, (workload, (kind, profile)) in enumerate(product(workloads, self.hardware.items()))
        ]
        if budget_s is not None:
            jobs.sort(key=self._first)
        self.waiting = deque(jobs)
        self.running: dict[int, _Waiting] = {}
        self.jobs = len(jobs)
        self.results: dict[int, JobResult] = {}
        self.orphaned: dict[Kind, float] = {}  # kinds without a node, and since when

    def run(self) -> SweepReport:
        report = SweepReport()
        try:
            while self.waiting or self.running:
                self._submit()
                for event in self.sweep.executor.poll(POLL_S):
                    self._take(event)
        finally:
            report.jobs = [self.results[number] for number in sorted(self.results)]
            report.wall_s = time.monotonic() - self.begin
            report.useful_s = self.sweep.executor.useful_s
        return report

    def _submit(self) -> None:
        """Gives waiting jobs to idle nodes, in order; ends those that no node will take."""
        idle = self._idle()
        now = time.monotonic()
        for kind in {job.kind for job in self.waiting}:
            if kind in idle:
                self.orphaned.pop(kind, None)
            elif now - self.orphaned.setdefault(kind, now) > GRACE_S:
                for job in [job for job in self.waiting if job.kind == kind]:
                    self.waiting.remove(job)
                    self._end(job, JobEnd("failed", reason="no machine of its kind is left"), "")
        for job in list(self.waiting):
            if not any(idle.values()):
                break
            if idle.get(job.kind, 0) and self.sweep.executor.submit(job.number, self._order(job), job.kind):
                idle = self._idle()
                self.waiting.remove(job)
                self.running[job.number] = job
                self.sweep.observe(Event(job.workload, job.number, self.jobs))

    def _idle(self) -> dict[Kind, int]:
        """How many nodes of each kind could take a job now; 0 for kinds that are there and busy."""
        idle: dict[Kind, int] = {}
        for node in self.sweep.executor.nodes():
            idle[node.kind] = idle.get(node.kind, 0) + (not node.doing)
        return idle

    def _order(self, job: _Waiting) -> JobOrder:
        """What the store knows that the job should know. Read when it begins: others may have measured meanwhile."""
        sweep, key = self.sweep, job.workload.key
        identity = (key, job.kind.hardware_key, job.kind.environment_key)
        finished = sweep.store.finished_jobs(*identity)
        return JobOrder(
            job.workload,
            sweep.spec.for_kind(self.hardware[job.kind].kind),
            sweep.limits,
            self._seconds(job),
            sweep.again,
            tuple(sweep.store.records(*identity)),
            tuple(self._neighbours(job)),
            tuple((space_key, report.trials) for space_key, report in finished.items()),
        )

    def _first(self, job: _Waiting) -> tuple[bool, float]:
        """Jobs that were finished before end at once, and what they would have taken is left to the others."""
        finished = self.sweep.store.finished_jobs(job.workload.key, job.kind.hardware_key, job.kind.environment_key)
        return not finished, -job.worth.count * job.worth.default_ns

    def _seconds(self, job: _Waiting) -> float:
        """The job's share of what is left of the budget. Machines work at once, the devices of one do not."""
        most = self.sweep.limits.job_seconds
        if self.budget_s is None:
            return most
        left = self.budget_s - (time.monotonic() - self.begin)
        nodes = self.sweep.executor.nodes()
        machines = {node.host for node in nodes if node.kind == job.kind}
        kinds = {node.kind for node in nodes if node.host in machines} | {job.kind}
        rivals = [other for other in self.waiting if other.kind in kinds]
        shares = self.sweep.allot([other.worth for other in rivals], left * max(1, len(machines)))
        return min(most, left, shares[rivals.index(job)])

    def _neighbours(self, job: _Waiting) -> list[Config]:
        """Winners of the most similar workloads of this op on this kind of machine, nearest first."""
        store = self.sweep.store
        similar = [w for w in store.workloads() if w.op == job.workload.op and w != job.workload]
        similar.sort(key=lambda w: (distance(w, job.workload), w.key))
        found: list[Config] = []
        for other in similar[:NEIGHBOURS]:
            choices = store.choices(other.key, job.kind.hardware_key, job.kind.environment_key)
            found += [choice.config for choice in choices[:2]]
        return found

    def _take(self, event: Happened) -> None:
        """Keeps what happened. Records of a job that was given away meanwhile are kept like any others."""
        if event.batch is not None:
            self.sweep.store.add(event.batch.records)
        job = self.running.get(event.job)
        if job is None:
            return
        if event.batch is not None:
            for record in event.batch.records[-1:] if event.batch.trials else ():
                trials, best = event.batch.trials, event.batch.best
                self.sweep.observe(Event(job.workload, job.number, self.jobs, trials, record, best, node=event.node))
        elif event.end is not None:
            del self.running[event.job]
            if event.end.space_key:
                key = JobKey(job.workload.key, job.kind.hardware_key, job.kind.environment_key, event.end.space_key)
                self.sweep.store.finish_job(key, event.end.trials)
            self._end(job, event.end, event.node)
        elif event.lost:
            del self.running[event.job]
            job.losses += 1
            if job.losses >= LOSSES:
                self._end(job, JobEnd("failed", reason=f"its machines were lost {LOSSES} times: {event.lost}"), "")
            else:
                self.waiting.appendleft(job)
                self.sweep.observe(Event(job.workload, job.number, self.jobs, node=event.node, lost=event.lost))

    def _end(self, job: _Waiting, end: JobEnd, node: str) -> None:
        op = registry.op(job.workload.op)
        winner, default_ns = None, None
        if end.state in ("tuned", "known"):
            default = op.default(job.workload).on(self.hardware[job.kind].placement)
            choices = self.sweep.store.choices(job.workload.key, job.kind.hardware_key, job.kind.environment_key)
            best = decide.eligible(choices, default, op.tolerance(job.workload))
            winner = best[0] if best and best[0].config != default else None
            # the default's own measurement comes last in `eligible`; without it, what a rival was paired with
            default_ns = best[-1].baseline_ns if best else next((c.baseline_ns for c in choices), None)
        result = JobResult(
            job.workload, end.state, winner, default_ns, end.trials, end.failures, end.seconds, end.reason, node
        )
        self.results[job.number] = result
        self.sweep.observe(Event(job.workload, job.number, self.jobs, end.trials, result=result, node=node))


def distance(a: Workload, b: Workload) -> float:
    """Sum of |log2| ratios of the dimensions; other fields that differ count one each."""
    total = 0.0
    left, right = a.dims(), b.dims()
    for name in left.keys() | right.keys():
        x, y = left.get(name), right.get(name)
        if type(x) is int and type(y) is int:
            total += abs(log2(max(x, 1)) - log2(max(y, 1)))
        elif x != y:
            total += 1.0
    return total
