"""Moves databases: everything from one to another, or what lookups need into a file.

Rows are copied as they are, so that ops which are not installed here move too. Pages are read in the order of the
primary key, all in one transaction, so that what a sweep adds meanwhile is not half seen; each is one transaction at
the target: memory stays bounded, and a copy that was stopped goes on when it is run again, because rows that are there
already are left alone. The `best` table is not copied but decided from
the measurements as they arrive; what comes out is the same in whatever order databases are united.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Select, Table, select, tuple_

from autotune.dbschema import sqlite_path
from autotune.errors import InvalidInput, Unavailable
from autotune.store import schema
from autotune.store.decided import IDENTITY, Decisions, Final
from autotune.store.engine import InsertNew, insert, parse, translated, writing
from autotune.store.sql import SqlStore, describe_better, open_store
from autotune.types import Stage, Status

PAGE_ROWS = 5_000

NOUNS = (schema.workloads, schema.hardware, schema.environments, schema.configs, schema.benchmark_specs)
KEYS_OF_BEST = {
    schema.workloads: schema.best.c.workload_key,
    schema.hardware: schema.best.c.hardware_key,
    schema.environments: schema.best.c.environment_key,
    schema.configs: schema.best.c.config_key,
}


@dataclass(frozen=True)
class Moved:
    """How many measurements the source has, and how many of them were new at the target."""

    measurements: int
    added: int


def copy(source: str, target: str, observe: Callable[[Moved], None] = lambda _: None) -> Moved:
    """Adds everything in `source` to `target`, which is made when it does not exist.

    `observe` is told after every page. Raises like `open_store`, and `InvalidInput` when both are one database.
    """
    with open_store(source, create=False) as one:
        if parse(source) == parse(target) or _same_file(source, target):
            raise InvalidInput(f"{one.where} cannot be copied to itself")
        with open_store(target) as other:
            return _copy(one, other, observe)


def _copy(one: SqlStore, other: SqlStore, observe: Callable[[Moved], None]) -> Moved:
    with reading(one.engine, one.where) as source, translated(other.where):
        for table in NOUNS:
            new = InsertNew(other.engine, table)
            for page in _pages(source, table):
                with writing(other.engine) as connection:
                    new(connection, page)
                    if table is schema.hardware:
                        names = [column.name for column in table.columns]
                        describe_better(connection, [dict(zip(names, row, strict=True)) for row in page])
        moved = Moved(0, 0)
        new, decisions = InsertNew(other.engine, schema.measurements), Decisions(other.engine)
        for page in _pages(source, schema.measurements):
            with writing(other.engine) as connection:
                added = new(connection, page)
                decisions.update(connection, _finals(page))
            moved = Moved(moved.measurements + len(page), moved.added + added)
            observe(moved)
        for table, column in ((schema.jobs, schema.jobs.c.finished_at), (schema.wishes, schema.wishes.c.last_asked_at)):
            for page in _pages(source, table):
                with writing(other.engine) as connection:
                    _newer_wins(connection, other.engine, table, column.name, page)
    return moved


def snapshot(source: str, file: str, full: bool = False) -> int:
    """Freezes what lookups need of `source` into a read-only file; returns how many decided entries it has.

    The file appears complete or not at all, and equal contents give equal bytes. `full`: with all measurements.
    Raises like `open_store`, and `InvalidInput` when `file` is no file name or the source itself.
    """
    path = sqlite_path(file)
    if path is None:
        raise InvalidInput(f"a snapshot is a file, not {file.partition('://')[0]}")
    with open_store(source, create=False) as one:
        if _same_file(source, path):
            raise InvalidInput(f"{one.where} cannot be frozen into itself")
        folder = os.path.dirname(path)
        if not os.path.isdir(folder):
            raise Unavailable(f"the folder {folder} does not exist: create it, or name another file")
        try:
            with tempfile.TemporaryDirectory(prefix=".autotune-", dir=folder) as temporary:
                made = os.path.join(temporary, "snapshot.sqlite")
                with open_store(made) as other, translated(made), reading(one.engine, one.where) as rows:
                    decided = _freeze(rows, other, full)
                _finish(made)
                os.replace(made, path)
        except OSError as error:
            raise Unavailable(f"{path} cannot be written: {error.strerror}") from error
    return decided


def _freeze(source: Connection, other: SqlStore, full: bool) -> int:
    """Copies tables in the order of their keys, so that equal contents are equal bytes."""
    tables = [*NOUNS, schema.measurements, schema.jobs] if full else list(KEYS_OF_BEST)
    for table in tables:
        new, key = InsertNew(other.engine, table), KEYS_OF_BEST.get(table)
        wanted = None if full or key is None else select(key)
        for page in _pages(source, table, wanted):
            with writing(other.engine) as connection:
                new(connection, page)
    decided, new = 0, InsertNew(other.engine, schema.best)
    for page in _pages(source, schema.best):
        with writing(other.engine) as connection:
            decided += new(connection, page)
    return decided


def _finish(path: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")  # one file, readable where nothing may be written
        connection.execute("VACUUM")
    os.chmod(path, 0o444)


@contextlib.contextmanager
def reading(engine: Engine, where: str) -> Iterator[Connection]:
    """A connection that sees the database as it is now, whatever others commit meanwhile."""
    with translated(where), engine.connect() as connection:
        if connection.dialect.name == "postgresql":
            connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection
        else:
            connection.exec_driver_sql("BEGIN")  # SQLite's snapshot begins with the first read
            yield connection
            connection.exec_driver_sql("COMMIT")


def _pages(source: Connection, table: Table, keys: Select[Any] | None = None) -> Iterator[list[tuple[Any, ...]]]:
    """All rows of a table in the order of its primary key, `PAGE_ROWS` at a time; only those with one of `keys`."""
    primary = list(table.primary_key.columns)
    places = [list(table.columns).index(column) for column in primary]
    query = select(table).order_by(*primary).limit(PAGE_ROWS)
    if keys is not None:
        query = query.where(primary[0].in_(keys))
    after: tuple[Any, ...] | None = None
    while True:
        wanted = query if after is None else query.where(tuple_(*primary) > tuple_(*after))
        page = [tuple(row) for row in source.execute(wanted)]
        if page:
            yield page
        if len(page) < PAGE_ROWS:
            return
        after = tuple(page[-1][place] for place in places)


def _finals(page: list[tuple[Any, ...]]) -> Iterator[Final]:
    names = [column.name for column in schema.measurements.columns]
    uid, stage, status, *identity = (names.index(name) for name in ("uid", "stage", "status", *IDENTITY))
    for row in page:
        if row[stage] == Stage.FINAL.value:
            a, b, c, d = (str(row[place]) for place in identity)
            yield Final(row[uid], row[status] == Status.OK.value, (a, b, c, d))


def _newer_wins(connection: Connection, engine: Engine, table: Table, when: str, page: list[tuple[Any, ...]]) -> None:
    primary = list(table.primary_key.columns)
    statement = insert(engine, table)
    others = [column.name for column in table.columns if column.name not in table.primary_key.columns]
    statement = statement.on_conflict_do_update(
        index_elements=primary,
        set_={name: statement.excluded[name] for name in others},
        where=statement.excluded[when] > table.c[when],
    )
    names = [column.name for column in table.columns]
    connection.execute(statement, [dict(zip(names, row, strict=True)) for row in page])


def _same_file(one: str, other: str) -> bool:
    a, b = sqlite_path(one), sqlite_path(other)
    with contextlib.suppress(OSError):
        return a is not None and b is not None and os.path.samefile(a, b)
    return False
