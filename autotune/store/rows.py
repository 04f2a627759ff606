"""Records to rows and back. A row is a dict or tuple of values in the order of the table's columns; everything that
leaves this package is a noun.

What cannot be stored is made storable here: integers beyond 64 bits are clamped, figures that are not finite
become NULL, and text that is not UTF-8 is escaped. JSON columns are canonical, so they hold no NaN or Infinity.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from sqlalchemy import Row

from autotune import registry
from autotune.canonical import canonical_json
from autotune.errors import InvalidInput, Unavailable
from autotune.types import (
    INT64_MAX,
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

Columns = dict[str, Any]
T = TypeVar("T")

NO_FIGURES = '"peak_gflops":{}'
"""In the JSON of a hardware profile that was detected but not probed."""


def int64(value: float) -> int:
    """A count as a 64-bit integer: clamped, and 0 for what is not finite."""
    if type(value) is int and -INT64_MAX <= value <= INT64_MAX:
        return value
    if isinstance(value, float) and not math.isfinite(value):
        return 0
    return max(-INT64_MAX, min(int(value), INT64_MAX))


def storable(text: str) -> str:
    """Text that every database takes: no NUL, and bytes that were not UTF-8 as escapes."""
    return text and text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def workload_row(workload: Workload) -> Columns:
    try:
        op = registry.op(workload.op)
    except (InvalidInput, Unavailable):  # kept all the same; only the views for people lack its verdict
        tolerance, default = None, ""
    else:
        tolerance, default = op.tolerance(workload), op.default(workload).key
    return {
        "key": workload.key,
        "op": workload.op,
        "spec": workload.spec,
        "dims": canonical_json(workload.dims()),
        "dtype": str(getattr(workload, "dtype", "")),
        "flops": int64(workload.flops),
        "bytes": int64(workload.bytes),
        "tolerance": tolerance,
        "default_config": default,
    }


def hardware_row(profile: HardwareProfile) -> Columns:
    return {
        "key": profile.key,
        "kind": profile.kind,
        "name": profile.name,
        "vendor": profile.vendor,
        "arch": profile.arch,
        "allowed_cpus": profile.allowed_cpus,
        "memory_bytes": int64(profile.memory_bytes),
        "profile": _json(f"the hardware profile of {profile.name!r}", profile.to_json()),
    }


def environment_row(environment: Environment) -> Columns:
    return {
        "key": environment.key,
        "framework": environment.framework,
        "compiler": environment.compiler,
        "identity": _json("the environment", environment.to_json()),
    }


def config_row(config: Config) -> Columns:
    return {
        "key": config.key,
        "algorithm": config.algorithm,
        "placement": config.placement,
        "params": config.params_json,
    }


def spec_row(spec: BenchmarkSpec) -> Columns:
    return {"key": spec.key, "spec": _json("the benchmark spec", spec.to_json())}


def measurement_values(record: TuningRecord) -> tuple[Any, ...]:
    """The row of a record, in the order of the table's columns: a tuple, because there are many.

    The interval is computed here when the record is FINAL (milliseconds).
    """
    measured = record.measurement
    low, high = (measured.interval if record.stage is Stage.FINAL else None) or (None, None)
    return (
        record.uid,
        record.workload.key,
        record.hardware.key,
        record.environment.key,
        record.config.key,
        record.spec.key,
        record.kernel_revision,
        record.stage.value,
        measured.status.value,
        storable(measured.message),
        _finite(measured.median_ns),
        _finite(measured.baseline_median_ns),
        _finite(measured.speedup),
        _finite(low),
        _finite(high),
        _finite(measured.max_error),
        _times(measured.times_ns),
        _times(measured.baseline_ns),
        int64(measured.prepare_ns),
        int64(measured.build_ns),
        int64(measured.workspace_bytes),
        measured.contended,
        record.job,
        int64(record.repetition),
        record.source,
        record.measured_at,
    )


def workload_of(op: str, dims: str) -> Workload | None:
    """The workload; None when its op is not installed here, or is of a version without these fields."""
    try:
        return registry.workload_kind(op).from_dims(json.loads(dims))
    except (InvalidInput, Unavailable):
        return None


def config_of(algorithm: str, params: str, placement: str) -> Config:
    return Config(algorithm, json.loads(params), placement)


def hardware_of(profile: str) -> HardwareProfile:
    return HardwareProfile.from_json(json.loads(profile))


def environment_of(identity: str) -> Environment:
    return Environment.from_json(json.loads(identity))


def spec_of(spec: str) -> BenchmarkSpec:
    return BenchmarkSpec.from_json(json.loads(spec))


def measurement_of(row: Row[Any]) -> Measurement:
    times, baseline = tuple(json.loads(row.times_ns)), tuple(json.loads(row.baseline_ns))
    return Measurement(
        status=Status(row.status),
        message=row.message,
        times_ns=times,
        baseline_ns=baseline,
        max_error=row.max_error,
        prepare_ns=row.prepare_ns,
        build_ns=row.build_ns,
        workspace_bytes=row.workspace_bytes,
        contended=row.contended,
        paired=bool(baseline) or not times,
    )


def choice_of(config: Config, row: Row[Any]) -> Choice:
    """A decided entry; an error that is not known is infinite, hence within no error budget."""
    return Choice(
        config=config,
        kernel_revision=row.kernel_revision,
        expected_ns=row.expected_ns,
        baseline_ns=row.baseline_ns,
        speedup=row.speedup,
        interval=(row.speedup_low, row.speedup_high),
        max_error=math.inf if row.max_error is None else row.max_error,
        contended=row.contended,
    )


class Rebuilt(Generic[T]):
    """Nouns already rebuilt, by key, so that equal rows share one object. Forgets all when it holds `limit`."""

    def __init__(self, limit: int = 20_000) -> None:
        self._limit = limit
        self._kept: dict[str, T] = {}

    def get(self, key: str, build: Callable[..., T], *columns: Any) -> T:
        """The noun of that key, built from `columns` when it is not kept."""
        if key in self._kept:
            return self._kept[key]
        if len(self._kept) >= self._limit:
            self._kept.clear()
        noun = self._kept[key] = build(*columns)
        return noun


def _times(values: tuple[float, ...]) -> str:
    """Valid times (`Measurement` sees to that) as canonical JSON, in half the time of the general way."""
    text = ",".join(map(str, values))
    return f"[{text}]" if "T" not in text else canonical_json(values)  # True counts as 1 in Python


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _json(what: str, value: Any) -> str:
    try:
        return canonical_json(value)
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"{what} cannot be stored: {error}") from None
