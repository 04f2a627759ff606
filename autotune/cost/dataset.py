"""What a store holds, as labels: log(time / default's time) of each config, per workload and machine.

Only successful, undisturbed measurements of the kernels' current revisions become labels; failures are kept apart. NaN,
infinite, zero and negative times never get here: `Measurement` turns them into failures, and what is left is checked
again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from autotune import registry
from autotune.cost.views import shape_of
from autotune.errors import AutotuneError
from autotune.records import Stage, Status, TuningRecord
from autotune.types import Config, HardwareProfile, Workload

MOST = math.log(20.0)
"""Labels are clipped at 20 times faster or slower: beyond, how much no longer matters to a choice."""


@dataclass(frozen=True)
class Group:
    """The candidates of one workload on one machine under one environment; the default is among them, with label 0.

    `labels`: log(time / default's). `ratios`: error over the op's tolerance; inf where it is not known. `decided`:
    measured in many pairs. `failed`: configs that did not run, or ran wrongly.
    """

    workload: Workload
    hardware: HardwareProfile
    environment_key: str
    default_ns: float
    configs: tuple[Config, ...]
    labels: tuple[float, ...]
    ratios: tuple[float, ...]
    decided: tuple[bool, ...]
    failed: tuple[Config, ...] = ()

    @property
    def shape(self) -> tuple[object, ...]:
        """What splits keep together; see `views.shape_of`."""
        return shape_of(self.workload)


@dataclass
class Dataset:
    """Groups, the revision of each algorithm's kernels, names of software, and what was left out (reason → records)."""

    groups: list[Group] = field(default_factory=list)
    revisions: dict[str, str] = field(default_factory=dict)
    environments: dict[str, str] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def rows(self) -> int:
        return sum(len(group.configs) for group in self.groups)

    def of(self, op: str) -> list[Group]:
        return [group for group in self.groups if group.workload.op == op]

    @property
    def ops(self) -> tuple[str, ...]:
        return tuple(sorted({group.workload.op for group in self.groups}))


@dataclass
class _Gathered:
    """Labels, errors and baselines of one group while records are read."""

    first: TuningRecord
    screened: dict[Config, list[tuple[float, float]]] = field(default_factory=dict)
    decided: dict[Config, tuple[float, float]] = field(default_factory=dict)
    failed: dict[Config, None] = field(default_factory=dict)
    baselines: list[float] = field(default_factory=list)


def collect(records: Iterable[TuningRecord], any_revision: bool = False) -> Dataset:
    """The groups of these records, which come oldest first.

    `any_revision` takes measurements of kernels of another revision as if they were of the current ones.
    """
    dataset, gathered, current = Dataset(), dict[tuple[str, str, str], _Gathered](), dict[str, str | None]()
    keys: dict[int, str] = {}
    for record in records:
        reason = _unfit(record, current, any_revision)
        if reason:
            dataset.left_out[reason] += 1
            continue
        identity = keys.setdefault(id(record.environment), record.environment.key)
        dataset.environments[identity] = _software(record)
        group = gathered.setdefault((record.workload.key, record.hardware.key, identity), _Gathered(record))
        _add(group, record, dataset.left_out)
    dataset.revisions = {name: revision for name, revision in sorted(current.items()) if revision is not None}
    for (_, _, environment_key), one in sorted(gathered.items(), key=lambda item: item[0]):
        made = _finished(one, environment_key)
        if made is not None:
            dataset.groups.append(made)
    return dataset


def _software(record: TuningRecord) -> str:
    return " ".join(filter(None, (record.environment.framework, record.environment.wait_policy)))


def _unfit(record: TuningRecord, current: dict[str, str | None], any_revision: bool) -> str:
    """Why a record cannot be learnt from; "" when it can."""
    name = record.config.algorithm
    if name not in current:
        try:
            current[name] = registry.algorithm(name).revision()
        except AutotuneError:
            current[name] = None
    if current[name] is None:
        return "algorithm not installed"
    if record.measurement.status is Status.NOT_APPLICABLE:
        return "not applicable"
    if record.measurement.contended:
        return "measured on a busy machine"
    if not any_revision and record.kernel_revision != current[name]:
        return "kernels of another revision"
    return "" if not record.workload.is_empty else "nothing to compute"


def _add(group: _Gathered, record: TuningRecord, left_out: Counter[str]) -> None:
    measured, config = record.measurement, record.config
    if measured.status is not Status.OK:
        group.failed[config] = None
        return
    speedup, baseline = measured.speedup, measured.baseline_median_ns
    if speedup is None or baseline is None or not (0 < speedup < math.inf and 0 < baseline < math.inf):
        left_out["no valid time"] += 1
        return
    tolerance = registry.op(record.workload.op).tolerance(record.workload)
    ratio = math.inf if measured.max_error is None else measured.max_error / tolerance
    label = max(-MOST, min(MOST, -math.log(speedup)))
    group.baselines.append(baseline)
    if record.stage is Stage.FINAL:
        group.decided[config] = (label, ratio)
    else:
        group.screened.setdefault(config, []).append((label, ratio))


def _finished(group: _Gathered, environment_key: str) -> Group | None:
    workload = group.first.workload
    default = registry.op(workload.op).default(workload)
    found = {
        config: (median(label for label, _ in seen), max(ratio for _, ratio in seen), False)
        for config, seen in group.screened.items()
    }
    found.update({config: (*seen, True) for config, seen in group.decided.items()})
    if not found:
        return None
    found[default] = (0.0, 0.0, True)  # the default is itself, whatever its own pairs said
    ordered = sorted(found, key=lambda config: config.key)
    return Group(
        workload,
        group.first.hardware,
        environment_key,
        median(group.baselines),
        tuple(ordered),
        tuple(found[config][0] for config in ordered),
        tuple(found[config][1] for config in ordered),
        tuple(found[config][2] for config in ordered),
        tuple(config for config in sorted(group.failed, key=lambda config: config.key) if config not in found),
    )
