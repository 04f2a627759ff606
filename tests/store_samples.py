"""Small, deterministic nouns for the tests of stores and snapshots."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from autotune.ops.linear import Linear
from autotune.types import (
    BenchmarkSpec,
    Cache,
    Config,
    Environment,
    HardwareProfile,
    Measurement,
    Stage,
    Status,
    TuningRecord,
    Workload,
)

WORKLOAD: Workload = Linear(1, 4096, 1024)
HARDWARE = HardwareProfile(
    kind="cpu",
    name="Sample CPU @ 2.00GHz",
    vendor="Sample",
    arch="x86_64",
    model="family 1 model 2 stepping 3",
    isa=("avx2", "fma"),
    physical_cores=8,
    logical_cores=16,
    caches=(Cache(1, 32_768, 2), Cache(2, 1_048_576, 2), Cache(3, 33_554_432, 16)),
    memory_bytes=64 << 30,
    allowed_cpus=16,
)
OTHER_HARDWARE = replace(HARDWARE, name="Other CPU", model="family 9")
ENVIRONMENT = Environment("torch 2.13.0+cpu", ("numpy 2.4.6",), "g++ 12.2.0")
OTHER_ENVIRONMENT = replace(ENVIRONMENT, framework="torch 2.14.0+cpu")
SPEC = BenchmarkSpec(  # every field: golden databases hold it, and defaults change
    screen_pairs=11,
    final_pairs=41,
    max_final_pairs=81,
    min_sample_ns=100_001,
    give_up_ratio=0.61,
    screen_budget_s=2.5,
    final_budget_s=10.5,
    build_timeout_s=60.5,
    run_timeout_s=120.5,
    memory_limit_bytes=8 << 32,
    cache_state="warm",
    allocator="sample",
)
CONFIG = Config("tiled", {"mr": 6, "nr": 16, "threads": 1, "pack": True, "order": ("m", "n", ("k", 0.5))})
START = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def ok(times_ns: tuple[int, ...] = (100, 101, 99, 102), ratio: float = 2.0, **more: Any) -> Measurement:
    """A success that is `ratio` times as fast as the baseline."""
    baseline = tuple(round(time * ratio) for time in times_ns)
    return Measurement(Status.OK, "", times_ns, baseline, **{"max_error": 1e-7, **more})


def failed(status: Status = Status.RUN_FAILED, message: str = "segmentation fault") -> Measurement:
    return Measurement(status, message)


def record(measurement: Measurement | None = None, **changes: Any) -> TuningRecord:
    """A FINAL record measured at START; keyword arguments are fields of `TuningRecord`."""
    values: dict[str, Any] = {
        "workload": WORKLOAD,
        "config": CONFIG,
        "hardware": HARDWARE,
        "environment": ENVIRONMENT,
        "spec": SPEC,
        "measurement": ok() if measurement is None else measurement,
        "kernel_revision": "r1",
        "stage": Stage.FINAL,
        "job": "job-1",
        "measured_at": START,
    }
    return TuningRecord(**{**values, **changes})


def config(number: int, **params: Any) -> Config:
    return Config("tiled", {"mr": number, **params})


IDENTITY = (WORKLOAD.key, HARDWARE.key, ENVIRONMENT.key)
