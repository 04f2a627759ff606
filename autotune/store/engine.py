"""From a path or URL to a SQLAlchemy engine, and everything in which SQLite and PostgreSQL differ.

SQLite: write-ahead log for new files, synchronous FULL (a commit is one fsync, ~5 ms a batch, and then survives power
loss as well as kill -9), busy timeout, and BEGIN IMMEDIATE for writers: a transaction that reads first and writes
later fails with "database is locked" no matter how long the timeout is.
"""

from __future__ import annotations

import os
import sqlite3
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

from sqlalchemy import URL, Connection, Engine, Table, create_engine, event, make_url, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError

from autotune.dbschema import sqlite_path, sqlite_sentence
from autotune.errors import InvalidInput, Unavailable
from autotune.store.schema import UtcDateTime, sqlite_time

BUSY_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 10
LOCK_PATIENCE_S = 60.0
"""How long a writer tries for its turn before it gives up; each try waits up to BUSY_TIMEOUT_S."""

COPY_FROM_ROWS = 200
"""Batches of at least this many rows go to PostgreSQL by COPY: setting that up takes about as long as 100 inserts."""

CACHE_KIB = 32_768
CHECKPOINT_PAGES = 4_000  # 16 MB of log: bulk inserts touch the same index pages again and again
_WRITES = "autotune_writes"
_DECIDING_LOCK = 7_210_436_185_301_119
"""Any constant: the PostgreSQL advisory lock under which decided entries change."""

NETWORK_FILESYSTEMS = frozenset(
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "afs",
        "ceph",
        "lustre",
        "beegfs",
        "gpfs",
        "glusterfs",
        "orangefs",
        "pvfs2",
        "panfs",
        "wekafs",
        "fuse.sshfs",
        "fuse.glusterfs",
        "fuse.ceph",
        "fuse.s3fs",
        "fuse.rclone",
    ]
)
_warned_of: set[str] = set()


def parse(where: str | os.PathLike[str]) -> URL:
    """The URL of a path or URL. Raises `InvalidInput` when it is neither, without repeating a password."""
    path = sqlite_path(where)
    if path is not None:
        return URL.create("sqlite", database=path)
    try:
        url = make_url(os.fspath(where))
    except (ArgumentError, ValueError):
        raise InvalidInput("the database URL is malformed: it looks like postgresql://user@host/name") from None
    if "@" in (url.host or ""):  # the rest of a password that would be shown as the host
        raise InvalidInput("the database URL is malformed: write @ in a password as %40")
    if url.drivername in ("postgres", "postgresql"):
        url = url.set(drivername="postgresql+psycopg")
    if not url.drivername.startswith("postgresql"):
        raise InvalidInput(f"databases of kind {url.drivername!r} are not supported: use SQLite or PostgreSQL")
    return url


def describe(url: URL) -> str:
    """The database's name for people: the path of a file, or the URL without its password."""
    if url.drivername == "sqlite":
        return str(url.database)
    shown = url.set(drivername="postgresql", query={})  # a query may hold a password as well
    return shown.render_as_string(hide_password=True)


