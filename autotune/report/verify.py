"""Whether a database is what it claims to be: structure, references, keys, decisions, figures.

Keys and uids are computed anew from what they are hashes of, so a row that was altered by hand is found. What a sweep
may leave behind in good faith (rates above a probed peak by an algorithm that does less arithmetic, streams above a
bandwidth that was probed while a neighbour used the memory, results of kernels that changed since) is a note, anything
else an error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Table, func, select, text

from autotune import registry
from autotune.canonical import text_key
from autotune.errors import AutotuneError
from autotune.store import rows, schema
from autotune.store.sql import SqlStore
from autotune.types import Stage, Status

PEAK_MARGIN = 1.10
"""A probed peak is a measurement too; a rate is implausible when it is above this many times the peak."""

OTHER_ARITHMETIC = frozenset(["winograd", "nnpack", "fbgemm_int8"])
"""They multiply less than the op's flops say, or in a narrower dtype: their effective rate may pass the peak."""

CACHES = 4
"""Operands this many times as large as the last cache cannot come out of it from call to call."""

EXAMPLES = 3

_REFERENCES = (
    (schema.measurements, ("workload", "hardware", "environment", "config", "spec")),
    (schema.best, ("workload", "hardware", "environment", "config")),
    (schema.jobs, ("workload", "hardware", "environment")),
)
_TARGETS = {
    "workload": schema.workloads,
    "hardware": schema.hardware,
    "environment": schema.environments,
    "config": schema.configs,
    "spec": schema.benchmark_specs,
}


@dataclass
class Finding:
    """What one check found: nothing wrong when `count` is 0."""

    check: str
    is_error: bool = True
    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, example: str) -> None:
        self.count += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(example)


def verify(store: SqlStore) -> list[Finding]:
    """Every check, in order; reads each measurement once."""
    return [_structure(store), _references(store), _keys(store), *_measurements(store), _stale(store)]


def _structure(store: SqlStore) -> Finding:
    found = Finding("the file's structure")
    if store.is_file:
        for row in store.stream(text("PRAGMA integrity_check"))[1]:
            if row._mapping["integrity_check"] != "ok":
                found.add(str(row._mapping["integrity_check"]))
    return found


def _references(store: SqlStore) -> Finding:
    found = Finding("keys that lead nowhere")
    for table, names in _REFERENCES:
        for name in names:
            key, target = table.c[f"{name}_key"], _TARGETS[name].c.key
            lost = select(key, func.count()).where(key.not_in(select(target))).group_by(key)
            for row in store.stream(lost)[1]:
                orphan, count = tuple(row)
                found.add(f"{table.name}.{name}_key {orphan} ({count} rows)")
    return found


def _keys(store: SqlStore) -> Finding:
    """Nouns whose key is not the hash of what they hold. Workloads of ops that are not installed are passed over."""
    found = Finding("keys that are not those of their contents")
    noun: tuple[tuple[Table, Callable[[Any], Any]], ...] = (
        (schema.workloads, lambda r: rows.workload_of(r.op, r.dims)),
        (schema.hardware, lambda r: rows.hardware_of(r.profile)),
        (schema.environments, lambda r: rows.environment_of(r.identity)),
        (schema.configs, lambda r: rows.config_of(r.algorithm, r.params, r.placement)),
        (schema.benchmark_specs, lambda r: rows.spec_of(r.spec)),
    )
    for table, build in noun:
        for row in store.stream(select(table))[1]:
            try:
                built = build(row)
                wrong = built is not None and built.key != row.key
            except (AutotuneError, ValueError, TypeError, KeyError, AttributeError):
                wrong = True
            if wrong:
                found.add(f"{table.name} {row.key}")
    return found


