"""The offline loop: for each workload, search, decide, and keep every result in the store.

The store is the only state. Results are committed as they come, so a sweep that is stopped in any way goes on
where it was when it is run again, and nothing is measured twice for the same identity.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import log2

from autotune import decide, registry
from autotune.errors import Unavailable
from autotune.measure import Runner, Task
from autotune.search import Outcome, Strategy, candidates_for
from autotune.search.exhaustive import Exhaustive
from autotune.search.tpe import Tpe
from autotune.store import JobKey, Store
from autotune.types import (
    BenchmarkSpec,
    Choice,
    Config,
    Environment,
    HardwareProfile,
    Measurement,
    Stage,
    Status,
    TuningRecord,
    Workload,
)

FINALISTS = 4
"""Configs within the error budget that are measured again to decide, at most; one more may exceed the budget."""

SEARCH_SHARE = 0.6
"""Part of a job's time for searching; the rest is for deciding."""

ATTEMPTS = 2
"""A decision measured while something else used the machine is measured once more."""

NEIGHBOURS = 3
"""Nearby workloads whose winners are tried first."""

CONTENDED = "something else was using the machine: run again when it is quiet"

IMPROVEMENT = 1.01
"""A trial counts as progress when it beats the best so far by 1 %."""


@dataclass(frozen=True)
class Limits:
    """How much a job may take. `patience`: trials without progress, after the planned ones, that end the search."""

    trials: int = 64
    patience: int = 14
    job_seconds: float = 30.0  # searching and deciding; a batch begun is finished
    batch: int = 4  # compiled together, then timed one by one


@dataclass(frozen=True)
class JobResult:
    """How one workload's job ended. `winner` is None where the default won or nothing was decided."""

    workload: Workload
    state: str  # "tuned", "known" (finished before), "empty" (nothing to compute), "failed", "postponed" (no time left)
    winner: Choice | None = None
    default_ns: float | None = None
    trials: int = 0
    failures: int = 0
    seconds: float = 0.0
    reason: str = ""


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


@dataclass
class SweepReport:
    """All jobs, and the account of time: `useful_s` went into building, checking and timing candidates."""

    jobs: list[JobResult] = field(default_factory=list)
    wall_s: float = 0.0
    useful_s: float = 0.0


@dataclass(frozen=True)
class Sweep:
    """What stays the same over a sweep."""

    store: Store
    runner: Runner
    hardware: HardwareProfile
    environment: Environment
    spec: BenchmarkSpec = field(default_factory=BenchmarkSpec)
    limits: Limits = field(default_factory=Limits)
    again: bool = False  # decide finished jobs anew, searching further
    observe: Callable[[Event], None] = lambda _: None

    def run(self, workloads: Iterable[Workload], budget_s: float | None = None) -> SweepReport:
        """Tunes each workload once. With a budget, the time left is shared evenly among the jobs left."""
        begin = time.monotonic()
        todo = list(dict.fromkeys(workloads))
        report = SweepReport()
        try:
            for index, workload in enumerate(todo):
                seconds = self.limits.job_seconds
                if budget_s is not None:
                    left = budget_s - (time.monotonic() - begin)
                    seconds = min(seconds, left / (len(todo) - index))
                self.observe(Event(workload, index, len(todo)))
                result = _Job(self, workload, index, len(todo)).run(seconds)
                report.jobs.append(result)
                self.observe(Event(workload, index, len(todo), result.trials, result=result))
        finally:
            report.wall_s = time.monotonic() - begin
            report.useful_s = self.runner.effort.useful_s
        return report


