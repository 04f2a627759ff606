"""Migrations: golden databases of every revision, agreement with the tables in the code, and other tools' tables.

`python -m tests.test_migrations` writes the golden database of the current revision, once, when a revision is added;
those of older revisions are never written again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import inspect

from autotune.dbschema import SCHEMA_REVISION, VERSION_TABLE
from autotune.ops.gemm import Gemm
from autotune.paths import migrations_dir
from autotune.snapshot import Snapshot
from autotune.store import JobKey, Wish, migrate
from autotune.store.embedded import PostgresServer
from autotune.store.engine import make_engine, parse, writing
from autotune.store.schema import metadata
from autotune.store.sql import open_store, upgrade_store
from autotune.types import Stage, Status, TuningRecord
from tests import store_samples as sample

GOLDEN = Path(__file__).parent / "golden"
JOB = JobKey(*sample.IDENTITY, space_key="space")
WISH = Wish(Gemm(3, 2, 1), "", 2, 1.5)  # from 0002 on


def golden_records() -> list[TuningRecord]:
    """What the golden databases hold. Do not change: add records for what a new revision adds."""
    return [
        sample.record(),
        sample.record(sample.ok((200, 210, 190), ratio=0.5), config=sample.config(2), measured_at=sample.at(1.5)),
        sample.record(sample.failed(Status.TIMEOUT, "took 'too' long"), config=sample.config(3), job=""),
        sample.record(
            sample.ok(max_error=None, workspace_bytes=1 << 40),
            workload=Gemm(320, 2560, 3072, batch=8, b_layout="expanded"),
            hardware=sample.OTHER_HARDWARE,
            stage=Stage.SCREEN,
            measured_at=sample.at(2),
        ),
    ]


def load(revision: str, where: str) -> None:
    if where.startswith("postgresql"):
        with psycopg.connect(where) as connection:
            connection.execute((GOLDEN / f"{revision}.postgresql.sql").read_text())  # type: ignore[arg-type]
        return
    with closing(sqlite3.connect(where)) as connection:
        connection.executescript((GOLDEN / f"{revision}.sql").read_text())


def revisions() -> list[str]:
    return sorted(file.name.split("_")[0] for file in Path(migrations_dir(), "versions").glob("*.py"))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "tuning.sqlite")


def test_revisions_are_numbered_without_a_gap_and_the_code_knows_the_last() -> None:
    assert revisions() == [f"{number:04}" for number in range(1, len(revisions()) + 1)]
    assert migrate.head_revision() == SCHEMA_REVISION == revisions()[-1]


@pytest.mark.parametrize("revision", revisions())
def test_a_golden_database_is_upgraded_and_read_back(where: str, revision: str) -> None:
    load(revision, where)
    assert upgrade_store(where) == (revision, SCHEMA_REVISION)
    with open_store(where, create=False) as store:
        assert sorted(store.records(), key=lambda r: r.uid) == sorted(golden_records(), key=lambda r: r.uid)
        choices = store.choices(*sample.IDENTITY)  # found: keys are what they were
        assert [choice.config for choice in choices] == [sample.CONFIG, sample.config(2)]
        assert store.finished_jobs(*sample.IDENTITY)[JOB.space_key].trials == 3
        assert store.wishes() == ((WISH,) if revision >= "0002" else ())
    if where.startswith("postgresql"):
        return
    snapshot = Snapshot.open(where)
    assert snapshot is not None
    assert snapshot.choices(*sample.IDENTITY) == choices
    snapshot.close()


@pytest.mark.parametrize("revision", revisions()[-1:])
def test_the_newest_golden_database_is_what_a_new_one_is(path: str, tmp_path: Path, revision: str) -> None:
    load(revision, path)
    new = str(tmp_path / "new.sqlite")
    open_store(new).close()
    assert layout(path) == layout(new)


def test_migrations_and_the_tables_in_the_code_agree(where: str) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    open_store(where).close()
    engine = make_engine(parse(where))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "version_table": VERSION_TABLE})
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_without_rowid_is_the_same_in_code_and_migrations(path: str, tmp_path: Path) -> None:
    open_store(path).close()
    engine = make_engine(parse(tmp_path / "code.sqlite"))
    with writing(engine) as connection:
        metadata.create_all(connection)
    engine.dispose()
    ours, code = layout(path), layout(str(tmp_path / "code.sqlite"))
    for table in metadata.tables:
        assert ("WITHOUT ROWID" in ours[table]) == ("WITHOUT ROWID" in code[table])


def test_every_key_column_is_not_null(path: str) -> None:
    open_store(path).close()
    engine = make_engine(parse(path))
    found = inspect(engine)
    for table in found.get_table_names():
        keys = {"key", "uid", "job", "kernel_revision", *found.get_pk_constraint(table)["constrained_columns"]}
        for column in found.get_columns(table):
            if column["name"] in keys or column["name"].endswith("_key"):
                assert not column["nullable"], f"{table}.{column['name']}"
    engine.dispose()


@pytest.mark.parametrize("ours_first", [True, False])
def test_optuna_may_share_the_database(where: str, ours_first: bool) -> None:
    optuna = pytest.importorskip("optuna")
    url = parse(where).render_as_string(hide_password=False)

    def ours() -> None:
        with open_store(where) as store:
            store.add([sample.record()])

    def theirs() -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(storage=url, study_name="theirs")
        study.add_trial(optuna.trial.create_trial(value=1.5))

    steps: list[Callable[[], None]] = [ours, theirs] if ours_first else [theirs, ours]
    for step in steps:
        step()
    assert optuna.load_study(storage=url, study_name="theirs").best_value == 1.5
    with open_store(where, create=False) as store:
        assert list(store.records()) == [sample.record()]
    engine = make_engine(parse(where))
    assert {"alembic_version", VERSION_TABLE, "studies", "measurements"} <= set(inspect(engine).get_table_names())
    engine.dispose()


def test_logging_is_left_alone(path: str) -> None:
    import logging

    root = logging.getLogger()
    before = (root.level, list(root.handlers), logging.getLogger("alembic").level, logging.getLogger("x.y").disabled)
    open_store(path).close()
    after = (root.level, list(root.handlers), logging.getLogger("alembic").level, logging.getLogger("x.y").disabled)
    assert before == after


def test_migrations_import_only_alembic_and_sqlalchemy() -> None:
    folder = Path(migrations_dir())
    for file in (folder / "env.py", *folder.glob("versions/*.py")):
        imports = [line.split()[1].split(".")[0] for line in file.read_text().splitlines() if is_import(line)]
        assert set(imports) <= {"__future__", "datetime", "alembic", "sqlalchemy"}, file.name
    assert not (folder / "__init__.py").exists()


def is_import(line: str) -> bool:
    return line.lstrip().startswith(("import ", "from "))


def layout(path: str) -> dict[str, str]:
    """The SQL that made each table, index and view."""
    with closing(sqlite3.connect(path)) as connection:
        return {name: str(sql) for name, sql in connection.execute("SELECT name, sql FROM sqlite_master")}


def write_golden() -> None:
    from tempfile import TemporaryDirectory

    GOLDEN.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder:
        path = f"{folder}/golden.sqlite"
        fill(path)
        with closing(sqlite3.connect(path)) as connection:
            text = "\n".join(connection.iterdump())
    (GOLDEN / f"{SCHEMA_REVISION}.sql").write_text(text + "\n")
    with PostgresServer() as server:
        fill(server.url())
        (GOLDEN / f"{SCHEMA_REVISION}.postgresql.sql").write_text(server.dump())


def fill(where: str) -> None:
    with open_store(where) as store:
        store.add(golden_records())
        store.finish_job(JOB, 3)
        store.wish([WISH])


if __name__ == "__main__":
    write_golden()
