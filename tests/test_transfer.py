"""Moving databases: everything arrives once, whatever the order, and frozen files are equal and read-only."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from itertools import permutations
from pathlib import Path

import pytest

from autotune.cli import main
from autotune.errors import InvalidInput, Unavailable
from autotune.ops.gemm import Gemm
from autotune.ops.linear import Linear
from autotune.snapshot import Snapshot
from autotune.store import JobKey, Wish, transfer
from autotune.store.sql import open_store
from autotune.types import Stage, Status, TuningRecord
from tests import store_samples as sample
from tests.store_contract import Unheard

JOB = JobKey(*sample.IDENTITY, space_key="space")


def records(cluster: str, count: int = 12) -> list[TuningRecord]:
    """Finals and screenings, successes and failures, some of them newer than another cluster's."""
    outcomes = (sample.ok(ratio=2.0), sample.failed(Status.TIMEOUT, "slow"), sample.ok(ratio=3.0))
    shift = {"east": 0, "west": 1}.get(cluster, 2)
    return [
        sample.record(
            outcomes[(n + shift) % 3],
            config=sample.config(n % 4),
            job=cluster,
            repetition=n,
            stage=Stage.SCREEN if n % 5 == 4 else Stage.FINAL,
            measured_at=sample.at(10 * n + shift),
        )
        for n in range(count)
    ]


def fill(where: str, cluster: str) -> None:
    with open_store(where) as store:
        store.add([*records(cluster), sample.record(), sample.record(workload=Unheard(len(cluster)))])
        store.finish_job(JOB, 7)
        store.wish([Wish(Gemm(1, 2, 3))])


def contents(where: str) -> tuple[object, ...]:
    with open_store(where, create=False) as store:
        finished = {key: report.trials for key, report in store.finished_jobs(*sample.IDENTITY).items()}
        found = {record.uid: record for record in store.records()}
        return found, store.choices(*sample.IDENTITY), finished, store.wishes(), store.stats().by_op


