"""Making the shipped database: what is kept, what is left out and why, and that equal measurements are equal bytes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from autotune import registry
from autotune.errors import InvalidInput
from autotune.ops.linear import Linear
from autotune.report.schema_page import schema_page
from autotune.report.verify import verify
from autotune.store import schema
from autotune.store.release import release
from autotune.store.sql import open_store
from autotune.types import Config, Status, TuningRecord
from tests import store_samples as sample

SCRIPT = Path(__file__).parents[1] / "scripts" / "release_db.py"
DEFAULT = Config("torch")
FAST = Config("torch", {"threads": 1, "weight": "transposed"})


def kept(n: int) -> list[TuningRecord]:
    """What a job leaves of one workload: the default and a winner, decided, and a failure."""
    common = {"workload": Linear(n, 64, 32), "kernel_revision": registry.algorithm("torch").revision()}
    return [
        sample.record(sample.ok(ratio=1.0), config=DEFAULT, **common),
        sample.record(sample.ok(ratio=2.0), config=FAST, **common),
        sample.record(sample.failed(Status.TIMEOUT, "slow"), config=replace(FAST, params={"threads": 2}), **common),
    ]


def unfit() -> dict[str, TuningRecord]:
    """One record per reason to leave it out; each would win if it were kept."""
    best, common = sample.ok(ratio=9.0), {"workload": Linear(1, 64, 32), "config": FAST}
    simulated = replace(sample.HARDWARE, vendor="simulated")
    revision = registry.algorithm("torch").revision()
    now = {"kernel_revision": revision, "measured_at": sample.at(99)}
    return {
        "imported": sample.record(best, **common, **now, source="find-db"),
        "on simulated machines": sample.record(best, **common, **now, hardware=simulated),
        "disturbed by something else on the machine": sample.record(
            replace(best, contended=True), **common, **now, repetition=1
        ),
        "by kernels that have changed since, or are not installed": sample.record(
            best, **common, kernel_revision="older", measured_at=sample.at(99)
        ),
    }


def store_of(path: Path, records: list[TuningRecord]) -> str:
    with open_store(str(path)) as store:
        store.add(records)
    return str(path)


def test_what_is_unfit_is_left_out_and_counted(tmp_path: Path) -> None:
    source = store_of(tmp_path / "source.sqlite", [*kept(1), *unfit().values()])
    out = str(tmp_path / "out.sqlite")
    released = release([source], out)
    assert released.left_out == dict.fromkeys(unfit(), 1)
    assert released.measurements == 3
    with open_store(out, create=False) as store:
        choices = store.choices(Linear(1, 64, 32).key, sample.HARDWARE.key, sample.ENVIRONMENT.key)
        assert {c.config: round(c.speedup) for c in choices} == {DEFAULT: 1, FAST: 2}, "decided from what was kept"
        assert [profile.key for profile in store.hardware()] == [sample.HARDWARE.key], "no rows that nothing names"
        assert not [finding for finding in verify(store) if finding.is_error and finding.count]


def test_equal_measurements_are_equal_bytes_however_they_were_spread(tmp_path: Path) -> None:
    sources = [store_of(tmp_path / f"{n}.sqlite", kept(n)) for n in (1, 2, 3)]
    together = store_of(tmp_path / "all.sqlite", [*kept(3), *kept(1), *unfit().values(), *kept(2)])
    made = []
    for number, order in enumerate([*permutations(sources), (together,)]):
        out = tmp_path / f"out-{number}.sqlite"
        release(order, str(out))
        made.append(out.read_bytes())
    assert len(set(made)) == 1


def test_nothing_fit_is_said_in_one_sentence(tmp_path: Path) -> None:
    source = store_of(tmp_path / "source.sqlite", list(unfit().values()))
    with pytest.raises(InvalidInput, match=r"nothing that is fit.*imported: 1"):
        release([source], str(tmp_path / "out.sqlite"))


def test_the_page_tells_of_every_table_and_column(tmp_path: Path) -> None:
    source = store_of(tmp_path / "source.sqlite", [*kept(1), *kept(2)])
    with open_store(source) as store:
        page = schema_page(store, "the command")
    for table in schema.metadata.tables.values():
        assert f"### {table.name}" in page
        assert table.info["doc"] in page
        for column in table.columns:
            assert column.doc, f"{table.name}.{column.name} is not described"
            assert column.doc in page
    assert "| best_configs |" in page
    assert "6 measurements of 3 configs for 2 workloads" in page
    assert "| linear | Sample CPU @ 2.00GHz, 16 CPUs | 2 | 2 | 2 | 2.00x |" in page


def test_the_script_replaces_the_file_only_by_a_sound_one(tmp_path: Path) -> None:
    def run(*sources: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(SCRIPT), *(word for s in sources for word in ("--source", s))]
        return subprocess.run([*command, "--out", str(tmp_path / "db" / "t.sqlite")], capture_output=True, text=True)

    good = run(store_of(tmp_path / "good.sqlite", kept(1)))
    assert good.returncode == 0, good.stderr
    assert "3 measurements, 2 decided" in good.stdout
    before = (tmp_path / "db" / "t.sqlite").read_bytes()
    assert (tmp_path / "db" / "README.md").read_text().startswith("# The shipped tuning database")

    slow = sample.record(sample.ok((1, 1, 1, 1)), workload=Linear(4096, 4096, 4096), config=FAST,
                         kernel_revision=registry.algorithm("torch").revision(),
                         hardware=replace(sample.HARDWARE, peak_gflops={"f32": 100.0}))  # fmt: skip
    bad = run(store_of(tmp_path / "bad.sqlite", [slow]))
    assert bad.returncode == 1
    assert "rates above the machine's peak" in bad.stderr
    assert (tmp_path / "db" / "t.sqlite").read_bytes() == before

    missing = run(str(tmp_path / "missing.sqlite"))
    assert missing.returncode == 2
    assert missing.stderr.count("\n") == 1
