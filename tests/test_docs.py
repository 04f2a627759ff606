"""The documentation's examples are run: Python blocks in order per page, console lines, SQL against a real database."""

from __future__ import annotations

import re
import runpy
import shlex
import sqlite3
import sys
import types
from pathlib import Path

import pytest

import autotune
from autotune import environment, hardware, registry, settings
from autotune.cli import main, parser
from autotune.store.sql import open_store
from autotune.types import BenchmarkSpec, Config, Measurement, Stage, Status, TuningRecord

ROOT = Path(__file__).parent.parent
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
SLOW = ("sweep", "hw", "cluster")  # parsed, not run: they measure


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


@pytest.fixture
def database() -> str:
    """A small database at the user's place: one workload decided, one failure."""
    workload = autotune.Linear(m=4, n=64, k=32)
    profile, software, spec = hardware.detect(), environment.current(), BenchmarkSpec()
    ok = Measurement(Status.OK, times_ns=(50,) * 20, baseline_ns=(100,) * 20, max_error=1e-7, prepare_ns=5000)
    failed = Measurement(Status.RUN_FAILED, "the process was killed by SIGSEGV")
    fast = Config("torch", {"weight": "transposed", "threads": 1})
    revision = registry.algorithm("torch").revision()
    path = settings.database()
    with open_store(path) as store:
        for config, measured, stage in ((fast, ok, Stage.FINAL), (Config("mkl_packed"), failed, Stage.SCREEN)):
            store.add([TuningRecord(workload, config, profile, software, spec, measured, revision, stage)])
    return path


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=lambda p: p.name)
def test_python_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("__main__")
    namespace = module.__dict__
    monkeypatch.setitem(sys.modules, "__main__", module)  # where dataclasses look their annotations up
    for block in blocks(page, "python"):
        exec(compile(block, f"{page.name}", "exec"), namespace)


def console_lines() -> list[tuple[str, str]]:
    return [
        (page.name, line.removeprefix("$ "))
        for page in PAGES
        for block in blocks(page, "console")
        for line in block.splitlines()
        if line.startswith("$ autotune ")
    ]


@pytest.mark.parametrize(("page", "line"), console_lines())
def test_console_examples_parse_and_run(
    page: str,
    line: str,
    database: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # some write files
    words = shlex.split(line, comments=True)[1:]
    parser().parse_args(words)
    if words[0] not in SLOW:
        assert main(words) == 0, capsys.readouterr().err


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "sql")], ids=lambda p: p.name)
def test_sql_examples_run(page: Path, database: str) -> None:
    connection = sqlite3.connect(database)
    for block in blocks(page, "sql"):
        connection.execute(block.strip().rstrip(";")).fetchall()
    connection.close()


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "sql-duckdb")], ids=lambda p: p.name)
@pytest.mark.usefixtures("database")
def test_duckdb_examples_run_on_an_export(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    duckdb = pytest.importorskip("duckdb")
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    assert main(["db", "export", "--what", "measurements", "--out", "measurements.parquet"]) == 0
    for block in blocks(page, "sql-duckdb"):
        assert duckdb.sql(block).fetchall()


def test_every_link_to_a_file_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_command_reference_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    made = runpy.run_path(str(ROOT / "scripts" / "make_cli_reference.py"))["reference"]()
    written = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert re.findall("^## .*", made, re.MULTILINE) == re.findall("^## .*", written, re.MULTILINE)
    if sys.version_info[:2] == (3, 11):  # argparse lays its help out differently from version to version
        assert made == written, "run python scripts/make_cli_reference.py"
