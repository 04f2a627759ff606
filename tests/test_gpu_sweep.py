"""The prepared run for a machine with a GPU, tried on the CPU and where there is no such device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from autotune.store.sql import open_store

SCRIPT = str(Path(__file__).parent.parent / "scripts" / "gpu_sweep.py")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, timeout=280)


def test_a_dry_run_checks_sweeps_and_writes(tmp_path: Path) -> None:
    done = run(
        "--dry-run", "--minutes", "0.2", "--trials", "2", "--workload", "gemm m=2 n=8 k=8", "--out", str(tmp_path)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["device"] == "cpu"
    assert summary["checks"]["OK"] >= 1
    assert summary["wrong"] == []
    assert [job["workload"] for job in summary["tuned"]] == ["gemm m=2 n=8 k=8 dtype=f32"]
    with open_store(tmp_path / "tuning.sqlite", create=False) as store:
        assert len(store.workloads()) == 1
    assert (tmp_path / "summary.txt").read_text().startswith("cpu: ")


def test_no_such_gpu_is_one_sentence(tmp_path: Path) -> None:
    done = run("--device", "cuda:31", "--out", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith("gpu_sweep: ")
    assert "cuda:31 cannot be used" in done.stderr
    assert len(done.stderr.splitlines()) == 1
