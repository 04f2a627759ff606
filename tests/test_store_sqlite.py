"""The SQLite store: the contract, files that cannot be used, many processes at once, and what the tables hold."""

from __future__ import annotations

import math
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, Table
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from autotune import registry
from autotune.dbschema import SCHEMA_REVISION
from autotune.errors import Incompatible, InvalidInput, Unavailable
from autotune.store import Store, engine, reader, rows, schema, sql
from autotune.store.sql import SqlStore, open_store, upgrade_store
from autotune.types import Config, Measurement, Stage, Status
from tests import store_samples as sample
from tests.conftest import without_privileges
from tests.store_contract import StoreContract
from tests.store_workers import add_batches, add_until_killed


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "tuning.sqlite")


class TestSqlite(StoreContract):
    @pytest.fixture
    def open_store(self, path: str) -> Callable[[], Store]:
        return lambda: open_store(path)


@pytest.mark.parametrize("page", [1, 2, 3, 5, 6, 7])
def test_pages_make_no_difference(path: str, page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "PAGE", page)
    hardware = (sample.HARDWARE, sample.OTHER_HARDWARE)
    records = [
        sample.record(repetition=n, measured_at=sample.at(n // 3), hardware=hardware[n // 4], config=sample.config(n))
        for n in range(6)
    ]
    records.sort(key=lambda record: (record.measured_at, record.uid))
    with open_store(path) as store:
        store.add(records)
        assert list(store.records()) == records
        assert list(store.records(sample.WORKLOAD.key)) == records
        ours = [record for record in records if record.hardware == sample.HARDWARE]
        assert list(store.records(*sample.IDENTITY)) == ours


# Opening


def test_paths_and_urls_name_the_same_database(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(path) as store:
        store.add([sample.record()])
        assert isinstance(store, SqlStore)
        assert store.where == path
    monkeypatch.chdir(tmp_path)
    for where in (f"sqlite:///{path}", "tuning.sqlite", "sqlite:///tuning.sqlite", Path(path)):
        with open_store(where, create=False) as store:
            assert store.stats().measurements == 1


@pytest.mark.parametrize(
    "name", ["a b.sqlite", "what?.sqlite", "#1.sqlite", "50%41.sqlite", "é.sqlite", "a&b=c.sqlite"]
)
def test_any_file_name_is_taken_literally(tmp_path: Path, name: str) -> None:
    with open_store(tmp_path / name) as store:
        store.add([sample.record()])
    assert [file.name for file in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("where", ["", "sqlite://", ":memory:", "sqlite:///:memory:"])
def test_a_database_without_a_file_is_refused(where: str) -> None:
    with pytest.raises(InvalidInput, match="names no database file"):
        open_store(where)


def test_other_kinds_of_databases_are_refused() -> None:
    with pytest.raises(InvalidInput, match="mysql"):
        open_store("mysql://user:secret@host/db")


@pytest.mark.parametrize(
    "where", ["postgresql://user:secret@127.0.0.1:9/db", "postgresql+psycopg://user@127.0.0.1:9/db?password=secret"]
)
def test_an_unreachable_server_is_named_without_its_password(where: str) -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1") as caught:
        open_store(where)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("where", ["postgresql://user:se@cret@host/db", "postgresql://host:port:secret/db"])
def test_a_malformed_url_is_not_repeated(where: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        open_store(where)
    assert "cret" not in str(caught.value)


def test_a_missing_folder_or_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"folder .*missing does not exist"):
        open_store(tmp_path / "missing" / "tuning.sqlite")
    with pytest.raises(Unavailable, match="there is no database"):
        open_store(tmp_path / "tuning.sqlite", create=False)
    with pytest.raises(Unavailable, match="is a folder"):
        open_store(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_the_configured_database_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_DB", str(tmp_path / "new" / "deep" / "tuning.sqlite"))
    open_store(tmp_path / "new" / "deep" / "tuning.sqlite").close()
    assert (tmp_path / "new" / "deep" / "tuning.sqlite").is_file()


def test_something_else_is_not_taken_for_a_database(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to be taken for one at first sight\n" * 100)
    with pytest.raises(Unavailable, match="is not an SQLite database"):
        open_store(text)
    empty = tmp_path / "empty.sqlite"
    empty.touch()
    with pytest.raises(Incompatible, match="not an autotune database"):
        open_store(empty, create=False)
    assert "not a database" in text.read_text()


@pytest.mark.parametrize("keep", [0.95, 0.5, 0.1, 0.02])
def test_a_truncated_file_is_reported(path: str, keep: float) -> None:
    with open_store(path) as store:
        store.add([sample.record(config=sample.config(n)) for n in range(300)])
    os.truncate(path, int(os.path.getsize(path) * keep))
    with pytest.raises(Unavailable, match=r"damaged|not an SQLite|truncated"), open_store(path) as store:
        list(store.records())


def test_a_read_only_database_is_reported(readable: Path) -> None:
    path = readable / "tuning.sqlite"
    with open_store(path) as store:
        store.add([sample.record()])
    with without_privileges(), pytest.raises(Unavailable, match=r"read-only|may read it"), open_store(path) as store:
        store.add([sample.record(job="another")])
    with without_privileges(), pytest.raises(Unavailable, match=r"may read it|read-only"):
        open_store(readable / "new.sqlite")
    with open_store(path) as store:
        assert store.stats().measurements == 1


def test_an_older_schema_names_the_command(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    open_store(path).close()
    set_revision(path, "0000")
    with pytest.raises(Incompatible, match=rf"schema 0000, .* needs {SCHEMA_REVISION}: run `autotune db upgrade`"):
        open_store(path)


@pytest.mark.parametrize("revision", ["0999", "9999", "abc", ""])
def test_a_newer_schema_says_so(path: str, revision: str) -> None:
    open_store(path).close()
    set_revision(path, revision)
    for attempt in (open_store, upgrade_store):
        with pytest.raises(Incompatible, match=rf"newer autotune \(schema {revision}\): upgrade autotune"):
            attempt(path)


def test_upgrading_what_is_up_to_date_changes_nothing(path: str) -> None:
    open_store(path).close()
    assert upgrade_store(path) == (SCHEMA_REVISION, SCHEMA_REVISION)


def test_tables_of_the_same_name_are_left_alone(path: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE jobs (id INTEGER)")
        connection.commit()
    with pytest.raises(Incompatible, match="table jobs of another program"):
        open_store(path)
    assert tables(path) == {"jobs"}


def set_revision(path: str, revision: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE autotune_version SET version_num = ?", (revision,))
        connection.commit()


def tables(path: str) -> set[str]:
    with closing(sqlite3.connect(path)) as connection:
        return {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


# Filesystems and journal


def test_a_new_database_has_a_write_ahead_log_and_others_keep_theirs(path: str) -> None:
    open_store(path).close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        connection.execute("PRAGMA journal_mode=DELETE")
    with open_store(path) as store:
        store.add([sample.record()])
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_a_network_filesystem_is_warned_of_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/vda / ext4 rw 0 0\nserver:/x /mnt nfs4 rw 0 0\nserver:/y /mnt/with\\040space fuse.sshfs rw 0 0\n"
        "/dev/vdb /mnt/local ext4 rw 0 0\nbroken\n"
    )
    monkeypatch.setattr(engine, "_warned_of", set())
    assert engine.filesystem("/mnt/local/x", str(mounts)) == ("/mnt/local", "ext4")
    assert engine.filesystem("/mntother/x", str(mounts)) == ("/", "ext4")
    assert engine.journal_mode("/home/x", str(mounts)) == "wal"
    assert engine.journal_mode("/home/x", str(tmp_path / "none")) == "wal"
    for file in ("/mnt/x", "/mnt/with space/x"):
        with pytest.warns(UserWarning, match="network filesystem") as warned:
            modes = [engine.journal_mode(file, str(mounts)) for _ in range(2)]
        assert (modes, len(warned)) == (["delete", "delete"], 1)


def test_on_a_network_filesystem_there_is_no_write_ahead_log(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    open_store(path).close()
    monkeypatch.setattr(engine, "journal_mode", lambda path: "delete")
    with open_store(path) as store:
        store.add([sample.record()])
        assert not os.path.exists(path + "-wal")
        assert len(store.choices(*sample.IDENTITY)) == 1


# Many processes


def light_context() -> ForkServerContext:
    """Processes that inherit nothing but imports: the server they come from has opened no database."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.store_workers", "alembic.command", "autotune.ops.linear"])
    return context


def processes(count: int) -> ProcessPoolExecutor:
    """Real processes that begin together."""
    context = light_context()
    barrier = context.Barrier(count, timeout=60)
    return ProcessPoolExecutor(count, mp_context=context, initializer=barrier.wait)


def test_32_processes_start_at_once_on_one_new_file(path: str) -> None:
    workers, batches, per_batch = 32, 3, 5
    with processes(workers) as pool:
        jobs = [pool.submit(add_batches, path, worker, batches, per_batch) for worker in range(workers)]
        added = [job.result() for job in jobs]
    assert sum(added) == workers * batches * per_batch + batches  # the shared ones once
    with open_store(path, create=False) as store:
        found = [record.uid for record in store.records()]
        assert len(found) == len(set(found)) == sum(added)
        assert len(store.choices(*sample.IDENTITY)) == per_batch + 1
        assert store.stats().hardware == 1


def test_a_killed_writer_loses_nothing_that_was_stored(path: str, tmp_path: Path) -> None:
    written = tmp_path / "written"
    process = light_context().Process(target=add_until_killed, args=(path, str(written)))
    process.start()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (written.exists() and int(written.read_text() or 0) >= 20):
        time.sleep(0.01)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with open_store(path, create=False) as store:
        repetitions = {record.repetition for record in store.records()}
        assert repetitions >= set(range(int(written.read_text())))
        assert store.add([sample.record(job="after")]) == 1


# What the tables hold


def timed(time_ns: Any, baseline_ns: Any) -> Measurement:
    return Measurement(Status.OK, times_ns=(time_ns,), baseline_ns=(baseline_ns,), max_error=0.0)


def test_no_column_holds_a_figure_that_is_no_number(path: str) -> None:
    bad = (math.inf, -math.inf, math.nan)
    measurements = [
        *(sample.ok(max_error=value) for value in bad),
        *(timed(value, 1) for value in bad),
        timed(1e-300, 1e300),
        sample.ok(prepare_ns=math.inf, build_ns=math.nan, workspace_bytes=1 << 80),
    ]
    with open_store(path) as store:
        store.add([sample.record(m, repetition=n, config=sample.config(n)) for n, m in enumerate(measurements)])
    with closing(sqlite3.connect(path)) as connection:
        for table in tables(path):
            for row in connection.execute(f"SELECT * FROM {table}"):
                for value in row:
                    assert not (isinstance(value, float) and not math.isfinite(value))
                    assert not (isinstance(value, str) and ("NaN" in value or "Infinity" in value))
        counts = "SELECT DISTINCT typeof(prepare_ns), typeof(build_ns), typeof(workspace_bytes) FROM measurements"
        assert connection.execute(counts).fetchall() == [("integer", "integer", "integer")]


def test_rows_have_the_order_of_their_columns() -> None:
    record = sample.record()
    for table, attribute, to_row in sql._NOUNS:
        assert list(to_row(getattr(record, attribute))) == [column.name for column in table.columns]
    assert len(rows.measurement_values(record)) == len(schema.measurements.columns)


def test_flops_beyond_64_bits_are_clamped(path: str) -> None:
    from autotune.ops.linear import Linear

    with open_store(path) as store:
        store.add([sample.record(workload=Linear(1 << 40, 1 << 40, 1 << 40))])
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT flops, bytes FROM workloads").fetchall() == [(2**63 - 1, 2**63 - 1)]


def test_the_best_view_shows_what_lookup_serves(path: str) -> None:
    default = registry.op("linear").default(sample.WORKLOAD)
    lossy, exact = sample.config(1), sample.config(2)
    with open_store(path) as store:
        store.add([sample.record(sample.ok(ratio=1.0), config=default)])
        store.add([sample.record(replace(sample.ok(ratio=9.0), max_error=0.05), config=lossy)])
        with closing(sqlite3.connect(path)) as connection:
            query = "SELECT algorithm, params, beats_default FROM best_configs"
            assert connection.execute(query).fetchall() == [("torch", "{}", 0)]
            store.add([sample.record(sample.ok(ratio=1.5), config=exact)])
            assert connection.execute(query).fetchall() == [(exact.algorithm, exact.params_json, 1)]


def test_views_are_for_people(path: str) -> None:
    fast, slow = sample.config(1), sample.config(2)
    with open_store(path) as store:
        store.add([sample.record(sample.ok(ratio=2.0), config=fast), sample.record(sample.ok(ratio=0.5), config=slow)])
        store.add([sample.record(sample.failed(Status.TIMEOUT, "took too long"), config=Config("direct"))])
        store.add([sample.record(stage=Stage.SCREEN)])
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        (best,) = connection.execute("SELECT * FROM best_configs").fetchall()
        assert (best["workload"], best["algorithm"], best["params"]) == (sample.WORKLOAD.spec, "tiled", '{"mr":1}')
        assert (best["hardware"], best["speedup"], best["beats_default"]) == (sample.HARDWARE.name, 2.0, 1)
        connection.execute("UPDATE best SET speedup_low = 0.9")  # not beyond its interval
        assert connection.execute("SELECT beats_default FROM best_configs").fetchone()[0] == 0
        (failure,) = connection.execute("SELECT * FROM failures").fetchall()
        assert (failure["status"], failure["algorithm"], failure["message"]) == ("TIMEOUT", "direct", "took too long")
        (coverage,) = connection.execute("SELECT * FROM coverage").fetchall()
        assert [coverage[name] for name in ("measurements", "configs", "ok", "failed", "decided")] == [4, 4, 3, 1, 2]
        assert coverage["finished_at"] is None


def test_queries_use_their_indexes(path: str) -> None:
    with open_store(path) as store, closing(sqlite3.connect(path)) as connection:
        store.add([sample.record()])

        def plan(where: str) -> str:
            rows = connection.execute(f"EXPLAIN QUERY PLAN SELECT * FROM {where}", sample.IDENTITY).fetchall()
            return " ".join(row[3] for row in rows)

        identity = "workload_key = ? AND hardware_key = ? AND environment_key = ?"
        assert "PRIMARY KEY" in plan(f"best WHERE {identity}")
        assert "measurements_identity" in plan(f"measurements WHERE {identity} ORDER BY measured_at, uid")
        fastest = plan(f"measurements WHERE {identity} AND status = 'OK' ORDER BY median_ns LIMIT 1")
        assert "measurements_fastest" in fastest
        assert "B-TREE" not in fastest


def test_the_tables_can_be_made_on_postgresql() -> None:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]  # untyped in SQLAlchemy
    for table in schema.metadata.sorted_tables:
        text = str(CreateTable(table).compile(dialect=dialect))
        assert "NULL" in text
        for index in table.indexes:
            assert str(CreateIndex(index).compile(dialect=dialect))


def test_other_tables_do_not_matter(path: str) -> None:
    """A table that another tool put into the file is neither read nor changed."""
    metadata = MetaData()
    other = Table("trials", metadata, Column("id", Integer))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(str(CreateTable(other)))
        connection.execute("INSERT INTO trials VALUES (7)")
        connection.commit()
    with open_store(path) as store:
        store.add([sample.record()])
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT * FROM trials").fetchall() == [(7,)]