def test_everything_moves_there_and_back(tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PAGE_ROWS", 5)
    start, end = str(tmp_path / "start.sqlite"), str(tmp_path / "end.sqlite")
    fill(start, "east")
    moved = transfer.copy(start, where)
    assert moved.measurements == moved.added == 14
    assert transfer.copy(where, end).added == 14
    assert contents(start) == contents(where) == contents(end)
    assert transfer.copy(end, where).added == 0


@pytest.mark.parametrize("order", list(permutations(("east", "west", "north"))), ids="-".join)
def test_uniting_in_any_order_gives_the_same(tmp_path: Path, order: tuple[str, ...]) -> None:
    for cluster in order:
        fill(str(tmp_path / f"{cluster}.sqlite"), cluster)
    target = str(tmp_path / "all.sqlite")
    assert main(["db", "merge", *(str(tmp_path / f"{c}.sqlite") for c in order), target]) == 0
    together = str(tmp_path / "together.sqlite")
    with open_store(together) as store:
        store.add([record for cluster in sorted(order) for record in records(cluster)])
        expected = store.choices(*sample.IDENTITY)
    with open_store(target) as store:
        found = [record.uid for record in store.records()]
        assert len(found) == len(set(found)) == 3 * 12 + 1
        choices = {choice.config.key: choice for choice in store.choices(*sample.IDENTITY)}
        assert choices.pop(sample.CONFIG.key)
        assert choices == {choice.config.key: choice for choice in expected}
    assert main(["db", "merge", *(str(tmp_path / f"{c}.sqlite") for c in order), target]) == 0
    with open_store(target) as store:
        assert len(list(store.records())) == len(found)


def test_a_probed_profile_replaces_a_bare_one_when_databases_are_united(tmp_path: Path) -> None:
    from dataclasses import replace

    probed = replace(sample.HARDWARE, peak_gflops={"f32": 100.0}, bandwidth_gbs=20.0)
    bare, better = str(tmp_path / "bare.sqlite"), str(tmp_path / "better.sqlite")
    for path, profile in ((bare, sample.HARDWARE), (better, probed)):
        with open_store(path) as store:
            store.add([sample.record(hardware=profile)])
    transfer.copy(better, bare)
    with open_store(bare) as store:
        assert store.hardware() == (probed,)


def test_a_stopped_copy_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PAGE_ROWS", 4)
    start, end = str(tmp_path / "start.sqlite"), str(tmp_path / "end.sqlite")
    fill(start, "east")

    def stop(moved: transfer.Moved) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        transfer.copy(start, end, stop)
    with open_store(end) as store:
        assert 0 < store.stats().measurements < 14
    transfer.copy(start, end)
    assert contents(start) == contents(end)


def test_a_snapshot_answers_lookups_and_equal_contents_are_equal_bytes(tmp_path: Path, where: str) -> None:
    fill(where, "east")
    one, two = str(tmp_path / "one.sqlite"), str(tmp_path / "two.sqlite")
    decided = transfer.snapshot(where, one)
    assert decided == transfer.snapshot(where, two)
    assert Path(one).read_bytes() == Path(two).read_bytes()
    with open_store(where) as store:
        expected = store.choices(*sample.IDENTITY)
    frozen = Snapshot.open(one)
    assert frozen is not None
    assert frozen.choices(*sample.IDENTITY) == expected
    assert frozen.nearest(sample.WORKLOAD.key) == [(sample.HARDWARE.name, sample.ENVIRONMENT.framework)]
    frozen.close()
    assert os.stat(one).st_mode & 0o222 == 0
    assert sorted(file.name for file in tmp_path.iterdir() if file.name[0] != "t" or file.name == "two.sqlite") == [
        "one.sqlite",
        "two.sqlite",
    ]
    with closing(sqlite3.connect(one)) as connection:
        assert connection.execute("SELECT count(*) FROM measurements").fetchone() == (0,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_a_full_snapshot_has_every_measurement(tmp_path: Path) -> None:
    start, file = str(tmp_path / "start.sqlite"), str(tmp_path / "full.sqlite")
    fill(start, "east")
    transfer.snapshot(start, file, full=True)
    frozen, before = contents(file), contents(start)
    assert frozen[:3] == before[:3]
    assert frozen[3] == ()  # wishes are the sweeps' business


def test_what_is_added_while_a_database_is_frozen_is_not_half_seen(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(where, "east")
    pages = transfer._pages

    def busy(*arguments: object) -> object:
        for page in pages(*arguments):  # type: ignore[arg-type]
            yield page
            with open_store(where) as store:  # a sweep that goes on meanwhile
                store.add([sample.record(workload=Linear(len(page), 99, 99), job=str(arguments[1]))])

    monkeypatch.setattr(transfer, "_pages", busy)
    transfer.snapshot(where, str(tmp_path / "frozen.sqlite"))
    monkeypatch.undo()
    with closing(sqlite3.connect(tmp_path / "frozen.sqlite")) as connection:
        missing = "SELECT count(*) FROM best WHERE workload_key NOT IN (SELECT key FROM workloads)"
        assert connection.execute(missing).fetchone() == (0,)


def test_a_snapshot_replaces_an_older_one_at_once(tmp_path: Path) -> None:
    start, file = str(tmp_path / "start.sqlite"), str(tmp_path / "frozen.sqlite")
    fill(start, "east")
    transfer.snapshot(start, file)
    with open_store(start) as store:
        store.add([sample.record(workload=Linear(7, 7, 7))])
    transfer.snapshot(start, file)
    frozen = Snapshot.open(file)
    assert frozen is not None
    assert frozen.choices(Linear(7, 7, 7).key, *sample.IDENTITY[1:])
    frozen.close()


def test_what_cannot_be_done_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = str(tmp_path / "start.sqlite")
    fill(start, "east")
    os.symlink(start, tmp_path / "link.sqlite")
    with pytest.raises(InvalidInput, match="to itself"):
        transfer.copy(start, str(tmp_path / "link.sqlite"))
    with pytest.raises(InvalidInput, match="into itself"):
        transfer.snapshot(start, start)
    with pytest.raises(InvalidInput, match="a snapshot is a file"):
        transfer.snapshot(start, "postgresql://user@host/name")
    with pytest.raises(Unavailable, match="does not exist"):
        transfer.snapshot(start, str(tmp_path / "missing" / "x.sqlite"))
    assert main(["db", "copy", str(tmp_path / "missing.sqlite"), str(tmp_path / "to.sqlite")]) == 2
    assert "there is no database" in capsys.readouterr().err
    assert not (tmp_path / "to.sqlite").exists()


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """A file that may not grow is what a full disk looks like to SQLite."""
    import resource
    import signal

    path = str(tmp_path / "tuning.sqlite")
    with open_store(path) as store:
        store.add([sample.record()])
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(path) + 40_000, limits[1]))
        try:
            with pytest.raises(Unavailable):
                store.add([sample.record(repetition=n, config=sample.config(n)) for n in range(2000)])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, before)
        assert store.stats().measurements == 1
        assert store.add([sample.record(job="after")]) == 1
