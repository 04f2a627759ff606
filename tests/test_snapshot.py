"""Read-only access with the standard library: same answers as the store, from any thread, after a fork, anywhere."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from autotune.dbschema import SCHEMA_REVISION
from autotune.errors import Incompatible, InvalidInput, Unavailable
from autotune.snapshot import Snapshot
from autotune.store.sql import open_store
from tests import store_samples as sample
from tests.conftest import without_privileges
from tests.test_store_sqlite import path, set_revision

__all__ = ["path"]  # a fixture


def fill(where: str | Path, count: int = 4) -> None:
    with open_store(where) as store:
        store.add([sample.record(sample.ok(ratio=1 + n), config=sample.config(n)) for n in range(count)])


def opened(where: str | Path) -> Snapshot:
    snapshot = Snapshot.open(where)
    assert snapshot is not None
    return snapshot


def test_choices_are_those_of_the_store(path: str) -> None:
    fill(path)
    with open_store(path) as store:
        store.add([sample.record(sample.ok(ratio=9.0, max_error=None, contended=True))])
        snapshot = opened(path)
        assert snapshot.choices(*sample.IDENTITY) == store.choices(*sample.IDENTITY)
        assert snapshot.choices(*sample.IDENTITY)[0].config == sample.CONFIG  # tuples are tuples
        assert snapshot.choices("0" * 32, *sample.IDENTITY[1:]) == ()


def test_nearest_names_the_other_machines(path: str) -> None:
    with open_store(path) as store:
        store.add([sample.record(hardware=sample.OTHER_HARDWARE), sample.record(environment=sample.OTHER_ENVIRONMENT)])
    snapshot = opened(path)
    assert snapshot.nearest(sample.WORKLOAD.key) == [
        (sample.OTHER_HARDWARE.name, sample.ENVIRONMENT.framework),
        (sample.HARDWARE.name, sample.OTHER_ENVIRONMENT.framework),
    ]
    assert snapshot.nearest("0" * 32) == []


def test_what_others_commit_is_seen(path: str) -> None:
    fill(path, 1)
    snapshot = opened(path)
    assert len(snapshot.choices(*sample.IDENTITY)) == 1
    fill(path, 3)
    assert len(snapshot.choices(*sample.IDENTITY)) == 3


@pytest.mark.parametrize("name", ["a b", "what?mode=rw", "#1", "50%41", "é", "a&b=c", "%"])
def test_any_file_name_is_taken_literally(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    fill(folder / name, 1)
    assert len(opened(folder / name).choices(*sample.IDENTITY)) == 1
    assert len(opened("/" + str(folder / name)).choices(*sample.IDENTITY)) == 1


def test_urls_of_files_are_taken(path: str) -> None:
    fill(path)
    assert len(opened(f"sqlite:///{path}").choices(*sample.IDENTITY)) == 4
    with pytest.raises(Unavailable, match="lookup reads database files only"):
        Snapshot.open("postgresql://user:secret@host/db")
    with pytest.raises(InvalidInput):
        Snapshot.open("")


def test_no_file_or_nothing_in_it_is_no_snapshot(tmp_path: Path) -> None:
    assert Snapshot.open(tmp_path / "none.sqlite") is None
    assert Snapshot.open(tmp_path / "no" / "folder.sqlite") is None
    (tmp_path / "empty.sqlite").touch()
    assert Snapshot.open(tmp_path / "empty.sqlite") is None


def test_files_that_cannot_be_read_are_named(tmp_path: Path, path: str) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database\n" * 1000)
    with pytest.raises(Unavailable, match=r"notes.txt is not an SQLite database"):
        Snapshot.open(text)
    with pytest.raises(Unavailable, match="cannot be"):
        Snapshot.open(tmp_path)
    fill(path, 300)
    os.truncate(path, os.path.getsize(path) // 2)
    with pytest.raises(Unavailable, match="damaged or truncated"):
        Snapshot.open(path)


def test_a_file_that_is_gone_later_is_reported_once_it_matters(path: str) -> None:
    fill(path)
    snapshot = opened(path)
    snapshot.close()
    os.remove(path)
    with pytest.raises(Unavailable, match="cannot be opened"):
        snapshot.choices(*sample.IDENTITY)


@pytest.mark.parametrize(
    ("revision", "sentence"),
    [
        ("0000", rf"has schema 0000, this autotune needs {SCHEMA_REVISION}: run `autotune db upgrade`"),
        ("0999", r"written by a newer autotune \(schema 0999\): upgrade autotune"),
        ("abc", r"written by a newer autotune \(schema abc\): upgrade autotune"),
    ],
)
def test_another_schema_is_refused(path: str, revision: str, sentence: str) -> None:
    fill(path)
    set_revision(path, revision)
    with pytest.raises(Incompatible, match=sentence):
        Snapshot.open(path)


def test_a_database_of_another_program_is_refused(path: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE studies (id INTEGER)")
    with pytest.raises(Incompatible, match="not an autotune database"):
        Snapshot.open(path)


def test_a_read_only_folder_will_do(readable: Path) -> None:
    fill(readable / "tuning.sqlite")
    with without_privileges():
        snapshot = opened(readable / "tuning.sqlite")
        assert len(snapshot.choices(*sample.IDENTITY)) == 4
        snapshot.close()
    assert [file.name for file in readable.iterdir()] == ["tuning.sqlite"]


def test_a_file_that_may_not_be_read_is_reported(readable: Path) -> None:
    file = readable / "tuning.sqlite"
    fill(file)
    file.chmod(0o000)
    with without_privileges(), pytest.raises(Unavailable, match="may read it"):
        Snapshot.open(file)


def test_nothing_is_written(path: str) -> None:
    fill(path)
    before = Path(path).read_bytes()
    snapshot = opened(path)
    with pytest.raises(Unavailable, match="read-only"):
        snapshot._query("DELETE FROM best", ())
    snapshot.close()
    assert Path(path).read_bytes() == before


def test_16_threads_may_ask_at_once(path: str) -> None:
    fill(path)
    snapshot = opened(path)
    expected = snapshot.choices(*sample.IDENTITY)
    barrier = threading.Barrier(16)

    def ask(_: int) -> bool:
        barrier.wait()
        return all(snapshot.choices(*sample.IDENTITY) == expected for _ in range(100))

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(16)))


def test_a_child_may_ask_after_a_fork(path: str) -> None:
    """In a process of its own: forking one with threads is what is tested, and what test runners dislike."""
    fill(path)
    program = f"""
