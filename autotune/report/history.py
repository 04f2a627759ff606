"""How a search went: every trial in order, and the best so far."""

from __future__ import annotations

from dataclasses import dataclass

from autotune import registry
from autotune.store import Store
from autotune.types import Stage, Status, TuningRecord, Workload


@dataclass(frozen=True)
class Trial:
    """`number` counts the screened candidates of a machine and environment from 1; a final one keeps the last number.

    `best` is the largest speed-up so far within the op's error budget, 1.0 to begin with.
    """

    number: int
    record: TuningRecord
    best: float


def history(store: Store, workload: Workload, hardware_key: str | None = None) -> dict[tuple[str, str], list[Trial]]:
    """Trials by (hardware key, environment key), oldest first. Refusals, which cost nothing, are left out."""
    budget = registry.op(workload.op).tolerance(workload)
    out: dict[tuple[str, str], list[Trial]] = {}
    for record in store.records(workload.key, hardware_key):
        measured = record.measurement
        if measured.status is Status.NOT_APPLICABLE:
            continue
        trials = out.setdefault((record.hardware.key, record.environment.key), [])
        number, best = (trials[-1].number, trials[-1].best) if trials else (0, 1.0)
        fits = measured.max_error is not None and measured.max_error <= budget and not measured.contended
        if fits and measured.speedup:
            best = max(best, measured.speedup)
        trials.append(Trial(number + (record.stage is Stage.SCREEN), record, best))
    return out
