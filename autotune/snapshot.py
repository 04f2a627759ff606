"""Read-only access to a database file with the standard library: what lookup asks. No SQLAlchemy, no torch.

    snapshot = Snapshot.open("tuning.sqlite")
    if snapshot: snapshot.choices(workload.key, hardware.key, environment.key)

A snapshot may be used from any thread, and in a child after a fork: connections are closed before every fork and
opened again when next needed, because SQLite's may not cross one. It sees what other processes commit.
"""

from __future__ import annotations

import json
import math
import os
import weakref
from _thread import RLock  # threading's own, without the import

from autotune.dbschema import VERSION_TABLE, check_revision, sqlite_path, sqlite_sentence
from autotune.decide import ranked
from autotune.errors import Incompatible, Unavailable
from autotune.types import Choice, Config

TYPE_CHECKING = False  # importing typing costs more than this module
if TYPE_CHECKING:
    import sqlite3
    from typing import Any

_LOCK = RLock()
"""Held during every query and every fork. A query takes microseconds, so one lock serves all snapshots."""

KEPT_CONFIGS = 4096

_CHOICES = """
SELECT b.config_key, c.algorithm, c.params, c.placement, b.kernel_revision, b.expected_ns, b.baseline_ns, b.speedup,
       b.speedup_low, b.speedup_high, b.max_error, b.contended
FROM best AS b JOIN configs AS c ON c.key = b.config_key
WHERE b.workload_key = ? AND b.hardware_key = ? AND b.environment_key = ?
"""

_NEAREST = """
SELECT DISTINCT h.name, e.framework
FROM best AS b JOIN hardware AS h ON h.key = b.hardware_key JOIN environments AS e ON e.key = b.environment_key
WHERE b.workload_key = ? ORDER BY h.name, e.framework
"""


_MEASURED = """
SELECT w.spec, m.config_key, c.algorithm, c.params, c.placement, min(m.median_ns)
FROM workloads AS w CROSS JOIN measurements AS m ON m.workload_key = w.key JOIN configs AS c ON c.key = m.config_key
WHERE substr(w.spec, 1, ?) = ? AND m.hardware_key = ? AND m.environment_key = ? AND m.kernel_revision = ?
  AND m.status = 'OK' GROUP BY w.spec, m.config_key ORDER BY w.spec, m.config_key
"""

_ELSEWHERE = """
SELECT DISTINCT c.key, c.algorithm, c.params, c.placement
FROM best AS b JOIN configs AS c ON c.key = b.config_key WHERE b.workload_key = ? ORDER BY b.speedup DESC LIMIT 8
"""


