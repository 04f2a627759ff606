"""One workload's search and decision, where the hardware is.

A job is a generator: it yields what it measured as it goes, and whoever drives it keeps that before asking for more.
On one machine the sweep drives it, and each result is committed before the next is measured; on a cluster a worker
does, and sends batches home. A job touches no database: its order holds what the database knew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from autotune import registry
from autotune.errors import Unavailable
from autotune.measure import Runner, Task
from autotune.search import Candidates, Outcome, Strategy, candidates_for
from autotune.search.exhaustive import Exhaustive
from autotune.search.tpe import Tpe
from autotune.types import (
    BenchmarkSpec,
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

OPERAND_SHARE = 0.75
"""Part of the memory that operands may take; the rest is for the framework, references and results."""

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
class JobOrder:
    """What to tune, how, and what is known: `known` records of this very identity, `neighbours` to try first.

    `finished`: per set of candidates (`Candidates.key`) that was searched to the end, its number of trials.
    """

    workload: Workload
    spec: BenchmarkSpec = field(default_factory=BenchmarkSpec)
    limits: Limits = field(default_factory=Limits)
    seconds: float = 30.0
    again: bool = False  # decide a finished job anew, searching further
    known: tuple[TuningRecord, ...] = ()
    neighbours: tuple[Config, ...] = ()
    finished: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Batch:
    """What was measured since the last one, and how far the search is."""

    records: tuple[TuningRecord, ...]
    trials: int = 0
    best: float = 1.0


@dataclass(frozen=True)
class JobEnd:
    """How a job ended. `space_key` is set when the job is done and need not run again."""

    state: str  # "tuned", "known" (finished before), "empty" (nothing to compute), "refused" (too large), "failed",
    # "postponed" (no time left)
    trials: int = 0
    failures: int = 0
    seconds: float = 0.0
    reason: str = ""
    space_key: str = ""


Job = Generator[Batch, None, JobEnd]
CandidatesOf = Callable[[Workload, HardwareProfile], Candidates]


def run_job(
    order: JobOrder,
    hardware: HardwareProfile,
    environment: Environment,
    runner: Runner,
    candidates_of: CandidatesOf = candidates_for,
    device: str = "cpu",
) -> Job:
    """Tunes one workload on one device of that hardware: yields batches of records, returns how it ended."""
    if order.workload.is_empty:
        return JobEnd("empty", reason="there is nothing to compute: the default is used")
    lacking = _lacking_memory(order.workload, hardware)
    if lacking:
        return JobEnd("refused", reason=lacking)
    begin = time.monotonic()
    candidates = candidates_of(order.workload, hardware)
    finished = dict(order.finished).get(candidates.key)
    if finished is not None and not order.again:
        return JobEnd("known", finished)
    if order.seconds <= 0:
        return JobEnd("postponed", reason="the budget is spent; run again to go on")
    search = _Search(order, candidates, hardware, environment, runner, device)
    try:
        yield from search.search(begin + SEARCH_SHARE * order.seconds)
        quiet = yield from search.decide((1 - SEARCH_SHARE) * order.seconds)
    except Unavailable as error:
        state, reason, space_key = "failed", str(error), ""
    else:
        state, reason, space_key = "tuned", "" if quiet else CONTENDED, candidates.key if quiet else ""
    return JobEnd(state, len(search.screened), search.failures, time.monotonic() - begin, reason, space_key)


def _lacking_memory(workload: Workload, hardware: HardwareProfile) -> str:
    """Why the machine cannot hold the operands, in one sentence; "" when it can."""
    needed, there = workload.operand_bytes, hardware.memory_bytes
    if not there or needed <= OPERAND_SHARE * there:
        return ""
    gib = f"{needed / 2**30:.1f} GiB, more than {OPERAND_SHARE:.0%} of the {there / 2**30:.1f} GiB there are"
    return f"its operands take {gib}: the default is used"


class _Search:
    """The state of one job."""

    def __init__(
        self,
        order: JobOrder,
        candidates: Candidates,
        hardware: HardwareProfile,
        environment: Environment,
        runner: Runner,
        device: str,
    ) -> None:
        self.order, self.candidates, self.runner = order, candidates, runner
        self.hardware, self.environment = hardware, environment
        self.task = Task(order.workload, hardware, order.spec, int(order.workload.key[:6], 16), device)
        self.strategy = self._strategy()
        self.screened: dict[Config, Measurement] = {}
        self.disturbed: dict[Config, int] = {}  # how often a config was screened on a busy machine only
        self.failures = 0
        self.best = 1.0
        self.since_progress = 0

    def _strategy(self) -> Strategy:
        if self.candidates.size <= self.order.limits.trials:
            return Exhaustive(self.candidates)
        return Tpe(self.candidates, self.order.neighbours, seed=int(self.order.workload.key[:6], 16))

    def search(self, deadline: float) -> Generator[Batch, None, None]:
        self._recall()
        yield Batch(self._refusals())
        limits = self.order.limits
        while len(self.screened) < limits.trials and time.monotonic() < deadline:
            if self.strategy.planned():
                self.since_progress = 0
            elif self.since_progress >= limits.patience:
                break
            batch = self.strategy.ask(min(limits.batch, limits.trials - len(self.screened)))
            if not batch:
                break
            self.runner.prepare(self.task, batch)
            for config in batch:
                measurement = self.runner.measure(self.task, config, Stage.SCREEN)
                record = self._record(config, measurement, Stage.SCREEN, self.disturbed.get(config, 0))
                self._learn(config, measurement)
                yield self._batch(record)
                if time.monotonic() > deadline:
                    break

    def decide(self, seconds: float) -> Generator[Batch, None, bool]:
        """Measures the finalists and the default again, in many pairs: screening's winner is partly lucky.

        Returns whether the machine was quiet: the default beside itself was not disturbed.
        """
        finalists = max(1, min(FINALISTS, int(seconds / self.order.spec.final_budget_s) - 2))
        good = [(c, m) for c, m in self.screened.items() if m.status is Status.OK and m.speedup and m.speedup > 0.95]
        good.sort(key=lambda item: -(item[1].speedup or 0))
        exact = [config for config, m in good if self._within_budget(m)][:finalists]
        lossy = [config for config, m in good if not self._within_budget(m)][:1]
        before: dict[str, int] = {}
        for record in self.order.known:
            if record.stage is Stage.FINAL:
                before[record.config.key] = before.get(record.config.key, 0) + 1
        quiet = False
        for config in (self.candidates.default, *exact, *lossy):
            for attempt in range(ATTEMPTS):
                measurement = self.runner.measure(self.task, config, Stage.FINAL)
                yield self._batch(self._record(config, measurement, Stage.FINAL, before.get(config.key, 0) + attempt))
                if not measurement.contended:
                    break
            if config == self.candidates.default:
                quiet = not measurement.contended
        return quiet

    def _recall(self) -> None:
        """Tells the strategy what is known of this very identity, so that it is not measured again.

        What was screened while something else used the machine is screened again: its rank says nothing.
        """
        for record in self.order.known:
            same = record.stage is Stage.SCREEN and record.spec == self.order.spec
            if same and record.kernel_revision == self.candidates.revision(record.config):
                if record.measurement.contended:
                    self.disturbed[record.config] = record.repetition + 1
                else:
                    self._learn(record.config, record.measurement)
        self.since_progress = 0

    def _refusals(self) -> tuple[TuningRecord, ...]:
        """One NOT_APPLICABLE row per algorithm that refused, so that people find the reason in the database."""
        return tuple(
            self._record(self.candidates.config(name, {}), Measurement(Status.NOT_APPLICABLE, reason), Stage.SCREEN)
            for name, reason in self.candidates.refusals.items()
        )

    def _learn(self, config: Config, measurement: Measurement) -> None:
        self.screened[config] = measurement
        speedup = measurement.speedup
        self.strategy.tell(Outcome(config, speedup))
        self.failures += measurement.status is not Status.OK
        if speedup is not None and speedup > self.best * IMPROVEMENT and self._within_budget(measurement):
            self.best, self.since_progress = speedup, 0
        else:
            self.since_progress += 1

    def _within_budget(self, measurement: Measurement) -> bool:
        tolerance = registry.op(self.order.workload.op).tolerance(self.order.workload)
        return measurement.max_error is not None and measurement.max_error <= tolerance

    def _batch(self, record: TuningRecord) -> Batch:
        return Batch((record,), len(self.screened), self.best)

    def _record(self, config: Config, measurement: Measurement, stage: Stage, repetition: int = 0) -> TuningRecord:
        return TuningRecord(
            self.order.workload,
            config,
            self.hardware,
            self.environment,
            self.order.spec,
            measurement,
            kernel_revision=self.candidates.revision(config),
            stage=stage,
            job=self.candidates.key,
            repetition=repetition,
        )
