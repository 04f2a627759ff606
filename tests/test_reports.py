"""`autotune db top, coverage, diff, history, export, vacuum, verify`, on real files."""

from __future__ import annotations

import csv
import json
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune import registry, settings, suites
from autotune.cli import main
from autotune.ops.linear import Linear
from autotune.report.coverage import coverage
from autotune.report.diff import Change, differences
from autotune.report.served import served
from autotune.report.verify import verify
from autotune.store.sql import SqlStore, open_store
from autotune.types import Config, Stage, Status, TuningRecord
from tests import store_samples as sample

DEFAULT = registry.op("linear").default(sample.WORKLOAD)
FAST = Config("tiled", {"tile": (1, 64), "threads": 1})


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(words)
    return code, *capsys.readouterr()


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def records(ratio: float = 2.0, **changes: Any) -> list[TuningRecord]:
    return [
        sample.record(sample.ok(ratio=0.5), config=sample.config(5), stage=Stage.SCREEN, measured_at=sample.at(-2)),
        sample.record(sample.ok(ratio=ratio), config=FAST, stage=Stage.SCREEN, measured_at=sample.at(-1), **changes),
        sample.record(sample.ok(ratio=1.0), config=DEFAULT, **changes),
        sample.record(sample.ok(ratio=ratio), config=FAST, **changes),
        sample.record(sample.failed(Status.TIMEOUT, "took 'too' long"), config=sample.config(7), **changes),
    ]


@pytest.fixture
def database() -> str:
    path = settings.database()
    with open_store(path) as store:
        store.add(records())
    return path


