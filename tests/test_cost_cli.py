"""`autotune train`, `evaluate` and `lookup --explain`: what they print, write and refuse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import autotune
from autotune import online, settings
from autotune.cli import main
from autotune.store.sql import open_store
from tests import cost_samples as sample


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("results") / "tuning.sqlite"
    with open_store(path) as store:
        store.add(sample.records())
    return path


@pytest.fixture(autouse=True)
def _no_model_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOTUNE_MODEL", raising=False)


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(list(words)) == code
    shown = capsys.readouterr()
    return shown.out if code == 0 else shown.err


def test_train_then_lookup(filled: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("AUTOTUNE_DB", str(filled))
    shown = told(capsys, "train")
    assert "linear" in shown
    assert settings.model() == str(filled.with_name("model.atm"))
    assert os.path.getsize(settings.model()) < 5_000_000
    shown = told(capsys, "lookup", "linear m=16 n=640 k=768", "--explain")
    assert "PREDICTED" in shown
    assert "because" in shown
    answer = json.loads(told(capsys, "lookup", "linear m=16 n=640 k=768", "--json"))
    assert answer["origin"] == "PREDICTED"
    assert answer["p_faster"] > 0.5
    probes = json.loads(told(capsys, "train", "--probes", "5", "--json"))
    assert len(probes) == 5
    assert autotune.parse_workload(probes[0]["workload"]).op == "linear"
    os.remove(settings.model())
    online.refresh()


def test_evaluate_prints_a_table_and_writes_a_card(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    card = tmp_path / "card.md"
    shown = told(capsys, "evaluate", "--db", str(filled), "--card", str(card))
    assert "regret@1" in shown
    assert "| regret@4 |" in card.read_text(encoding="utf-8")
    assert "one machine out takes results of two" in told(
        capsys, "evaluate", "--db", str(filled), "--leave-one-machine-out", code=2
    )


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_an_empty_database_says_what_it_takes(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "empty.sqlite"
    open_store(path).close()
    sentence = told(capsys, command, "--db", str(path), code=2)
    assert "not enough data: no results to learn from, and it takes 12 layer shapes and 200 results" in sentence
    with open_store(path) as store:
        store.add(record for record, _ in zip(sample.records(), range(20), strict=False))
    assert "not enough data for linear: 1 layer shapes" in told(capsys, command, "--db", str(path), code=2)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("train", "--base", "/nowhere/m.atm", "--db", "{db}"), "cannot be read"),
        (("train", "--db", "/nowhere/t.sqlite"), "/nowhere"),
        (("train", "--probes", "0"), "at least 1"),
        (("train", "--suite", "resnet50"), "--probes"),
        (("train", "--db", "{db}", "--out", "/proc/m.atm"), "cannot be written"),
        (("train", "--db", "{db}", "--op", "gemm"), "not enough data"),
    ],
)
def test_bad_input_is_one_sentence(
    words: tuple[str, ...], sentence: str, filled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = told(capsys, *(word.format(db=filled) for word in words), code=2)
    assert sentence in shown
    assert shown.count("\n") == 1


def test_the_shipped_models_are_what_training_on_the_shipped_database_makes(filled: Path, tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "scripts" / "release_models.py"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(script), "--db", str(filled), "--out", str(tmp_path), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)

    made = run()
    assert made.returncode == 0, made.stderr
    assert "| regret@4 |" in (tmp_path / "README.md").read_text(encoding="utf-8")
    assert run("--check").returncode == 0
    whole = (tmp_path / "model.atm").read_bytes()
    (tmp_path / "model.atm").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    changed = run("--check")
    assert changed.returncode == 1
    assert "is NOT" in changed.stdout
