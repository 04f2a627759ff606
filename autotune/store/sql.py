"""The store in SQL: SQLite on one machine, PostgreSQL for a cluster, the same code.

with open_store("tuning.sqlite") as store:
    store.add(records)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sqlalchemy import Connection, Engine, Executable, Row, Select, Table, func, select, text, update

from autotune import settings
from autotune.dbschema import SCHEMA_REVISION, check_revision, is_older, sqlite_path
from autotune.decide import ranked
from autotune.errors import Unavailable
from autotune.stats import geometric_mean
from autotune.store import JobKey, JobReport, Store, StoreStats, Wish, rows, schema
from autotune.store.decided import Decisions, Final
from autotune.store.engine import InsertNew, describe, insert, make_engine, parse, size_bytes, translated, writing
from autotune.store.migrate import current_revision, upgrade
from autotune.store.reader import Reader
from autotune.store.wishing import Wishing
from autotune.types import Choice, Environment, HardwareProfile, Stage, TuningRecord, Workload, utc_now

STREAMED_ROWS = 2_000
"""Rows fetched at a time for reports."""

KNOWN_KEYS = 200_000
"""Keys remembered as stored, so that they are not sent again; about 100 bytes each."""

_NOUNS: tuple[tuple[Table, str, Callable[[Any], rows.Columns]], ...] = (
    (schema.workloads, "workload", rows.workload_row),
    (schema.configs, "config", rows.config_row),
    (schema.hardware, "hardware", rows.hardware_row),
    (schema.environments, "environment", rows.environment_row),
    (schema.benchmark_specs, "spec", rows.spec_row),
)


def open_store(where: str | os.PathLike[str], *, create: bool = True) -> SqlStore:
    """Opens the database at a path or URL; a new one gets the current schema, unless `create` is false.

    The folder of the configured database (`settings.database`) is made when missing, any other must exist. Raises
    `Unavailable` when the database cannot be reached or is damaged, `Incompatible` when its schema is older or newer
    than this version's, `InvalidInput` for a malformed URL.
    """
    engine = _reach(where, create)
    name = describe(engine.url)
    try:
        found = _revision(engine)
        if found is None and create:
            upgrade(engine)
            found = SCHEMA_REVISION
        check_revision(found, name)
    except BaseException:
        engine.dispose()
        raise
    return SqlStore(engine)


def upgrade_store(where: str | os.PathLike[str]) -> tuple[str, str]:
    """Brings an existing database to this version's schema; returns the revisions before and after.

    Raises like `open_store`.
    """
    engine = _reach(where, create=False)
    try:
        found = _revision(engine)
        if found is None or not is_older(found):
            check_revision(found, describe(engine.url))
        upgrade(engine)
    finally:
        engine.dispose()
    return str(found), SCHEMA_REVISION


class SqlStore(Store):
    """See `Store`. `where` names the database for people."""

    def __init__(self, engine: Engine) -> None:
        self.where = describe(engine.url)
        self.engine = engine
        self._reader = Reader(engine, self.where)
        self._decisions = Decisions(engine)
        self._wishing = Wishing(engine)
        tables = (schema.measurements, *(table for table, _, _ in _NOUNS))
        self._insert = {table: InsertNew(engine, table) for table in tables}
        self._known: set[tuple[str, str]] = set()

    def add(self, records: Iterable[TuningRecord]) -> int:
        batch = list(records)
        if not batch:
            return 0
        measured = [rows.measurement_values(record) for record in batch]
        nouns, keys = self._unknown(batch)
        with translated(self.where), writing(self.engine) as connection:
            for table, found in nouns.items():
                self._insert[table](connection, [tuple(row.values()) for row in found.values()])
            if describe_better(connection, nouns[schema.hardware].values()):
                self._reader.forget_hardware()
            added = self._insert[schema.measurements](connection, measured)
            finals = [Final.of(record) for record in batch if record.stage is Stage.FINAL]
            self._decisions.update(connection, finals)
        if len(self._known) > KNOWN_KEYS:
            self._known.clear()
        self._known |= keys  # only now: what was rolled back is not stored
        return added

    def records(
        self,
        workload_key: str | None = None,
        hardware_key: str | None = None,
        environment_key: str | None = None,
    ) -> Iterator[TuningRecord]:
        wanted = {"workload_key": workload_key, "hardware_key": hardware_key, "environment_key": environment_key}
        return self._reader.records({name: key for name, key in wanted.items() if key is not None})

    def choices(self, workload_key: str, hardware_key: str, environment_key: str) -> tuple[Choice, ...]:
        with translated(self.where), self.engine.connect() as connection:
            return ranked(self._decisions.choices(connection, workload_key, hardware_key, environment_key))

    def workloads(self) -> tuple[Workload, ...]:
        return self._reader.workloads()

    def hardware(self) -> tuple[HardwareProfile, ...]:
        return self._reader.hardware()

    def environments(self) -> tuple[Environment, ...]:
        return self._reader.environments()

    def gains(self, hardware_key: str) -> dict[str, float]:
        served = text("SELECT op, beats_default, speedup FROM best_configs WHERE hardware_key = :key")
        found: dict[str, list[float]] = {}
        with translated(self.where), self.engine.connect() as connection:
            for op, beats_default, speedup in connection.execute(served, {"key": hardware_key}):
                found.setdefault(op, []).append(speedup if beats_default else 1.0)
        return {op: geometric_mean(speedups) for op, speedups in found.items()}

    def finish_job(self, job: JobKey, trials: int) -> None:
        done = {"trials": rows.int64(trials), "finished_at": utc_now()}
        statement = insert(self.engine, schema.jobs).values(**_columns(job), **done)
        statement = statement.on_conflict_do_update(
            index_elements=list(schema.jobs.primary_key.columns),
            set_={name: statement.excluded[name] for name in done},
        )
        with translated(self.where), writing(self.engine) as connection:
            connection.execute(statement)

    def finished_jobs(self, workload_key: str, hardware_key: str, environment_key: str) -> dict[str, JobReport]:
        t = schema.jobs.c
        query = select(t.space_key, t.trials, t.finished_at).where(
            t.workload_key == workload_key, t.hardware_key == hardware_key, t.environment_key == environment_key
        )
        with translated(self.where), self.engine.connect() as connection:
            return {row.space_key: JobReport(row.trials, row.finished_at) for row in connection.execute(query)}

    def wish(self, wishes: Iterable[Wish]) -> None:
        with translated(self.where), writing(self.engine) as connection:
            self._wishing.add(connection, wishes)

    def wishes(self, hardware_key: str | None = None) -> tuple[Wish, ...]:
        with translated(self.where), self.engine.connect() as connection:
            return self._wishing.open(connection, hardware_key)

    def take(self, wish: Wish, by: str, seconds: float) -> bool:
        with translated(self.where), writing(self.engine) as connection:
            return self._wishing.take(connection, wish, by, seconds)

    def grant(self, wish: Wish) -> None:
        with translated(self.where), writing(self.engine) as connection:
            self._wishing.grant(connection, wish)

    def stats(self) -> StoreStats:
        m, w, c = schema.measurements.c, schema.workloads.c, schema.configs.c
        with translated(self.where), self.engine.connect() as connection:

            def total(table: Table) -> int:
                return int(connection.scalar(select(func.count()).select_from(table)) or 0)

            def counts(query: Select[Any]) -> dict[str, int]:
                return {str(name): int(count) for name, count in connection.execute(query)}

            per_op = select(w.op, func.count()).join_from(
                schema.measurements, schema.workloads, w.key == m.workload_key
            )
            per_algorithm = select(c.algorithm, func.count()).join_from(
                schema.measurements, schema.configs, c.key == m.config_key
            )
            return StoreStats(
                measurements=total(schema.measurements),
                workloads=total(schema.workloads),
                configs=total(schema.configs),
                hardware=total(schema.hardware),
                environments=total(schema.environments),
                by_status=counts(select(m.status, func.count()).group_by(m.status).order_by(m.status)),
                by_op=counts(per_op.group_by(w.op).order_by(w.op)),
                by_algorithm=counts(per_algorithm.group_by(c.algorithm).order_by(c.algorithm)),
                schema_revision=SCHEMA_REVISION,
                size_bytes=size_bytes(connection),
            )

    @property
    def is_file(self) -> bool:
        """Whether this is SQLite."""
        return self.engine.dialect.name == "sqlite"

    def stream(self, statement: Executable) -> tuple[list[str], Iterator[Row[Any]]]:
        """For reports: column names and rows of any query, read as they are used; the database is only read."""
        connection = self.engine.connect().execution_options(yield_per=STREAMED_ROWS)
        try:
            with translated(self.where):
                result = connection.execute(statement)
        except BaseException:
            connection.close()
            raise

        def found() -> Iterator[Row[Any]]:
            with connection, translated(self.where):
                yield from result

        return list(result.keys()), found()

    def vacuum(self) -> None:
        """Gives back the space of deleted rows and renews what the query planner knows."""
        with translated(self.where), self.engine.connect() as connection:
            alone = connection.execution_options(isolation_level="AUTOCOMMIT")
            alone.exec_driver_sql("VACUUM")
            alone.exec_driver_sql("ANALYZE")

    def close(self) -> None:
        self.engine.dispose()

    def _unknown(self, batch: list[TuningRecord]) -> tuple[dict[Table, dict[str, rows.Columns]], set[tuple[str, str]]]:
        """Rows of the batch's nouns that may not be stored yet, by table and key; and what to remember of them."""
        found: dict[Table, dict[str, rows.Columns]] = {table: {} for table, _, _ in _NOUNS}
        seen: set[tuple[str, str]] = set()
        for table, attribute, to_row in _NOUNS:
            previous = None
            for record in batch:
                noun = getattr(record, attribute)
                if noun is previous:
                    continue
                previous = noun
                probed = table is schema.hardware and bool(noun.peak_gflops)
                mark = ("probed" if probed else table.name, noun.key)
                if mark not in seen and mark not in self._known:
                    seen.add(mark)
                    if probed or noun.key not in found[table]:
                        found[table][noun.key] = to_row(noun)
        return found, seen