def _measurements(store: SqlStore) -> Iterator[Finding]:
    """One pass over the measurements: uids, figures, rates, and what `best` should hold."""
    m, w, c = schema.measurements.c, schema.workloads.c, schema.configs.c
    uids = Finding("uids that are not those of their rows")
    figures = Finding("figures that are no positive finite numbers")
    rates = Finding("rates above the machine's peak")
    effective = Finding("effective rates above the peak, of algorithms that do less arithmetic", is_error=False)
    streams = Finding("streams faster than the machine's probed bandwidth", is_error=False)
    unprobed = Finding("machines whose peak was never probed, so their rates are not checked", is_error=False)
    machines = {p.key: p for p in store.hardware()}
    for key, profile in machines.items():
        if not profile.peak_gflops:
            unprobed.add(key)
    succeeded: dict[tuple[str, ...], tuple[Any, str]] = {}
    failed: dict[tuple[str, ...], tuple[Any, str]] = {}
    query = select(schema.measurements, w.flops, w.bytes, w.dtype, w.spec.label("workload"), c.algorithm)
    query = query.join_from(schema.measurements, schema.workloads, w.key == m.workload_key, isouter=True)
    for row in store.stream(query.join(schema.configs, c.key == m.config_key, isouter=True))[1]:
        parts = (
            row.workload_key, row.config_key, row.hardware_key, row.environment_key, row.spec_key, row.kernel_revision,
            row.stage, row.job, str(row.repetition), row.source,
        )  # fmt: skip
        if text_key("\n".join(parts)) != row.uid:
            uids.add(row.uid)
        ok = row.status == Status.OK.value
        bad = _bad_figure(row, ok)
        if bad:
            figures.add(f"{row.uid}: {bad}")
        if ok and not bad and row.workload is not None and row.hardware_key in machines:
            other, profile = row.algorithm in OTHER_ARITHMETIC, machines[row.hardware_key]
            peak, rate = profile.peak_gflops.get(row.dtype, math.inf), row.flops / row.median_ns
            if rate > PEAK_MARGIN * peak:
                where = effective if other else rates
                where.add(f"{row.workload} by {row.algorithm}: {rate:.0f} GFLOP/s of {peak:.0f}")
            roof, stream = profile.bandwidth_gbs or math.inf, row.bytes / row.median_ns
            cached = row.bytes <= CACHES * max((cache.size_bytes for cache in profile.caches), default=0)
            if stream > PEAK_MARGIN * roof and not cached and not other:
                streams.add(f"{row.workload} by {row.algorithm}: {stream:.0f} GB/s of {roof:.0f}")
        if row.stage == Stage.FINAL.value:
            identity = (row.workload_key, row.hardware_key, row.environment_key, row.config_key)
            known = None not in (row.median_ns, row.baseline_median_ns, row.speedup, row.speedup_low)
            newest = succeeded if ok and known else failed if not ok else {}
            age = (row.measured_at, row.uid)
            if age > newest.get(identity, age[:0]):
                newest[identity] = age
    yield from (uids, figures, rates, effective, streams, unprobed)
    expected = {key: age[1] for key, age in succeeded.items() if key not in failed or failed[key] < age}
    yield _decided(store, expected)


def _bad_figure(row: Any, ok: bool) -> str:
    for name in ("median_ns", "baseline_median_ns", "speedup", "speedup_low", "speedup_high"):
        value = row._mapping[name]
        if value is not None and not (math.isfinite(value) and value > 0):
            return f"{name} is {value}"
    if row.max_error is not None and not math.isfinite(row.max_error):
        return f"max_error is {row.max_error}"
    if ok and row.median_ns is None:
        return "no time"
    times = (*json.loads(row.times_ns), *json.loads(row.baseline_ns))
    return "" if all(math.isfinite(t) and t > 0 for t in times) else "a time is not positive"


def _decided(store: SqlStore, expected: dict[tuple[str, ...], str]) -> Finding:
    found = Finding("decided entries that are not what the measurements say")
    for row in store.stream(select(schema.best))[1]:
        identity: tuple[str, ...] = (row.workload_key, row.hardware_key, row.environment_key, row.config_key)
        if expected.pop(identity, "") != row.uid:
            found.add(f"best {' '.join(identity)}")
    for identity in expected:
        found.add(f"missing: best {' '.join(identity)}")
    return found


def _stale(store: SqlStore) -> Finding:
    found = Finding("decided entries of kernel revisions that are not installed", is_error=False)
    b, c = schema.best.c, schema.configs.c
    revisions: dict[str, str] = {}
    query = select(c.algorithm, b.kernel_revision, func.count()).join_from(
        schema.best, schema.configs, c.key == b.config_key
    )
    for row in store.stream(query.group_by(c.algorithm, b.kernel_revision))[1]:
        algorithm, revision, count = tuple(row)
        if algorithm not in revisions:
            try:
                revisions[algorithm] = registry.algorithm(algorithm).revision()
            except AutotuneError:
                revisions[algorithm] = ""
        if revisions[algorithm] != revision:
            found.add(f"{algorithm} {revision[:12]} ({count} rows)")
    return found
