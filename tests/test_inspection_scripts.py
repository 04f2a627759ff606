"""scripts/inspect_db.py, compare_hardware.py and plot_search.py: what they say, draw and refuse."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from autotune import registry, settings
from autotune.ops.linear import Linear
from autotune.store.sql import open_store
from autotune.types import Config, Stage
from tests import store_samples as sample

SCRIPTS = Path(__file__).parent.parent / "scripts"
DEFAULT = registry.op("linear").default(sample.WORKLOAD)
A, B = sample.HARDWARE, sample.OTHER_HARDWARE
SMALL, LARGE = Config("tiled", {"tile": (1, 64)}), Config("tiled", {"tile": (8, 48)})


def script(name: str) -> dict[str, Any]:
    return runpy.run_path(str(SCRIPTS / f"{name}.py"))


@pytest.fixture
def database() -> str:
    """`SMALL` wins on A, `LARGE` on B, where `SMALL` was decided too; a second workload is the same on both."""
    path = settings.database()
    with open_store(path) as store:
        for machine, small, large in ((A, 3.0, 2.0), (B, 2.0, 4.0)):
            for config, ratio in ((DEFAULT, 1.0), (SMALL, small), (LARGE, large)):
                for stage in Stage:
                    store.add([sample.record(sample.ok(ratio=ratio), config=config, hardware=machine, stage=stage)])
            store.add([sample.record(workload=Linear(2, 3, 4), config=SMALL, hardware=machine)])
    return path


def test_comparison(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    main = script("compare_hardware")["main"]
    assert main(["--a", A.key[:8], "--b", B.key[:8], "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["workloads"], told["common"], told["known"]) == (2, 1, 2)
    losses = {layer["workload"]: layer["loss"] for layer in told["layers"]}
    assert losses == {sample.WORKLOAD.spec: 2.0, Linear(2, 3, 4).spec: 1.0}
    assert main(["--a", A.key, "--b", B.key]) == 0
    assert "1 of 2 winners in common; copying takes 1.41x the time" in capsys.readouterr().out
    assert main(["--list"]) == 0
    assert B.key in capsys.readouterr().out


def test_overview(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    main = script("inspect_db")["main"]
    assert main(["--json", "--workload", sample.WORKLOAD.spec]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["counts"]["measurements"] == 14
    assert told["times_log2_ns"] == {"6": 14}  # 64 to 128 ns
    assert told["best"][0]["speedup"] == 4.0
    assert {name: best[-1] for name, best in told["search"].items()} == {A.name: 3.0, B.name: 4.0}
    assert main(["--workload", sample.WORKLOAD.spec]) == 0
    assert "14 measurements (0 failed)" in capsys.readouterr().out
    assert script("inspect_db")["bars"]([0.0, 1.0, 8.0]) == " ▁█"


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_pictures(database: str, suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / f"x.{suffix}"
    assert script("plot_search")["main"]([sample.WORKLOAD.spec, "--hardware", B.key[:6], "--out", str(out)]) == 0
    assert out.stat().st_size > 1000
    assert "6 measurements, best 4.00x" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("compare_hardware", [], "does not name one machine"),
        ("compare_hardware", ["--a", A.key, "--b", B.key, "--op", "gemm"], "no workload was tuned on both"),
        ("inspect_db", ["--limit", "0"], "at least 1"),
        ("inspect_db", ["--db", "none.sqlite"], "there is no database"),
        ("plot_search", ["linear m=9 n=9 k=9"], "nothing was measured"),
        ("plot_search", ["unheard n=1"], "unknown op"),
        ("plot_search", [sample.WORKLOAD.spec, "--out", "no/such/x.svg"], "cannot be written"),
        ("plot_search", [sample.WORKLOAD.spec, "--out", "x.nothing"], "cannot be written"),
    ],
)
@pytest.mark.usefixtures("database")
def test_bad_input_is_one_sentence(
    name: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "plot_search":
        pytest.importorskip("matplotlib")
    assert script(name)["main"](words) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