def describe_better(connection: Connection, profiles: Iterable[rows.Columns]) -> bool:
    """A profile with measured figures takes the place of one of the same machine without; whether there was one."""
    t, better = schema.hardware, False
    for row in profiles:
        if rows.NO_FIGURES not in row["profile"]:
            bare = t.c.profile.contains(rows.NO_FIGURES, autoescape=True)
            connection.execute(update(t).where(t.c.key == row["key"], bare).values(row))
            better = True
    return better


def _columns(job: JobKey) -> dict[str, str]:
    return {
        "workload_key": job.workload_key,
        "hardware_key": job.hardware_key,
        "environment_key": job.environment_key,
        "space_key": job.space_key,
    }


def _reach(where: str | os.PathLike[str], create: bool) -> Engine:
    """An engine for a database that is there, or can be made. Raises `Unavailable` or `InvalidInput`."""
    url = parse(where)
    if url.drivername == "sqlite":
        path = str(url.database)
        folder = os.path.dirname(path)
        if create and path == sqlite_path(settings.database()):
            try:
                os.makedirs(folder, exist_ok=True)
            except OSError as error:
                raise Unavailable(f"the folder {folder} cannot be made: {error.strerror}") from error
        if not os.path.isdir(folder):
            raise Unavailable(f"the folder {folder} does not exist: create it, or name another database")
        if os.path.isdir(path):
            raise Unavailable(f"{path} is a folder, not a database file")
        if not create and not os.path.exists(path):
            raise Unavailable(f"there is no database {path}")
    return make_engine(url)


def _revision(engine: Engine) -> str | None:
    with translated(describe(engine.url)), engine.connect() as connection:
        return current_revision(connection)
