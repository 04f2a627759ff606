"""Predicted lookups: what is answered on a miss, and that nothing about a model can get in the way of an answer."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import autotune
from autotune import Linear, Origin, environment, hardware, online, registry, settings
from autotune.cost import fit, model, train
from autotune.cost.dataset import collect
from autotune.store.sql import open_store
from autotune.types import Config, Stage
from tests import cost_samples as sample

NEW = Linear(m=16, n=640, k=768)
"""Not among the samples, and between them."""


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = train.train_op("linear", collect(sample.records()), fit.Options(trees=30, depth=4)).model
    path = tmp_path_factory.mktemp("model") / "made.atm"
    model.write(str(path), [made], {})
    return path


@pytest.fixture(autouse=True)
def _the_model(model_file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AUTOTUNE_MODEL", str(model_file))
    online.refresh()
    yield
    online.refresh()


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_shape_never_measured_is_predicted() -> None:
    answer = autotune.lookup(NEW)
    assert answer.origin is Origin.PREDICTED, answer.reason
    assert answer.config.algorithm == "tiled"
    assert answer.speedup is not None
    assert answer.interval is not None
    assert answer.expected_ns is not None
    low, high = answer.interval
    assert 0 < low < answer.speedup < high < math.inf
    assert answer.expected_ns > 0
    assert answer.p_faster is not None
    assert 0.5 < answer.p_faster < 1
    assert registry.parse_workload(answer.nearest).op == "linear"
    assert answer.nearest in answer.reason
    assert answer.max_error is None
    assert answer.source == "made.atm"
    assert autotune.lookup(NEW) is answer


def test_the_config_is_one_that_its_algorithm_takes_here() -> None:
    answer = autotune.lookup(NEW)
    space = registry.algorithm("tiled").space(NEW, hardware.detect())
    assert space.contains(answer.config.params)
    assert all(choice.config != answer.config for choice in answer.alternatives)


def test_it_builds_and_is_right() -> None:
    import torch

    answer = autotune.lookup(NEW)
    weight, x = torch.randn(640, 768), torch.randn(16, 768)
    torch.testing.assert_close(answer.build(weight)(x), torch.nn.functional.linear(x, weight), rtol=1e-4, atol=1e-4)


def test_what_was_measured_is_exact_all_the_same() -> None:
    config = sample.configs(NEW)[0]
    with open_store(settings.database()) as store:
        made = sample.record(NEW, config, 100_000, stage=Stage.FINAL)
        store.add(
            [
                made,
                replace(made, config=Config("torch"), measurement=replace(made.measurement, times_ns=(100_000,) * 10)),
            ]
        )
    online.refresh()
    assert autotune.lookup(NEW).origin is Origin.EXACT


def test_figures_probed_after_training_change_no_answer() -> None:
    here = hardware.detect()
    probed = replace(here, peak_gflops={"f32": 1e6}, bandwidth_gbs=1e5)
    before, after = (autotune.lookup(NEW, hw) for hw in (here, probed))
    assert before.origin is Origin.PREDICTED
    assert (before.config, before.expected_ns) == (after.config, after.expected_ns)


def test_c1_another_dtype_gets_the_default_and_a_reason() -> None:
    for dtype in ("bf16", "f16", "f64"):
        answer = autotune.lookup(Linear(m=16, n=640, k=768, dtype=dtype))
        assert answer.origin is Origin.DEFAULT
        assert f"has not seen dtype {dtype}" in answer.reason


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("gemm m=16 n=512 k=512", "not trained on gemm"),
        ("linear m=16 n=512 k=512 weight_layout=transposed", "not seen layout transposed"),
        ("linear m=16 n=512 k=512 activation=gelu", "not seen activation gelu"),
        ("linear m=16 n=512 k=99999", "outside the"),
        ("linear m=4096 n=512 k=512", "outside the"),
    ],
)
def test_outside_of_its_range_the_model_says_so(spec: str, reason: str) -> None:
    answer = autotune.lookup(spec)
    assert answer.origin is Origin.DEFAULT
    assert reason in answer.reason
    assert answer.config == Config("torch")


def test_another_machine_is_not_answered_for() -> None:
    machine = hardware.detect()
    arm = autotune.lookup(NEW, replace(machine, arch="aarch64", isa=("neon",)))
    large = autotune.lookup(NEW, replace(machine, allowed_cpus=machine.allowed_cpus * 16))
    assert arm.origin is large.origin is Origin.DEFAULT
    assert "not seen aarch64" in arm.reason
    assert "outside the" in large.reason


def test_c15_another_name_of_the_same_silicon_gets_the_same_answer() -> None:
    renamed = replace(hardware.detect(), name="NVIDIA_H100_80GB_HBM3")
    assert autotune.lookup(NEW, renamed).config == autotune.lookup(NEW).config


def test_other_software_is_not_answered_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    online.refresh()
    answer = autotune.lookup(NEW)
    assert answer.origin is Origin.DEFAULT
    assert "other software" in answer.reason


def test_c43_what_is_no_certain_gain_is_not_served(
    model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All measured configs a little slower or faster than the default, by chance."""
    import random

    chance = random.Random(0)
    found = collect(sample.records())
    found.groups = [
        replace(g, labels=tuple(0.0 if c == Config("torch") else chance.gauss(0.02, 0.05) for c in g.configs))
        for g in found.groups
    ]
    made = train.train_op("linear", found, fit.Options(trees=30, depth=4)).model
    path = tmp_path / "noise.atm"
    model.write(str(path), [made], {})
    monkeypatch.setenv("AUTOTUNE_MODEL", str(path))
    online.refresh()
    origins = [autotune.lookup(Linear(m=m, n=n, k=768)).origin for m in (1, 16) for n in (320, 448, 640, 900)]
    assert origins.count(Origin.DEFAULT) >= 7


