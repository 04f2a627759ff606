"""The algorithm map: which winners it draws, and what it says when it cannot."""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune import environment, hardware, registry, settings
from autotune.ops.conv2d import Conv2d
from autotune.store.sql import open_store
from autotune.types import BenchmarkSpec, Config, Measurement, Stage, Status, TuningRecord

SCRIPT = Path(__file__).parent.parent / "scripts" / "plot_algorithm_map.py"
WON = {
    Conv2d(1, 64, 56, 56, 64, 3, 3, padding=1): (
        "onednn_conv",
        {"weight": "packed", "threads": 1},
        100,
        "3x3, stride 1",
    ),
    Conv2d(1, 64, 14, 14, 256, 1, 1): ("unfold_mm", {"threads": 1}, 50, "1x1"),
    Conv2d(1, 32, 28, 28, 32, 3, 3, padding=1, groups=32): ("torch", {}, 200, "depthwise"),
    Conv2d(1, 3, 64, 64, 16, 3, 3, stride=2): ("torch", {"threads": 1}, 150, "other"),
    Conv2d(8, 64, 56, 56, 64, 3, 3, padding=1): ("unfold_mm", {"threads": 1}, 50, "3x3, stride 1"),
}


@pytest.fixture
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


@pytest.fixture
def tuned() -> str:
    """A database in which each workload has a winner on this machine, 200 ns being the default's time."""
    path, software = settings.database(), environment.current()
    with open_store(path) as store:
        for workload, (algorithm, params, time_ns, _) in WON.items():
            measured = Measurement(Status.OK, times_ns=(time_ns,) * 20, baseline_ns=(200,) * 20, max_error=1e-7)
            revision = registry.algorithm(algorithm).revision()
            what = (workload, Config(algorithm, params), hardware.detect(), software, BenchmarkSpec(), measured)
            store.add([TuningRecord(*what, revision, Stage.FINAL)])
    return path


def test_the_winners_are_those_of_a_lookup(script: dict[str, Any], tuned: str) -> None:
    with open_store(tuned) as store:
        found = {mark.panel: mark for mark in script["marks"](store, 1, "nchw", "f32")}
    assert {panel: (m.algorithm, round(m.speedup, 2)) for panel, m in found.items()} == {
        "3x3, stride 1": ("onednn_conv", 2.0),
        "1x1": ("unfold_mm", 4.0),
        "depthwise": ("torch (default)", 1.0),
        "other": ("torch", 1.33),
    }
    assert (found["1x1"].size, found["1x1"].channels) == (14, 128)


def test_every_layer_belongs_to_the_panel_of_its_kind(script: dict[str, Any]) -> None:
    for workload, (*_, panel) in WON.items():
        assert script["panel_of"](workload) == panel
    assert script["panel_of"](Conv2d(1, 8, 9, 9, 8, 3, 3, dilation=2)) == "other"
    assert script["panel_of"](Conv2d(1, 8, 9, 9, 8, 1, 1, groups=2)) == "other"


@pytest.mark.parametrize("suffix", ["svg", "png"])
@pytest.mark.usefixtures("tuned")
def test_the_map_is_written(
    script: dict[str, Any], suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / f"map.{suffix}"
    assert script["main"](["--out", str(out)]) == 0
    assert out.stat().st_size > 1000
    assert "4 layers; onednn_conv 1, torch 1, torch (default) 1, unfold_mm 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dtype", "f64"], "no convolution (batch 1, nchw, f64) was tuned on this machine"),
        (["--out", "map.bmpx"], "map.bmpx cannot be written"),
        (["--out", "no/such/folder/map.svg"], "map.svg cannot be written"),
    ],
)
@pytest.mark.usefixtures("tuned")
def test_what_cannot_be_drawn_is_said_in_one_sentence(
    script: dict[str, Any], words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    assert script["main"](words) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


def test_without_matplotlib_it_says_how_to_get_it(
    script: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    importlib.invalidate_caches()
    assert script["main"]([]) == 2
    assert capsys.readouterr().err == "plot_algorithm_map: this needs matplotlib: pip install 'autotune[plot]'\n"
