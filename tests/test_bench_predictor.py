"""The comparison on MIOpen's files: made-up find-dbs go through it whole, and its parts are what they say."""

from __future__ import annotations

import hashlib
import importlib
import lzma
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from autotune.formats import miopen_key

SCRIPTS = str(Path(__file__).parent.parent / "scripts")
FORWARD = "miopenConvolutionFwdAlgo"


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(SCRIPTS)
    monkeypatch.setitem(module("miopen_boosters").SHARED, "nthread", 1)  # other tests run beside these
    yield
    for name in [name for name in sys.modules if name.startswith(("miopen_", "bench_predictor"))]:
        del sys.modules[name]


def module(name: str) -> ModuleType:
    return importlib.import_module(name)


def find_db(count: int, seed: int = 0) -> str:
    """Layers of which few channels are fastest by direct convolution, many by GEMM; a naive solver is always slow."""
    random = np.random.default_rng(seed)
    lines = []
    for c, k, h in random.permutation([(c, k, h) for c in range(8, 72, 4) for k in (16, 32, 64) for h in (7, 14, 28)])[
        :count
    ]:
        direct, gemm = 0.01 * float(c), 0.3 + 0.001 * float(c)
        key = f"{c}-{h}-{h}-3x3-{k}-{h}-{h}-4-1x1-1x1-1x1-0-NCHW-FP32-F"
        items = [("Direct", direct, "Direct"), ("Gemm", gemm, "GEMM"), ("ConvDirectNaiveConvFwd", 5.0, "Direct")]
        items.sort(key=lambda item: item[1])  # as MIOpen has them, the fastest first
        lines.append(f"{key}=" + ";".join(f"{name}:{ms:g},0,{FORWARD}{kind}" for name, ms, kind in items))
    return "\n".join(lines) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, count in (("gfx942130", 144), ("gfx1030_36", 100)):
        (tmp_path / f"{name}.HIP.fdb.txt.xz").write_bytes(lzma.compress(find_db(count).encode()))
    return tmp_path


def test_a_bucket_is_a_hash_of_the_layer_alone() -> None:
    bucket = module("miopen_data").bucket
    forward = miopen_key.parse("256-30-30-3x3-256-14-14-2-0x0-2x2-1x1-0-NCHW-FP32-F")
    backward = miopen_key.parse("256-14-14-3x3-256-30-30-9-0x0-2x2-1x1-0-NHWC-NHWC-NHWC-FP16-B")
    text = b"g256,256,[1, 30, 30],[1, 3, 3],[1, 2, 2],[0, 0, 0],[1, 1, 1],1"
    assert bucket(forward) == bucket(backward) == int(hashlib.sha1(text).hexdigest()[:8], 16) % 1000
    assert bucket(miopen_key.parse("256-31-30-3x3-256-14-14-2-0x0-2x2-1x1-0-NCHW-FP32-F")) != bucket(forward)


def test_candidates_are_in_the_order_of_names_and_bad_ones_left_out(tmp_path: Path) -> None:
    data = module("miopen_data")
    key = "8-14-14-1x1-16-14-14-2-0x0-1x1-1x1-0-NCHW-FP32-F"
    text = f"{key}=Z:1,0,{FORWARD}GEMM;A:2,8,{FORWARD}Direct;M:0,0,{FORWARD}GEMM\n"
    text += f"9{key}=Z:1,0,{FORWARD}GEMM\n8{key.replace('FP32', 'FP64')}=Z:1,0,{FORWARD}GEMM;A:2,8,{FORWARD}Direct\n"
    (tmp_path / "gfx942130.HIP.fdb.txt.xz").write_bytes(lzma.compress(text.encode()))
    found = data.load(tmp_path, "gfx942", tmp_path / "cache")
    again = data.load(tmp_path, "gfx942", tmp_path / "cache")
    for one in (found, again):
        assert len(one) == 1
        assert [one.solvers[index] for index in one.solver] == ["A", "Z"]
        assert one.ms.tolist() == [2.0, 1.0]
        assert one.cost.tolist() == [np.log(2.0), 0.0]