class Snapshot:
    """The decided entries of one database file. Queries raise `Unavailable` when the file cannot be read any more."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None
        self._pid = 0
        self._configs: dict[str, Config] = {}
        with _LOCK:
            _open_snapshots.add(self)

    @classmethod
    def open(cls, where: str | os.PathLike[str]) -> Snapshot | None:
        """The database at a path or `sqlite:///` URL; None when there is no file, or nothing in it yet.

        Raises `Unavailable` for a file that cannot be read as a database or a URL of a server, `Incompatible` for
        another schema.
        """
        path = sqlite_path(where)
        if path is None:
            raise Unavailable("lookup reads database files only: take a snapshot of the server's database to a file")
        if not os.path.exists(path):
            return None
        snapshot = cls(path)
        try:
            tables = snapshot._query("SELECT count(*) FROM sqlite_master", ())[0][0]
        except BaseException:
            snapshot.close()
            raise
        if tables:
            return snapshot
        snapshot.close()
        return None

    def choices(self, workload_key: str, hardware_key: str, environment_key: str) -> tuple[Choice, ...]:
        """The decided configs of that identity, fastest first (see `decide.ranked`)."""
        rows = self._query(_CHOICES, (workload_key, hardware_key, environment_key))
        return ranked([self._choice(row) for row in rows]) if rows else ()

    def nearest(self, workload_key: str) -> list[tuple[str, str]]:
        """(hardware name, environment's framework) under which that workload has decided entries."""
        return [(str(name), str(framework)) for name, framework in self._query(_NEAREST, (workload_key,))]

    def elsewhere(self, workload_key: str) -> list[Config]:
        """Configs decided for that workload under any identity: worth a prediction here."""
        return [self._config(*row) for row in self._query(_ELSEWHERE, (workload_key,))]

    def measured(
        self, spec_prefix: str, hardware_key: str, environment_key: str, kernel_revision: str
    ) -> list[tuple[str, Config, float]]:
        """(spec, config, least median ns) of all workloads whose spec begins so, whether they were decided or not."""
        values = (len(spec_prefix), spec_prefix, hardware_key, environment_key, kernel_revision)
        return [(str(row[0]), self._config(*row[1:5]), float(row[5])) for row in self._query(_MEASURED, values)]

    def close(self) -> None:
        """Gives the file back; a later query opens it again."""
        with _LOCK:
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
            self._connection = None

    def _query(self, statement: str, values: tuple[str | int, ...]) -> list[Any]:
        import sqlite3

        with _LOCK:
            if self._connection is None or self._pid != os.getpid():
                self._connect()
            assert self._connection is not None
            try:
                return self._connection.execute(statement, values).fetchall()
            except sqlite3.Error as error:
                self.close()
                raise Unavailable(sqlite_sentence(self.path, str(error))) from error

    def _connect(self) -> None:
        """Opens the file, for the first time or in a new process. Called under the lock."""
        import sqlite3

        if self._connection is not None:
            _abandoned.append(self._connection)  # a parent's, inherited by a fork that ran no hooks: hands off
            self._connection = None
        # A log that others write to needs a writable folder; where there is none, nobody writes and nothing changes.
        for how in ("mode=ro", "mode=ro&immutable=1"):
            connection = None
            try:
                connection = sqlite3.connect(uri(self.path, how), uri=True, timeout=1.0, check_same_thread=False)
                self._check(connection)
            except sqlite3.Error as error:
                if connection is not None:
                    connection.close()
                code = getattr(error, "sqlite_errorname", "")
                if how == "mode=ro" and code.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
                    continue
                raise Unavailable(sqlite_sentence(self.path, str(error))) from error
            except Incompatible:
                assert connection is not None
                connection.close()
                raise
            self._connection, self._pid = connection, os.getpid()
            return

    def _check(self, connection: sqlite3.Connection) -> None:
        names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if names:  # else another process is just making it
            versioned = VERSION_TABLE in names
            found = connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone() if versioned else None
            check_revision(str(found[0]) if found else None, self.path)

    def _choice(self, row: tuple[Any, ...]) -> Choice:
        key, algorithm, params, placement, revision, expected, baseline, speedup, low, high, error, contended = row
        config = self._config(key, algorithm, params, placement)
        # an error that is not known is infinite, hence within no error budget
        worst = math.inf if error is None else error
        return Choice(config, revision, expected, baseline, speedup, (low, high), worst, bool(contended))

    def _config(self, key: str, algorithm: str, params: str, placement: str) -> Config:
        config = self._configs.get(key)
        if config is None:
            if len(self._configs) >= KEPT_CONFIGS:
                self._configs.clear()
            config = self._configs[key] = Config(algorithm, json.loads(params), placement)
        return config


def uri(path: str, how: str) -> str:
    """SQLite's URI of an absolute path with one parameter such as `mode=ro`."""
    for character, escaped in (("%", "%25"), ("?", "%3f"), ("#", "%23")):
        path = path.replace(character, escaped)
    return f"file://{path}?{how}"


_open_snapshots: weakref.WeakSet[Snapshot] = weakref.WeakSet()
_abandoned: list[Any] = []


def _before_fork() -> None:
    _LOCK.acquire()
    for snapshot in list(_open_snapshots):
        snapshot.close()


os.register_at_fork(before=_before_fork, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)
