"""The wheel: built from this checkout, installed by itself, it answers lookups with the standard library alone."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import autotune

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what the wheel installs, and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder / "dist"), str(ROOT)]
    built = subprocess.run(build, capture_output=True, text=True, timeout=120, check=False)
    assert built.returncode == 0, built.stderr[-2000:]
    (wheel,) = (folder / "dist").glob("*.whl")
    assert wheel.stat().st_size < 40 << 20
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run(site: Path, *words: str) -> str:
    """A Python that sees the wheel and the standard library only."""
    done = subprocess.run(
        [sys.executable, "-S", "-B", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(site), "HOME": str(site / "home"), "PATH": "/usr/bin:/bin"},
        cwd=site,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_it_carries_its_data_and_nothing_else(installed: Path) -> None:
    data = installed / "autotune" / "_data"
    assert (data / "migrations" / "versions" / "0001_first_tables.py").exists()
    assert {p.name for p in installed.iterdir()} == {"autotune", f"autotune-{autotune.__version__}.dist-info"}
    for name in ("db", "models"):
        here = {p.name for p in (ROOT / name).iterdir() if not p.name.startswith((".", "_"))}
        found = (data / name).iterdir() if (data / name).exists() else ()
        there = {p.name for p in found if not p.name.startswith(".")}
        assert there == here
    assert not list(installed.rglob("*.pyc")) + list(installed.rglob("*.so"))


def test_the_light_core_answers(installed: Path) -> None:
    program = "import autotune; a = autotune.lookup('linear m=1 n=768 k=768'); print(a.origin.value, '|', a.reason)"
    origin, _, reason = run(installed, "-c", program).strip().partition(" | ")
    assert origin in ("EXACT", "DEFAULT")
    assert reason


@pytest.mark.skipif(not (ROOT / "db" / "tuning.sqlite").exists(), reason="no database is shipped with this checkout")
def test_what_was_measured_is_in_it(installed: Path) -> None:
    program = """
import sqlite3
from autotune import paths
from autotune.snapshot import Snapshot
file = paths.shipped_database()
(row,) = sqlite3.connect(f"file:{file}?mode=ro", uri=True).execute(
    "SELECT workload_key, hardware_key, environment_key FROM best ORDER BY 1, 2, 3 LIMIT 1")
print(len(Snapshot.open(file).choices(*row)), file)
"""
    count, _, file = run(installed, "-c", program).strip().partition(" ")
    assert int(count) >= 1
    assert file.endswith("autotune/_data/db/tuning.sqlite")


def test_the_commands_that_need_nothing_run(installed: Path) -> None:
    assert autotune.__version__ in run(installed, "-m", "autotune", "--version")
    assert "DEFAULT" in run(installed, "-m", "autotune", "lookup", "linear m=7 n=77 k=777")


def test_version_and_licence_are_stated_alike_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert autotune.__version__ == project["version"]
    assert f"version: {project['version']}\n" in citation
    assert f"license: {project['license']}\n" in citation
    assert f"## {project['version']}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