def make_engine(url: URL) -> Engine:
    """An engine for a parsed URL; nothing is opened yet. Raises `Unavailable` when the driver is not installed."""
    if url.drivername == "sqlite":
        return _sqlite_engine(url)
    limits = {} if "connect_timeout" in url.query else {"connect_timeout": CONNECT_TIMEOUT_S}
    try:
        return create_engine(url, hide_parameters=True, pool_pre_ping=True, connect_args=limits)
    except (ImportError, NoSuchModuleError):
        raise Unavailable(
            f"{describe(url)} needs a database driver: install it with pip install 'autotune[cluster]'"
        ) from None


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Turns the driver's exceptions into `Unavailable` with one sentence."""
    try:
        yield
    except IntegrityError:
        raise  # not the database's state but a mistake of ours
    except DBAPIError as error:
        raise Unavailable(_sentence(where, error.orig or error)) from error
    except CopyFailed as error:
        raise Unavailable(_sentence(where, error)) from error
    except sqlite3.Error as error:  # raised while a connection is set up, where SQLAlchemy does not wrap it
        raise Unavailable(_sentence(where, error)) from error


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A connection inside a write transaction: committed at the end, rolled back on an exception."""
    deadline = time.monotonic() + LOCK_PATIENCE_S
    with engine.connect() as connection:
        connection = connection.execution_options(**{_WRITES: True})
        while True:
            try:
                transaction = connection.begin()
                break
            except DBAPIError as error:
                if not _is_locked(error.orig) or time.monotonic() > deadline:
                    raise
        with transaction:
            yield connection


class CopyFailed(Exception):
    """The driver's error during a COPY, which SQLAlchemy does not see and wrap; the text is the driver's."""


class InsertNew:
    """Inserts many rows of one table and leaves those whose primary key is there already as they are.

    On SQLite the compiled statement goes to the driver with plain tuples: SQLAlchemy's handling of each row's
    parameters would take as long as the insert itself. PostgreSQL takes many rows by COPY into a temporary table,
    which knows no conflicts, and from there into the table.
    """

    def __init__(self, engine: Engine, table: Table) -> None:
        self._table = table
        self._names = [column.name for column in table.columns]
        keys = list(table.primary_key.columns)
        self._statement = insert(engine, table).on_conflict_do_nothing(index_elements=keys)
        self._key = itemgetter(*(self._names.index(column.name) for column in keys))
        self._times = [at for at, column in enumerate(table.columns) if isinstance(column.type, UtcDateTime)]
        self._sql = ""
        if engine.dialect.name == "sqlite":
            self._sql = str(self._statement.compile(dialect=engine.dialect, column_keys=self._names))

    def __call__(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> int:
        """Returns how many were new. A row has the values of all columns, in the table's order."""
        if not rows:
            return 0
        options = {"preserve_rowcount": True}
        if self._sql:
            for at in self._times:
                rows = [(*row[:at], sqlite_time(row[at]), *row[at + 1 :]) for row in rows]
            return connection.exec_driver_sql(self._sql, list(rows), execution_options=options).rowcount
        rows = sorted(rows, key=self._key)  # two that insert the same rows must not wait for each other
        if len(rows) >= COPY_FROM_ROWS:
            return self._copy(connection, rows)
        named = [dict(zip(self._names, row, strict=True)) for row in rows]
        return connection.execute(self._statement, named, execution_options=options).rowcount

    def _copy(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> int:
        import psycopg

        name, columns = f"incoming_{self._table.name}", ", ".join(f'"{name}"' for name in self._names)
        keys = ", ".join(column.name for column in self._table.primary_key.columns)
        driver: Any = connection.connection.driver_connection  # psycopg's own, which knows COPY
        try:
            with driver.cursor() as cursor:
                like = f"LIKE {self._table.name}, incoming_order BIGINT GENERATED ALWAYS AS IDENTITY"
                cursor.execute(f"CREATE TEMPORARY TABLE {name} ({like}) ON COMMIT DROP")
                with cursor.copy(f"COPY {name} ({columns}) FROM STDIN") as copy:
                    for row in rows:
                        copy.write_row(row)
                cursor.execute(  # of equal keys in one batch the first counts, as in SQLite
                    f"INSERT INTO {self._table.name} ({columns}) SELECT DISTINCT ON ({keys}) {columns} FROM {name}"
                    f" ORDER BY {keys}, incoming_order ON CONFLICT ({keys}) DO NOTHING"
                )
                added = int(cursor.rowcount)
                cursor.execute(f"DROP TABLE {name}")
        except psycopg.Error as error:
            raise CopyFailed(str(error) or type(error).__name__) from error
        return added


def insert(engine: Engine, table: Table) -> sqlite.Insert | postgresql.Insert:
    """The dialect's INSERT, which has `on_conflict_do_nothing` and `on_conflict_do_update`."""
    return sqlite.insert(table) if engine.dialect.name == "sqlite" else postgresql.insert(table)


def one_at_a_time(connection: Connection) -> None:
    """Until the transaction ends, no other one that calls this goes on. SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _DECIDING_LOCK})


def size_bytes(connection: Connection) -> int:
    """What the database takes on disk."""
    if connection.dialect.name == "sqlite":
        pages = connection.scalar(text("PRAGMA page_count"))
        return int(pages or 0) * int(connection.scalar(text("PRAGMA page_size")) or 0)
    return int(connection.scalar(text("SELECT pg_database_size(current_database())")) or 0)


def filesystem(path: str, mounts: str = "/proc/mounts") -> tuple[str, str]:
    """(mount point, type) of the filesystem that holds `path`, from a table like /proc/mounts; ("", "") if unknown."""
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as table:
            rows = [line.split() for line in table]
    except OSError:
        return "", ""
    real = os.path.realpath(path)
    found = ("", "")
    for row in rows:
        if len(row) < 3:
            continue
        point = row[1]
        for escaped, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
            point = point.replace(escaped, character)
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(found[0]):  # the later of two mounts on one point hides the earlier
            found = (point, row[2])
    return found


def journal_mode(path: str, mounts: str = "/proc/mounts") -> str:
    """ "wal", or "delete" on a network filesystem, where processes cannot share a write-ahead log; warns of it once."""
    point, kind = filesystem(path, mounts)
    if kind not in NETWORK_FILESYSTEMS:
        return "wal"
    if point not in _warned_of:
        _warned_of.add(point)
        warnings.warn(
            f"{path} is on a network filesystem ({kind}), where SQLite is slow and its locks are not always sound: "
            "keep the database on a local disk or use PostgreSQL",
            stacklevel=2,
        )
    return "delete"


def _sqlite_engine(url: URL) -> Engine:
    path = str(url.database)
    journal = journal_mode(path)
    engine = create_engine(url, hide_parameters=True, connect_args={"timeout": BUSY_TIMEOUT_S})

    @event.listens_for(engine, "connect")
    def set_up(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # the driver begins no transactions of its own; `begin` below does
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
        connection.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
        # The mode stays in the file: a new one gets it, another's or a shipped one is left as it is.
        if journal == "delete" or connection.execute("PRAGMA page_count").fetchone()[0] == 0:
            _set_journal_mode(connection, journal)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        if connection.get_execution_options().get(_WRITES):
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _set_journal_mode(connection: sqlite3.Connection, wanted: str) -> None:
    if connection.execute("PRAGMA journal_mode").fetchone()[0] == wanted:
        return
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute(f"PRAGMA journal_mode={wanted}")
            return
        except sqlite3.OperationalError as error:  # the busy timeout does not cover this statement
            if not _is_locked(error) or time.monotonic() > deadline:
                return  # any mode reads right; a database that cannot be written will say so when it is
            time.sleep(0.01)


def _is_locked(error: BaseException | None) -> bool:
    return isinstance(error, sqlite3.OperationalError) and "locked" in str(error)


def _sentence(where: str, error: BaseException) -> str:
    if isinstance(error, sqlite3.Error):
        return sqlite_sentence(where, str(error))
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"{where} cannot be reached: {lines[0]}"