class _Job:
    """One workload's search and decision."""

    def __init__(self, sweep: Sweep, workload: Workload, index: int, jobs: int) -> None:
        self.sweep, self.workload, self.index, self.jobs = sweep, workload, index, jobs
        self.screened: dict[Config, Measurement] = {}
        self.disturbed: dict[Config, int] = {}  # how often a config was screened on a busy machine only
        self.failures = 0
        self.best = 1.0
        self.since_progress = 0

    def run(self, seconds: float) -> JobResult:
        sweep, workload = self.sweep, self.workload
        if workload.is_empty:
            return JobResult(workload, "empty", reason="there is nothing to compute: the default is used")
        begin = time.monotonic()
        candidates = candidates_for(workload, sweep.hardware)
        self.candidates = candidates
        self.key = JobKey(workload.key, sweep.hardware.key, sweep.environment.key, candidates.key)
        finished = sweep.store.finished_job(self.key)
        if finished is not None and not sweep.again:
            return self._result("known", finished.trials, begin)
        if seconds <= 0:
            return JobResult(workload, "postponed", reason="the budget is spent; run again to go on")
        self.task = Task(workload, sweep.hardware, sweep.spec, seed=int(workload.key[:6], 16))
        try:
            strategy = self._strategy()
            self._recall(strategy)
            self._note_refusals()
            self._search(strategy, begin + SEARCH_SHARE * seconds)
            quiet = self._decide((1 - SEARCH_SHARE) * seconds)
        except Unavailable as error:
            return JobResult(
                workload, "failed", trials=len(self.screened), seconds=time.monotonic() - begin, reason=str(error)
            )
        if not quiet:
            return self._result("tuned", len(self.screened), begin, CONTENDED)
        sweep.store.finish_job(self.key, len(self.screened))
        return self._result("tuned", len(self.screened), begin)

    def _strategy(self) -> Strategy:
        if self.candidates.size <= self.sweep.limits.trials:
            return Exhaustive(self.candidates)
        return Tpe(self.candidates, self._neighbours(), seed=int(self.workload.key[:6], 16))

    def _neighbours(self) -> list[Config]:
        """Winners of the most similar workloads of this op on this machine, nearest first."""
        store, sweep = self.sweep.store, self.sweep
        similar = [w for w in store.workloads() if w.op == self.workload.op and w != self.workload]
        similar.sort(key=lambda w: (distance(w, self.workload), w.key))
        found: list[Config] = []
        for other in similar[:NEIGHBOURS]:
            choices = store.choices(other.key, sweep.hardware.key, sweep.environment.key)
            found += [choice.config for choice in choices[:2]]
        return found

    def _recall(self, strategy: Strategy) -> None:
        """Tells the strategy what the store holds for this very identity, so that it is not measured again.

        What was screened while something else used the machine is screened again: its rank says nothing.
        """
        sweep = self.sweep
        for record in sweep.store.records(self.workload.key, sweep.hardware.key, sweep.environment.key):
            same = record.stage is Stage.SCREEN and record.spec == sweep.spec
            if same and record.kernel_revision == self.candidates.revision(record.config):
                if record.measurement.contended:
                    self.disturbed[record.config] = record.repetition + 1
                else:
                    self._learn(strategy, record.config, record.measurement)
        self.since_progress = 0

    def _note_refusals(self) -> None:
        """One NOT_APPLICABLE row per algorithm that refused, so that people find the reason in the database."""
        refused = self.candidates.refusals.items()
        self.sweep.store.add(
            self._record(Config(name), Measurement(Status.NOT_APPLICABLE, reason), Stage.SCREEN)
            for name, reason in refused
        )

    def _search(self, strategy: Strategy, deadline: float) -> None:
        limits = self.sweep.limits
        while len(self.screened) < limits.trials and time.monotonic() < deadline:
            if strategy.planned():
                self.since_progress = 0
            elif self.since_progress >= limits.patience:
                break
            batch = strategy.ask(min(limits.batch, limits.trials - len(self.screened)))
            if not batch:
                break
            self.sweep.runner.prepare(self.task, batch)
            for config in batch:
                measurement = self.sweep.runner.measure(self.task, config, Stage.SCREEN)
                record = self._record(config, measurement, Stage.SCREEN, self.disturbed.get(config, 0))
                self.sweep.store.add([record])
                self._learn(strategy, config, measurement)
                self._observe(record)
                if time.monotonic() > deadline:
                    break

    def _learn(self, strategy: Strategy, config: Config, measurement: Measurement) -> None:
        self.screened[config] = measurement
        speedup = measurement.speedup
        strategy.tell(Outcome(config, speedup))
        self.failures += measurement.status is not Status.OK
        if speedup is not None and speedup > self.best * IMPROVEMENT and self._within_budget(measurement):
            self.best, self.since_progress = speedup, 0
        else:
            self.since_progress += 1

    def _within_budget(self, measurement: Measurement) -> bool:
        tolerance = registry.op(self.workload.op).tolerance(self.workload)
        return measurement.max_error is not None and measurement.max_error <= tolerance

    def _decide(self, seconds: float) -> bool:
        """Measures the finalists and the default again, in many pairs: screening's winner is partly lucky.

        Returns whether the machine was quiet: the default beside itself was not disturbed.
        """
        finalists = max(1, min(FINALISTS, int(seconds / self.sweep.spec.final_budget_s) - 2))
        good = [(c, m) for c, m in self.screened.items() if m.status is Status.OK and m.speedup and m.speedup > 0.95]
        good.sort(key=lambda item: -(item[1].speedup or 0))
        exact = [config for config, m in good if self._within_budget(m)][:finalists]
        lossy = [config for config, m in good if not self._within_budget(m)][:1]
        before: dict[str, int] = {}
        for record in self.sweep.store.records(self.workload.key, self.key.hardware_key, self.key.environment_key):
            if record.stage is Stage.FINAL:
                before[record.config.key] = before.get(record.config.key, 0) + 1
        for config in (self.candidates.default, *exact, *lossy):
            for attempt in range(ATTEMPTS):
                measurement = self.sweep.runner.measure(self.task, config, Stage.FINAL)
                record = self._record(config, measurement, Stage.FINAL, before.get(config.key, 0) + attempt)
                self.sweep.store.add([record])
                self._observe(record)
                if not measurement.contended:
                    break
            if config == self.candidates.default:
                quiet = not measurement.contended
        return quiet

    def _record(self, config: Config, measurement: Measurement, stage: Stage, repetition: int = 0) -> TuningRecord:
        sweep = self.sweep
        return TuningRecord(
            self.workload,
            config,
            sweep.hardware,
            sweep.environment,
            sweep.spec,
            measurement,
            kernel_revision=self.candidates.revision(config),
            stage=stage,
            job=self.key.space_key,
            repetition=repetition,
        )

    def _observe(self, record: TuningRecord) -> None:
        self.sweep.observe(
            Event(self.workload, self.index, self.jobs, len(self.screened), record=record, best=self.best)
        )

    def _result(self, state: str, trials: int, begin: float, reason: str = "") -> JobResult:
        sweep, workload = self.sweep, self.workload
        op = registry.op(workload.op)
        choices = sweep.store.choices(workload.key, sweep.hardware.key, sweep.environment.key)
        default = op.default(workload)
        best = decide.eligible(choices, default, op.tolerance(workload))
        winner = best[0] if best and best[0].config != default else None
        # the default's own measurement comes last in `eligible`; without it, what a rival was paired with
        default_ns = best[-1].baseline_ns if best else next((c.baseline_ns for c in choices), None)
        seconds = time.monotonic() - begin
        return JobResult(workload, state, winner, default_ns, trials, self.failures, seconds, reason)


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
