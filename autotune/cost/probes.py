"""Which measurements would teach a model most about a machine: those its members disagree on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.cost.answer import Chooser
from autotune.cost.features import Table
from autotune.cost.model import Model
from autotune.types import Config, HardwareProfile, Workload

PER_WORKLOAD = 8
"""Configs of one workload, at most: setting a workload up costs as much as measuring a few."""


@dataclass(frozen=True)
class Probe:
    """`spread`: standard deviation of the members' log(time / default)."""

    workload: Workload
    config: Config
    spread: float


def probes(model: Model, workloads: Sequence[Workload], hardware: HardwareProfile, count: int) -> list[Probe]:
    """Up to `count` probes, the highest disagreement first; workloads of ops the model does not know are passed
    over."""
    found: list[Probe] = []
    machine = hardware
    for workload in dict.fromkeys(workloads):
        known = model.ops.get(workload.op)
        if known is None or workload.is_empty:
            continue
        hardware = known.as_trained(machine)
        configs = Chooser(known, workload, hardware, float("inf")).candidates()
        if not configs:
            continue
        spread = known.spread(workload, hardware, Table(configs))
        order = np.argsort(-spread, kind="stable")[:PER_WORKLOAD]
        found += [Probe(workload, configs[i], float(spread[i])) for i in order]
    found.sort(key=lambda probe: (-probe.spread, probe.workload.key, probe.config.key))
    return found[:count]