def test_top_lists_gains_not_defaults(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    with open_store(database) as store:
        store.add([sample.record(sample.ok(ratio=1.0), workload=Linear(3, 4, 5), config=Config("torch"))])
    code, out, _ = run(capsys, "db", "top", "--json")
    (layer,) = json.loads(out)["layers"]
    assert (code, layer["workload"], layer["speedup"], layer["saved_ns"]) == (0, sample.WORKLOAD.spec, 2.0, 100.5)
    assert "2.00x" in run(capsys, "db", "top")[1]
    assert json.loads(run(capsys, "db", "top", "--json", "--op", "gemm")[1])["layers"] == []


def test_coverage_counts_a_pass_of_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = tmp_path / "mine.toml"
    first, second = sample.WORKLOAD.spec, Linear(7, 8, 9).spec
    layer = '[[layer]]\nname = "x"\ncount = {}\nworkload = "{}"\n'
    suite.write_text('title = "mine"\n' + layer.format(3, first) + layer.format(1, second))
    with open_store(settings.database()) as store:
        store.add(records())
        (found,) = coverage(served(store), store.hardware(), [str(suite)])
    assert (found.tuned, found.workloads, found.missing) == (1, 2, (Linear(7, 8, 9),))
    assert (found.default_ns, found.served_ns, found.speedup) == (3 * 201, 3 * 100.5, 2.0)
    out = run(capsys, "db", "coverage", "--suite", str(suite), "--missing")[1]
    assert "1/2" in out
    assert f"lacks {second}" in out
    assert len(lines(run(capsys, "db", "coverage", "--json")[1])) == len(suites.names())


@pytest.mark.parametrize(
    ("b", "change"),
    [
        (records(), Change.SAME),
        (records(3.0), Change.FASTER),
        (records(1.5), Change.SLOWER),
        ([*records(), sample.record(sample.ok(ratio=2.0), config=sample.config(1))], Change.TIED),
        ([*records(1.9), sample.record(sample.ok(ratio=4.0), config=sample.config(1))], Change.WINNER),
        ([*records(3.0), sample.record(sample.ok(ratio=3.1), config=sample.config(1))], Change.WINNER),
        ([], Change.ONLY_A),
    ],
)
def test_a_difference_has_its_kind(tmp_path: Path, b: list[TuningRecord], change: Change) -> None:
    with open_store(tmp_path / "a.sqlite") as one, open_store(tmp_path / "b.sqlite") as other:
        one.add(records())
        other.add(b)
        found = differences(served(one), served(other))
        assert [d.change for d in found] == [change]
        mirrored = {Change.FASTER: Change.SLOWER, Change.SLOWER: Change.FASTER, Change.ONLY_A: Change.ONLY_B}
        assert [d.change for d in differences(served(other), served(one))] == [mirrored.get(change, change)]


def test_diff_tells_programs_and_people(database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = str(tmp_path / "b.sqlite")
    with open_store(other) as store:
        store.add(records(3.0))
    assert run(capsys, "db", "diff", database, database)[:2] == (0, "1 same\n")
    code, out, _ = run(capsys, "db", "diff", database, other, "--json")
    (found,) = lines(out)
    assert (code, found["change"], found["a"]["speedup"], found["b"]["speedup"]) == (1, "gains more", 2.0, 3.0)


def test_history_shows_the_best_so_far(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    with open_store(database) as store:
        lossy = replace(sample.ok(ratio=9.0), max_error=0.5)
        store.add([sample.record(lossy, config=sample.config(9), stage=Stage.SCREEN, measured_at=sample.at(-1.5))])
    found = lines(run(capsys, "db", "history", sample.WORKLOAD.spec, "--json")[1])
    assert [(t["trial"], t["best"]) for t in found[:3]] == [(1, 1.0), (2, 1.0), (3, 2.0)]
    assert {t["stage"] for t in found[3:]} == {"final"}
    assert "best so far" in run(capsys, "db", "history", sample.WORKLOAD.spec)[1]
    assert run(capsys, "db", "history", "linear m=2 n=3 k=4")[0] == 1


@pytest.mark.parametrize("what", ["measurements", "best", "failures"])
def test_exports_agree(database: str, tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    for form in ("csv", "json", "parquet"):
        assert run(capsys, "db", "export", "--what", what, "--out", str(tmp_path / f"x.{form}"))[0] == 0
    with (tmp_path / "x.csv").open(newline="") as file:
        from_csv = list(csv.DictReader(file))
    from_json = lines((tmp_path / "x.json").read_text())
    from_parquet = parquet.read_table(tmp_path / "x.parquet").to_pylist()
    assert from_json == from_parquet
    plain = [{name: "" if value is None else str(value) for name, value in row.items()} for row in from_json]
    assert from_csv == plain
    assert len(from_json) == {"measurements": 5, "best": 1, "failures": 1}[what]
    assert not list(tmp_path.glob("*.partial"))


def test_an_exported_table_is_read_by_duckdb(database: str, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    file = tmp_path / "measurements.parquet"
    assert main(["db", "export", "--out", str(file)]) == 0
    query = f"SELECT algorithm, count(*) FROM '{file}' WHERE status = 'OK' GROUP BY ALL ORDER BY ALL"
    assert duckdb.sql(query).fetchall() == [("tiled", 3), ("torch", 1)]


def test_what_cannot_be_exported_is_said(
    database: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "--out FILE" in run(capsys, "db", "export", "--format", "parquet")[2]
    assert "cannot be written" in run(capsys, "db", "export", "--out", str(tmp_path / "no" / "x.csv"))[2]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    code, _, told = run(capsys, "db", "export", "--out", str(tmp_path / "x.parquet"))
    assert (code, told.count("\n"), "autotune[parquet]" in told) == (2, 1, True)
    assert not list(tmp_path.glob("x.parquet*"))


def test_vacuum_keeps_everything(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "db", "vacuum")[0] == 0
    with open_store(database) as store:
        assert store.stats().measurements == 5


# Verify


def wrong(store: SqlStore) -> set[str]:
    return {finding.check for finding in verify(store) if finding.count and finding.is_error}


def test_a_sound_database_is_sound(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "db", "verify", "--json")
    assert (code, json.loads(out)["sound"]) == (0, True)
    with open_store(database) as store:
        notes = {f.check.split(",")[0] for f in verify(store) if f.count}
    assert notes == {
        "machines whose peak was never probed",
        "decided entries of kernel revisions that are not installed",  # "r1"
    }


@pytest.mark.parametrize(
    ("statement", "check"),
    [
        ("UPDATE measurements SET job = 'x' WHERE status <> 'OK'", "uids"),
        ("UPDATE measurements SET spec_key = 'gone'", "keys that lead nowhere"),
        ("UPDATE workloads SET dims = replace(dims, '4096', '4095')", "keys that are not"),
        ("UPDATE configs SET params = '{}' WHERE algorithm = 'tiled'", "keys that are not"),
        ("UPDATE hardware SET profile = replace(profile, 'family 1', 'family 2')", "keys that are not"),
        ("UPDATE measurements SET median_ns = 9e999 WHERE stage = 'screen'", "figures"),
        ("UPDATE measurements SET speedup = -1.0 WHERE stage = 'screen'", "figures"),
        ("UPDATE measurements SET times_ns = '[1,0]' WHERE stage = 'screen' AND status = 'OK'", "figures"),
        ("DELETE FROM best WHERE speedup = 2.0", "decided entries"),
        ("UPDATE best SET uid = 'other'", "decided entries"),
    ],
)
def test_what_was_tampered_with_is_found(database: str, statement: str, check: str) -> None:
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute(statement).rowcount
        connection.commit()
    with open_store(database) as store:
        assert any(name.startswith(check) for name in wrong(store)), wrong(store)


def test_impossible_rates_are_wrong_and_effective_ones_noted(database: str) -> None:
    slow = replace(sample.HARDWARE, model="slow", peak_gflops={"f32": 1.0})
    with open_store(database) as store:
        store.add([sample.record(hardware=slow)])  # 8.4e6 flops in 100 ns
        assert wrong(store) == {"rates above the machine's peak"}
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("UPDATE configs SET algorithm = 'winograd'")
        connection.commit()
    with open_store(database) as store:
        assert "rates above the machine's peak" not in wrong(store)
        assert any(f.count and "effective" in f.check for f in verify(store))


def test_streams_faster_than_memory_are_noted_unless_they_fit_a_cache(database: str) -> None:
    slow = replace(sample.HARDWARE, model="slow", bandwidth_gbs=1.0)
    large, small = Linear(1, 16384, 16384), Linear(1, 64, 64)
    with open_store(database) as store:
        store.add([sample.record(hardware=slow, workload=workload) for workload in (large, small)])
        (found,) = (f for f in verify(store) if "bandwidth" in f.check)
        assert (found.count, found.is_error) == (1, False)
        assert large.spec in found.examples[0]


# Bad input


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("db", "verify"), "does not exist"),
        (("db", "diff", "a.sqlite", "b.sqlite"), "there is no database"),
    ],
)
def test_bad_input_is_one_sentence(words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
