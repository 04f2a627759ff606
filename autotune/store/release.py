"""A database fit to be shipped: of several, what was measured here, undisturbed, by kernels as they are now.

Everything else is left out and counted by reason; nothing is changed. Who opens the file finds each measurement
with its machine, software, protocol, kernel revision and time.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, Table, delete, func, or_, select

from autotune import registry
from autotune.errors import AutotuneError, InvalidInput
from autotune.store import schema
from autotune.store.engine import translated, writing
from autotune.store.sql import SqlStore, open_store
from autotune.store.transfer import copy, snapshot

_KEYS = {
    schema.workloads: "workload_key",
    schema.hardware: "hardware_key",
    schema.environments: "environment_key",
    schema.configs: "config_key",
    schema.benchmark_specs: "spec_key",
}


@dataclass(frozen=True)
class Released:
    """How many measurements and decided entries the file has; what was left out, by reason."""

    measurements: int
    decided: int
    left_out: dict[str, int]


def release(sources: Sequence[str], file: str) -> Released:
    """Unites `sources` and freezes what is fit to be shipped into `file`, which is replaced.

    The same measurements give the same bytes, whatever databases they are spread over. Raises like
    `transfer.snapshot`, and `InvalidInput` when nothing is left.
    """
    with tempfile.TemporaryDirectory(prefix="autotune-release-") as folder:
        united, kept = (os.path.join(folder, f"{name}.sqlite") for name in ("united", "kept"))
        for source in sources:
            copy(source, united)
        with open_store(united) as store:
            left_out = _leave_out(store)
            count = store.stats().measurements
        if not count:
            why = "; ".join(f"{reason}: {n:,}" for reason, n in left_out.items()) or "they are empty"
            raise InvalidInput(f"the sources hold nothing that is fit to be shipped ({why})")
        copy(united, kept)  # anew, so that what is decided follows from what was kept
        return Released(count, snapshot(kept, file, full=True), left_out)


def _leave_out(store: SqlStore) -> dict[str, int]:
    found: dict[str, int] = {}
    with translated(store.where), writing(store.engine) as connection:
        for reason, condition in _unfit(connection):
            gone = connection.execute(delete(schema.measurements).where(condition)).rowcount
            if gone:
                found[reason] = gone
        for table, name in _KEYS.items():
            used = select(schema.measurements.c[name])
            connection.execute(delete(table).where(table.c.key.not_in(used)))
        known = select(schema.measurements.c.workload_key)
        connection.execute(delete(schema.jobs).where(schema.jobs.c.workload_key.not_in(known)))
        for table in (schema.best, schema.wishes):  # decided anew; and what users want is theirs
            connection.execute(delete(table))
    return found


def _unfit(connection: Connection) -> Iterator[tuple[str, ColumnElement[bool]]]:
    m = schema.measurements.c
    yield "imported", m.source != "measured"
    simulated = select(schema.hardware.c.key).where(func.lower(schema.hardware.c.vendor) == "simulated")
    yield "on simulated machines", m.hardware_key.in_(simulated)
    yield "disturbed by something else on the machine", m.contended
    stale = [
        (m.kernel_revision == revision) & m.config_key.in_(_configs_of(algorithm))
        for algorithm, revision in _revisions(connection)
        if revision != _current(algorithm)
    ]
    if stale:
        yield "by kernels that have changed since, or are not installed", or_(*stale)


def _configs_of(algorithm: str) -> ColumnElement[str]:
    configs: Table = schema.configs
    return select(configs.c.key).where(configs.c.algorithm == algorithm)  # type: ignore[return-value]  # for in_()


def _revisions(connection: Connection) -> list[tuple[str, str]]:
    m, c = schema.measurements.c, schema.configs.c
    query = select(c.algorithm, m.kernel_revision).join_from(schema.measurements, schema.configs, c.key == m.config_key)
    return [(row[0], row[1]) for row in connection.execute(query.distinct())]


def _current(algorithm: str) -> str | None:
    try:
        return registry.algorithm(algorithm).revision()
    except AutotuneError:
        return None
