"""Names of ops and algorithms, built in or from other packages, and the spec strings that name them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autotune import hardware, registry
from autotune.errors import InvalidInput, Unavailable
from autotune.ops.gemm import Gemm
from autotune.ops.linear import Linear
from autotune.search import candidates_for
from autotune.types import Config

# Built in


def test_every_built_in_name_loads_and_is_called_so() -> None:
    for name in registry.BUILT_IN["ops"]:
        assert registry.op(name).name == registry.op(name).workload.op == name
    for name in registry.BUILT_IN["algorithms"]:
        assert registry.algorithm(name).name == name
        assert registry.algorithm(name).revision()
        assert set(registry.algorithm(name).ops) <= set(registry.BUILT_IN["ops"])


@pytest.mark.parametrize("op", list(registry.BUILT_IN["ops"]))
def test_the_default_is_one_of_the_algorithms(op: str) -> None:
    found = [algorithm.name for algorithm in registry.algorithms(op)]
    assert found[0] == "torch"
    assert len(found) == len(set(found)) > 1


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match="unknown op 'conv9d'; there are linear, gemm"):
        registry.op("conv9d")
    with pytest.raises(InvalidInput, match="unknown algorithm 'magic'; there are torch, onednn_packed"):
        registry.algorithm("magic")


# Spec strings


@pytest.mark.parametrize(
    ("spec", "workload"),
    [
        ("linear m=1 n=4096 k=1024", Linear(1, 4096, 1024)),
        ("linear m=1 n=4096 k=1024 dtype=f32", Linear(1, 4096, 1024)),
        ("  linear   k=3\tn=2 m=1\n", Linear(1, 2, 3)),
        ("linear m=1 n=2 k=3 bias=True", Linear(1, 2, 3, bias=True)),
        ("linear m=1 n=2 k=3 bias=0", Linear(1, 2, 3)),
        ("gemm m=0 n=2 k=3 batch=4 b_layout=transposed", Gemm(0, 2, 3, 4, b_layout="transposed")),
    ],
)
def test_a_spec_string_is_a_workload(spec: str, workload: object) -> None:
    assert registry.parse_workload(spec) == workload


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "a workload is written like: linear m=1 n=4096 k=1024"),
        ("   ", "a workload is written like"),
        ("conv9d n=1", "unknown op 'conv9d'"),
        ("linear", "linear needs m=… n=… k=…"),
        ("linear m=1 n=2", "linear needs k=…"),
        ("linear m=1 n=2 k", "'k' in 'linear m=1 n=2 k' is not name=value"),
        ("linear m=1 n=2 k=", "k= must be a whole number"),
        ("linear m=1 n=2 k=3.0", "k=3.0 must be a whole number"),
        ("linear m=1 n=2 k=1e3", "k=1e3 must be a whole number"),
        ("linear m=1 n=2 k=-3", "k=-3 is out of range: 0 to"),
        ("linear m=1 n=2 k=9223372036854775808", "is out of range"),
        ("linear m=1 n=2 k=3 m=1", "'m=1' in .* is given twice"),
        ("linear m=1 n=2 k=3 q=4", "linear has no field 'q'; its fields are m, n, k, dtype"),
        ("linear m=1 n=2 k=3 key=4", "linear has no field 'key'"),
        ("linear m=1 n=2 k=3 dtype=f31", "dtype='f31' is not one of f64, f32"),
        ("linear m=1 n=2 k=3 bias=yes", "bias=yes must be 0 or 1"),
        ("linear m=1 n=2 k=3 activation=tanh", "activation='tanh' is not one of none, relu"),
        ("=", "unknown op '='"),
    ],
)
def test_what_is_wrong_with_a_spec_string_is_said_in_one_sentence(spec: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        registry.parse_workload(spec)
    assert "\n" not in str(caught.value).removesuffix(spec)


# From outside


@pytest.mark.usefixtures("plugin")
class TestPlugin:
    def test_an_op_from_outside_is_found(self) -> None:
        workload = registry.parse_workload("scale n=8")
        assert workload.spec == "scale n=8 dtype=f32"
        assert workload.flops == 8
        assert registry.op("scale").default(workload) == Config("scale_torch")
        assert registry.names("ops") == (*registry.BUILT_IN["ops"], "scale")

    def test_algorithms_from_outside_are_found_after_the_built_in_ones(self) -> None:
        assert [a.name for a in registry.algorithms("scale")] == ["misbehaving", "scale_torch", "scale_twice"]
        built_in = len(registry.BUILT_IN["algorithms"])
        assert registry.names("algorithms")[:built_in] == tuple(registry.BUILT_IN["algorithms"])

    def test_ops_here_are_not_offered_to_algorithms_of_others(self) -> None:
        assert not {"scale_torch", "scale_twice", "misbehaving"} & {a.name for a in registry.algorithms("linear")}

    def test_their_spaces_are_searched(self) -> None:
        found = candidates_for(registry.parse_workload("scale n=8"), hardware.detect())
        assert found.spaces["scale_twice"].parameters["pair"] == ((1, 2), (2, 1))
        assert found.refusals == {}

    def test_a_broken_entry_point_is_passed_over_but_named_when_asked_for(self) -> None:
        assert "broken_import" in registry.names("algorithms")
        assert "torch" in [algorithm.name for algorithm in registry.algorithms("linear")]
        with pytest.raises(Unavailable, match=r"algorithm 'broken_import' \(autotune_test_plugin_that_is_missing"):
            registry.algorithm("broken_import")

    def test_without_the_package_its_names_are_unknown(self) -> None:
        program = "from autotune import registry; registry.parse_workload('scale n=8')"
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, env={}, cwd="/", timeout=60
        )
        assert done.returncode == 1
        assert "InvalidInput: unknown op 'scale'" in done.stderr


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("raise RuntimeError('needs a license')", "needs a license"),
        ("def broken(:", "invalid syntax"),
        ("1 / 0", "division by zero"),
        ("class Mine:\n    def __init__(self, needed): pass", "needed"),
        ("other = 1", "has no attribute 'Mine'"),
        ("import a_package_that_is_missing", "a_package_that_is_missing"),
    ],
)
def test_whatever_breaks_in_another_package_breaks_only_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, told: str
) -> None:
    points = tmp_path / "autotune_broken-1.0.dist-info" / "entry_points.txt"
    points.parent.mkdir()
    (points.parent / "METADATA").write_text("Metadata-Version: 2.1\nName: autotune-broken\nVersion: 1.0\n")
    points.write_text("[autotune.algorithms]\nmine = autotune_broken:Mine\n")
    (tmp_path / "autotune_broken.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.forget()
    try:
        assert [a.name for a in registry.algorithms("gemm")]
        with pytest.raises(Unavailable, match=f"algorithm 'mine' .* cannot be loaded: .*{told}"):
            registry.algorithm("mine")
    finally:
        sys.modules.pop("autotune_broken", None)
        registry.forget()


def test_a_built_in_name_cannot_be_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = tmp_path / "autotune_thief-1.0.dist-info" / "entry_points.txt"
    points.parent.mkdir()
    (points.parent / "METADATA").write_text("Metadata-Version: 2.1\nName: autotune-thief\nVersion: 1.0\n")
    points.write_text("[autotune.algorithms]\ntorch = thief:Torch\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.forget()
    try:
        assert registry.names("algorithms").count("torch") == 1
        assert type(registry.algorithm("torch")).__module__ == "autotune.kernels.framework"
    finally:
        registry.forget()