def test_int8_is_for_those_who_allow_it() -> None:
    assert autotune.lookup(NEW, max_error=1e-5).config.algorithm == "tiled"
    strict = autotune.lookup(NEW, max_error=1e-12)
    assert strict.origin is Origin.DEFAULT
    allowed = autotune.lookup(NEW, max_error=0.1).config.algorithm
    assert allowed in ("fbgemm_int8", "tiled")


def test_it_explains_itself() -> None:
    pytest.importorskip("xgboost")
    answer = autotune.lookup(NEW, explain=True)
    assert 1 <= len(answer.factors) <= 8
    sizes = [abs(share) for _, share in answer.factors]
    assert sizes == sorted(sizes, reverse=True)
    assert autotune.lookup(NEW).factors == ()


def test_a_kernel_changed_since_training_is_no_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(registry.algorithm("tiled")), "revision", lambda self: "newer")
    online.refresh()
    assert autotune.lookup(NEW).origin is Origin.DEFAULT


def test_a_predicted_miss_is_noted_for_tuning_all_the_same() -> None:
    from autotune import wishes

    answer = autotune.lookup(NEW, on_miss="queue")
    assert answer.origin is Origin.PREDICTED
    assert NEW.spec in Path(wishes.spool()).read_text(encoding="utf-8")


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "pickle"])
def test_a_bad_model_file_is_warned_of_once_and_the_default_used(
    damage: str, model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bad.atm"
    whole = model_file.read_bytes()
    path.write_bytes({"empty": b"", "text": b"hello", "cut": whole[: len(whole) // 2], "pickle": b"\x80\x04N."}[damage])
    monkeypatch.setenv("AUTOTUNE_MODEL", str(path))
    online.refresh()
    with pytest.warns(RuntimeWarning, match=r"bad\.atm"):
        first = autotune.lookup(NEW)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = autotune.lookup(Linear(m=1, n=640, k=768))
    assert first.origin is second.origin is Origin.DEFAULT


def test_an_error_inside_the_model_is_no_error_of_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    from autotune.cost import answer

    def broken(*_: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(answer, "predict", broken)
    with pytest.warns(RuntimeWarning, match="oops"):
        assert autotune.lookup(NEW).origin is Origin.DEFAULT


def test_a_config_that_does_not_build_is_not_predicted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    answer = autotune.lookup(NEW)

    def broken(*_: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(type(registry.algorithm("tiled")), "build", broken)
    weight, x = torch.randn(640, 768), torch.randn(16, 768)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(answer.build(weight)(x), torch.nn.functional.linear(x, weight), rtol=1e-4, atol=1e-4)
        assert autotune.lookup(NEW).config != answer.config


PREDICT = (
    "import autotune, sys; a = autotune.lookup('linear m=16 n=640 k=768'); print(a.origin.value, a.config.algorithm)"
)


def test_a_predicted_lookup_loads_neither_torch_nor_xgboosts_package() -> None:
    shown = run(f"{PREDICT}\nprint(*sys.modules)").splitlines()
    assert shown[0] == "PREDICTED tiled"
    assert not {"torch", "xgboost", "sklearn", "pandas", "scipy", "sqlalchemy"} & set(shown[1].split())


def test_without_numpy_or_xgboost_the_default_is_used_silently() -> None:
    for gone in ("numpy", "autotune.cost.trees"):
        told = run(
            f"import sys, warnings; sys.modules[{gone!r}] = None; warnings.simplefilter('error')\n"
            "import autotune; a = autotune.lookup('linear m=16 n=640 k=768'); print(a.origin.value, a.reason)"
        )
        assert told.startswith("DEFAULT never measured here; cost model: ")


FORKED = """
import os, sys, threading, autotune
before = autotune.lookup("linear m=16 n=640 k=768")
busy = threading.Thread(target=lambda: [autotune.lookup(f"linear m=16 n={n} k=768") for n in range(300, 340)])
busy.start()
children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        same = autotune.lookup("linear m=16 n=640 k=768").config == before.config
        new = autotune.lookup("linear m=16 n=650 k=768").origin.value
        os._exit(0 if same and new == "PREDICTED" else 1)
    children.append(child)
busy.join()
print([os.waitpid(child, 0)[1] for child in children])
"""


def test_c30_forked_children_predict_too() -> None:
    assert run(FORKED).strip() == "[0, 0, 0, 0]"


def test_c30_sixteen_threads_get_the_same_answers() -> None:
    specs = [f"linear m=16 n={n} k=768" for n in range(600, 632, 2)]
    found: list[list[Config]] = []

    def ask() -> None:
        found.append([autotune.lookup(spec).config for spec in specs])

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert all(one == found[0] for one in found)


def test_what_was_measured_elsewhere_is_a_candidate() -> None:
    from autotune.snapshot import Snapshot

    config = sample.configs(NEW)[1]
    other = replace(hardware.detect(), model="another machine")
    with open_store(settings.database()) as store:
        store.add([sample.record(NEW, config, 100_000, stage=Stage.FINAL, hardware=other)])
    snapshot = Snapshot.open(settings.database())
    assert snapshot is not None
    assert snapshot.elsewhere(NEW.key) == [config]
    online.refresh()
    assert autotune.lookup(NEW).origin is Origin.PREDICTED


def test_the_models_place_follows_the_database() -> None:
    assert settings.model({"AUTOTUNE_DB": "/data/t.sqlite"}) == "/data/model.atm"
    assert settings.model({"AUTOTUNE_MODEL": "/m.atm", "AUTOTUNE_DB": "/data/t.sqlite"}) == "/m.atm"
    assert settings.model({"AUTOTUNE_DB": "postgresql://h/x", "XDG_DATA_HOME": "/d"}) == "/d/autotune/model.atm"
    assert environment.current().key
    assert os.path.basename(settings.model()) == "made.atm"