def test_figures_of_known_picks(folder: Path) -> None:
    data, told = module("miopen_data"), module("miopen_quality")
    problems = data.load(folder, "gfx942")
    perfect = told.quality(problems, problems.ms)
    assert (perfect.accuracy, perfect.top, perfect.worst, perfect.low, perfect.high) == (
        1.0,
        (1.0, 1.0, 1.0),
        1.0,
        1.0,
        1.0,
    )
    worst = told.quality(problems, -problems.ms)
    assert worst.accuracy == 0.0
    assert worst.top[0] == pytest.approx(np.exp(np.mean(np.log(5.0 / problems.best_ms))))
    assert worst.top[0] > worst.top[1] > worst.top[2] == 1.0
    assert worst.low < worst.top[0] < worst.high
    assert worst.clipped < worst.top[0]


def test_a_second_opinion_measures_two_where_members_disagree(folder: Path) -> None:
    data, told = module("miopen_data"), module("miopen_quality")
    problems = data.load(folder, "gfx942")
    wrong = np.where(problems.ms == 5.0, 2.0, problems.ms)  # the order is right
    odd = problems.column("c") % 8 == 4
    other = np.where(odd[problems.problem], -problems.ms, problems.ms)
    found, share = told.second_opinion(problems, wrong, [wrong, other])
    assert share == pytest.approx(odd.mean())
    assert found.top == (1.0,)
    found, share = told.second_opinion(problems, other, [other, other])
    assert share == 0.0
    assert found.top[0] > 1.0


def test_baselines_go_by_wins_in_training(folder: Path) -> None:
    data, told = module("miopen_data"), module("miopen_quality")
    problems = data.load(folder, "gfx942")
    small, large = problems.only(problems.column("c") < 30), problems.only(problems.column("c") > 40)
    names = np.array(problems.solvers)
    assert set(names[large.solver[told.picks(large, told.most_winning(small, large))]]) == {"Direct"}
    by_size = told.most_winning(problems, large, ("c",))
    assert set(names[large.solver[told.picks(large, by_size)]]) == {"Gemm"}


def test_features_do_not_know_the_times_of_the_problem_at_hand(folder: Path) -> None:
    data, features = module("miopen_data"), module("miopen_features")
    problems = data.load(folder, "gfx942")
    habits = features.Habits.of(problems)
    x, names = features.matrix(problems, habits, features.SPECS["gfx942"])
    other = data.Problems(
        problems.sizes, problems.problem, problems.solver, problems.ms[::-1], problems.workspace, problems.solvers
    )
    assert (features.matrix(other, habits, features.SPECS["gfx942"])[0] == x).all()
    assert x.shape == (len(problems.ms), len(names)) == (len(problems.ms), len(set(names)))
    assert np.isfinite(x).all()


def test_intervals_hold_as_much_as_they_say() -> None:
    errors = np.random.default_rng(0).normal(size=4000)
    low, high = module("miopen_quality").conformal(errors[:2000], 0.9)
    assert 0.87 < np.mean((low <= errors[2000:]) & (errors[2000:] <= high)) < 0.93


def test_the_whole_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = module("bench_predictor")
    command = ["--miopen", str(folder), "--gpu", "gfx942", "--cache", str(folder / "cache"), "--shorter", "20"]
    assert bench.main(command) == 0
    first = capsys.readouterr()
    rows = {line.split("|")[1].strip(): line for line in first.out.splitlines() if line.startswith("| ")}
    assert {"most-winning solver", "squared error", "ensemble of 5"} <= set(rows)
    share = {name: float(line.split("|")[2]) for name, line in rows.items() if line.count("|") == 9 and name}
    assert share["ensemble of 5"] > share["most-winning solver"]
    assert "90% intervals of the picks' times" in first.out
    assert "listwise 3" in first.err
    assert bench.main(command) == 0  # from the boosters that were kept
    second = capsys.readouterr()
    assert second.out == first.out
    assert second.err == ""


def test_a_gpu_left_out(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    bench, data, transfer = module("bench_predictor"), module("miopen_data"), module("miopen_transfer")
    monkeypatch.setattr(data, "GPUS", {name: data.GPUS[name] for name in ("gfx942", "gfx1030")})
    monkeypatch.setattr(transfer, "LOCAL", (10,))
    assert bench.main(["--miopen", str(folder), "--gpu", "gfx942", "--leave-one-out", "--shorter", "20"]) == 0
    told = capsys.readouterr().out
    assert "gfx942 left out" in told
    assert "| other GPUs only |" in told
    assert "| with 10 problems of its own, draw 2 |" in told


def test_a_folder_without_files_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = module("bench_predictor")
    assert bench.main(["--miopen", str(tmp_path)]) == 2
    assert "has no gfx942130" in capsys.readouterr().err
    assert bench.main([]) == 2
