"""Recorded results as a space that can be searched again: from a store, or from a table of one kernel on one GPU.

A table is a CSV file (`.csv` or `.csv.xz`) with a row per config: the parameters, `time_ms`, optionally `compile_ms`,
`bench_ms` (what measuring cost) and `status` (`ok`, or how it failed). Numbers are read as numbers.
"""

from __future__ import annotations

import csv
import lzma
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path

from autotune.canonical import canonical_json
from autotune.errors import InvalidInput
from autotune.search import Candidates
from autotune.space import Params, SearchSpace
from autotune.store import Store
from autotune.types import Config, Measurement, ParamValue, Stage, Status, TuningRecord, Workload

RESULTS = {"time_ms", "time_std_ms", "time_min_ms", "n_rep", "compile_ms", "bench_ms", "status"}
"""Columns of a table that are not parameters."""

STATUS = {"compile_fail": Status.BUILD_FAILED, "runtime_fail": Status.RUN_FAILED, "fail": Status.RUN_FAILED}

UNTUNED = Config("untuned")
"""The default of a table's space: stands for its median time, and is no candidate."""


@dataclass(frozen=True)
class RecordedSpace:
    """All that is recorded of one workload on one machine, a measurement per config."""

    name: str
    results: Mapping[Config, Measurement]
    default: Config = UNTUNED
    bench_s: Mapping[Config, float] = field(default_factory=dict)
    """Seconds that benchmarking a config took, where recorded; else its times themselves count."""

    def candidates(self) -> Candidates:
        """The recorded configs as spaces: a combination is valid when it was recorded."""
        spaces = {}
        for algorithm in sorted({config.algorithm for config in self.results}):
            recorded = [config.params for config in self.results if config.algorithm == algorithm]
            names = tuple(recorded[0])
            alike = [params for params in recorded if tuple(params) == names]
            known = {_values(params, names) for params in alike}
            values = {name: _ordered(params[name] for params in alike) for name in names}
            spaces[algorithm] = SearchSpace(values, (_recorded_only(known, names),))
        return Candidates(spaces, {}, dict.fromkeys(spaces, ""), self.default)

    @property
    def best_ns(self) -> float | None:
        """The least median time, None where everything failed."""
        times = [m.median_ns for m in self.results.values() if m.median_ns is not None]
        return min(times) if times else None


def from_store(store: Store, hardware_key: str, environment_key: str) -> Iterator[tuple[Workload, RecordedSpace]]:
    """What a store holds for a machine, workload by workload; of repeated measurements the last one counts."""
    for workload in sorted(store.workloads(), key=lambda w: w.key):
        latest: dict[Config, TuningRecord] = {}
        for record in store.records(workload.key, hardware_key, environment_key):
            if record.stage is Stage.SCREEN and record.measurement.status is not Status.NOT_APPLICABLE:
                latest[record.config] = record
        if latest:
            yield workload, RecordedSpace(str(workload), {c: r.measurement for c, r in latest.items()})


def read_table(path: Path) -> RecordedSpace:
    """The space of a table. Raises `InvalidInput` where it is none."""
    try:
        with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
            rows = list(csv.DictReader(TextIOWrapper(file, encoding="utf-8", newline="")))
    except (OSError, lzma.LZMAError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{path} cannot be read: {error}") from error
    if not rows or "time_ms" not in rows[0]:
        raise InvalidInput(f"{path} has no rows with a column time_ms")
    names = [name for name in rows[0] if name not in RESULTS]
    kernel = path.parent.name or "kernel"
    try:
        times = {number: round(float(row["time_ms"]) * 1e6) for number, row in enumerate(rows) if row["time_ms"]}
        ordered = sorted(times.values())
        baseline = ordered[len(ordered) // 2] if ordered else 1
        configs = [Config(kernel, {name: _number(row[name]) for name in names}) for row in rows]
        results = {
            c: _measurement(row, times.get(n), baseline) for n, (c, row) in enumerate(zip(configs, rows, strict=True))
        }
        bench_s = {
            c: float(row["bench_ms"]) * 1e-3 for c, row in zip(configs, rows, strict=True) if row.get("bench_ms")
        }
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{path} has a row that cannot be read: {error}") from error
    name = f"{kernel}/{path.name.partition('.')[0]}"
    return RecordedSpace(name, results, bench_s=bench_s)


def _recorded_only(known: set[tuple[ParamValue, ...]], names: tuple[str, ...]) -> Callable[[Params], bool]:
    return lambda params: _values(params, names) in known


def _measurement(row: Mapping[str, str], time_ns: int | None, baseline_ns: int) -> Measurement:
    status = row.get("status") or "ok"
    build_ns = round(float(row.get("compile_ms") or 0) * 1e6)
    if status != "ok" or time_ns is None:
        return Measurement(STATUS.get(status, Status.RUN_FAILED), f"recorded as {status}", build_ns=build_ns)
    return Measurement(Status.OK, "", (time_ns,), (baseline_ns,), max_error=0.0, build_ns=build_ns)


def _number(text: str) -> ParamValue:
    try:
        value = float(text)
    except ValueError:
        return text
    return int(value) if value.is_integer() else value


def _values(params: Mapping[str, ParamValue], names: tuple[str, ...]) -> tuple[ParamValue, ...]:
    return tuple(params[name] for name in names)


def _ordered(values: Iterable[ParamValue]) -> tuple[ParamValue, ...]:
    """Distinct values, numbers by size and others by their text."""
    distinct = {canonical_json(value): value for value in values}

    def rank(item: tuple[str, ParamValue]) -> tuple[bool, float, str]:
        text, value = item
        number = isinstance(value, (int, float))
        return (not number, float(value) if isinstance(value, (int, float)) else 0.0, text)

    return tuple(value for _, value in sorted(distinct.items(), key=rank))
