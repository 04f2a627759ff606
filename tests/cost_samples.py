"""A small tuning database whose times follow a rule, so that a model can learn it and tests know what is right.

On linear layers `tiled` is faster than the default by its tile's efficiency, torch's variants are slower, and int8 is
fastest but not exact. The machine and the software are those of the tests, so that lookups are answered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from autotune import environment, hardware, registry
from autotune.ops.linear import Linear
from autotune.types import BenchmarkSpec, Config, HardwareProfile, Measurement, Stage, Status, TuningRecord, Workload

SHAPES = tuple((n, k) for n in (256, 512, 768, 1024) for k in (256, 512, 1024, 2048))
ROWS = (1, 16)


def workloads() -> list[Linear]:
    return [Linear(m=m, n=n, k=k) for n, k in SHAPES for m in ROWS]


def speedup(workload: Linear, config: Config) -> float:
    """The rule: what `tiled` gains falls with the padding of its tile; other configs lose."""
    if config.algorithm == "tiled":
        tile: Any = config.params["tile"]
        mr, nr = tile
        padded = -(-workload.m // mr) * mr / workload.m * -(-workload.n // nr) * nr / workload.n
        return 2.2 / padded * (1.0 if config.params["threads"] == hardware.detect().allowed_cpus else 0.6)
    if config.algorithm == "fbgemm_int8":
        return 4.0
    return 0.8


def configs(workload: Workload) -> list[Config]:
    """Of `tiled` and torch, without what needs anything installed."""
    tiled, torch = registry.algorithm("tiled"), registry.algorithm("torch")
    machine = hardware.detect()
    found = [Config("tiled", params) for params in tiled.space(workload, machine).seeds]
    found += [Config("torch", params) for params in torch.space(workload, machine)]
    return [*found, Config("fbgemm_int8", {"engine": "fbgemm", "reduce_range": False, "threads": 1})]


def record(workload: Linear, config: Config, baseline_ns: int, **changes: Any) -> TuningRecord:
    times = (max(1, round(baseline_ns / speedup(workload, config))),) * 10
    error = 0.02 if config.algorithm == "fbgemm_int8" else 1e-7
    made = TuningRecord(
        workload, config, hardware.detect(), environment.current(), BenchmarkSpec(),
        Measurement(Status.OK, times_ns=times, baseline_ns=(baseline_ns,) * 10, max_error=error),
        registry.algorithm(config.algorithm).revision(), Stage.SCREEN,
    )  # fmt: skip
    return replace(made, **changes)


def records(machine: HardwareProfile | None = None) -> Iterator[TuningRecord]:
    for workload in workloads():
        baseline_ns = 1000 + workload.flops // 50
        for config in configs(workload):
            made = record(workload, config, baseline_ns)
            yield made if machine is None else replace(made, hardware=machine)