import os, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
from autotune.snapshot import Snapshot
identity = {sample.IDENTITY!r}
snapshot = Snapshot.open({path!r})
expected = snapshot.choices(*identity)
stop = threading.Event()
def ask():
    while not stop.is_set():
        assert snapshot.choices(*identity) == expected
threads = [threading.Thread(target=ask) for _ in range(4)]
for thread in threads:
    thread.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        os._exit(0 if snapshot.choices(*identity) == expected else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert snapshot.choices(*identity) == expected
stop.set()
for thread in threads:
    thread.join()
print("done")
"""
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_a_connection_of_another_process_is_not_touched(path: str) -> None:
    fill(path)
    snapshot = opened(path)
    inherited = snapshot._connection
    snapshot._pid -= 1  # as after a fork that ran no hooks
    assert len(snapshot.choices(*sample.IDENTITY)) == 4
    assert snapshot._connection is not inherited
    assert inherited is not None
    assert inherited.execute("SELECT 1").fetchone() == (1,)  # still open


def test_importing_it_imports_nothing_heavy() -> None:
    program = (
        "import sys, autotune.snapshot\n"
        "print(sorted({'sqlite3', 'sqlalchemy', 'torch', 'numpy', 'optuna', 'alembic'} & set(sys.modules)))"
    )
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
