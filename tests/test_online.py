"""The online path: what lookup answers, and that its callables are right whatever they are given."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import autotune
from autotune import Gemm, InvalidInput, Linear, Origin, environment, hardware, online, registry, settings
from autotune.store.sql import SqlStore, open_store
from autotune.types import BenchmarkSpec, Config, Measurement, Stage, Status, TuningRecord, Workload

WORKLOAD = Linear(m=3, n=40, k=24, bias=True)
FAST = Config("torch", {"weight": "transposed", "threads": 1})
FASTER_BUT_LOSSY = Config("fbgemm_int8", {"engine": "fbgemm", "reduce_range": False, "threads": 1})


@pytest.fixture
def store() -> Iterator[SqlStore]:
    """The user's database, as a sweep would make it."""
    with open_store(settings.database()) as opened:
        yield opened


def record(
    config: Config, ns: int, workload: Workload = WORKLOAD, error: float = 1e-7, **changes: object
) -> TuningRecord:
    measured = Measurement(Status.OK, times_ns=(ns,) * 20, baseline_ns=(1000,) * 20, max_error=error)
    revision = registry.algorithm(config.algorithm).revision()
    made = TuningRecord(
        workload, config, hardware.detect(), environment.current(), BenchmarkSpec(), measured, revision, Stage.FINAL
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def default(workload: Workload = WORKLOAD) -> TuningRecord:
    return record(registry.op(workload.op).default(workload), 1000, workload)


def operands(workload: Linear = WORKLOAD) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    op = registry.op("linear")
    constants = op.constants(workload, 1)
    assert constants["weight"] is not None
    return constants["weight"], constants["bias"], op.inputs(workload, 1)[0]


# ---- what is answered --------------------------------------------------------------------------------------


def test_an_empty_database_gives_the_default_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = autotune.lookup(WORKLOAD)
    assert answer.origin is Origin.DEFAULT
    assert answer.config == Config("torch")
    assert answer.reason == "never measured here"


def test_the_best_measured_config_is_exact(store: SqlStore) -> None:
    store.add([default(), record(FAST, 500)])
    answer = autotune.lookup(WORKLOAD)
    assert answer.origin is Origin.EXACT
    assert answer.config == FAST
    assert answer.speedup == pytest.approx(2.0)
    assert answer.expected_ns == 500
    assert answer.interval is not None
    assert answer.source == "tuning.sqlite"


def test_spec_strings_and_workloads_give_the_same_answer(store: SqlStore) -> None:
    store.add([default(), record(FAST, 500)])
    assert autotune.lookup(WORKLOAD.spec) == autotune.lookup(WORKLOAD)


def test_answers_are_memoised(store: SqlStore) -> None:
    store.add([default(), record(FAST, 500)])
    assert autotune.lookup(WORKLOAD) is autotune.lookup(Linear(m=3, n=40, k=24, bias=True))


def test_refresh_sees_what_was_added(store: SqlStore) -> None:
    assert autotune.lookup(WORKLOAD).origin is Origin.DEFAULT
    store.add([default(), record(FAST, 500)])
    autotune.refresh()
    assert autotune.lookup(WORKLOAD).origin is Origin.EXACT


def test_the_default_is_exact_when_nothing_beat_it(store: SqlStore) -> None:
    store.add([default(), record(FAST, 999)])
    answer = autotune.lookup(WORKLOAD)
    assert (answer.origin, answer.config, answer.speedup) == (Origin.EXACT, Config("torch"), 1.0)


@pytest.mark.parametrize("dtype", ["f64", "bf16", "f16"])
def test_c1_another_dtype_is_never_exact(store: SqlStore, dtype: str) -> None:
    store.add([default(), record(FAST, 500)])
    assert autotune.lookup(replace(WORKLOAD, dtype=dtype)).origin is Origin.DEFAULT


@pytest.mark.parametrize("layout", ["transposed", "strided", "expanded"])
def test_c13_another_stride_class_is_never_exact(store: SqlStore, layout: str) -> None:
    store.add([default(), record(FAST, 500)])
    assert autotune.lookup(replace(WORKLOAD, weight_layout=layout)).origin is Origin.DEFAULT


def test_other_hardware_is_named_but_not_served(store: SqlStore) -> None:
    elsewhere = replace(hardware.detect(), model="family 6 model 143 stepping 8", name="Some Other CPU")
    store.add([record(FAST, 500, hardware=elsewhere), replace(default(), hardware=elsewhere)])
    answer = autotune.lookup(WORKLOAD)
    assert answer.origin is Origin.DEFAULT
    assert "Some Other CPU" in answer.reason
    assert autotune.lookup(WORKLOAD, elsewhere).origin is Origin.EXACT


def test_another_environment_is_named_but_not_served(store: SqlStore) -> None:
    older = replace(environment.current(), framework="torch 2.0.0")
    store.add([replace(default(), environment=older), record(FAST, 500, environment=older)])
    answer = autotune.lookup(WORKLOAD)
    assert answer.origin is Origin.DEFAULT
    assert "torch 2.0.0" in answer.reason


def test_results_of_another_kernel_revision_are_not_served(store: SqlStore) -> None:
    store.add([default(), record(FAST, 500), record(Config("tiled", {"x": 1}), 100, kernel_revision="old")])
    assert autotune.lookup(WORKLOAD).config == FAST


def test_left_out_revisions_are_mentioned_when_the_default_is_served(store: SqlStore) -> None:
    store.add([default(), record(FAST, 500, kernel_revision="old")])
    answer = autotune.lookup(WORKLOAD)
    assert answer.config == Config("torch")
    assert "other kernel revisions" in answer.reason


def test_the_error_budget_decides(store: SqlStore) -> None:
    store.add([default(), record(FAST, 500), record(FASTER_BUT_LOSSY, 100, error=0.02)])
    assert autotune.lookup(WORKLOAD).config == FAST
    assert autotune.lookup(WORKLOAD, max_error=0.03).config == FASTER_BUT_LOSSY
    assert autotune.lookup(WORKLOAD, max_error=0.0).config == Config("torch")


@pytest.mark.parametrize("spec", ["linear m=0 n=4 k=4", "linear m=4 n=4 k=0", "gemm m=4 n=0 k=4"])
def test_c14_empty_workloads_are_valid_and_use_the_default(spec: str) -> None:
    answer = autotune.lookup(spec)
    assert (answer.origin, answer.reason) == (Origin.DEFAULT, "there is nothing to compute")


@pytest.mark.parametrize("wrong", ["convolve m=1", "linear m=1", "linear m=-1 n=2 k=3", "", 7, None, [1], {}])
def test_what_is_no_workload_is_refused_in_one_sentence(wrong: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        autotune.lookup(wrong)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_another_layout_that_is_faster_is_mentioned_not_served(store: SqlStore) -> None:
    here = autotune.Conv2d(1, 8, 9, 9, 8, 3, 3, padding=1)
    other = replace(here, layout="channels_last")
    store.add([default(here), record(Config("torch"), 1000, here), record(Config("torch"), 400, other)])
    answer = autotune.lookup(here)
    assert answer.config == Config("torch")
    assert "2.50x faster" in answer.advice
    assert "layout=channels_last" in answer.advice
    assert autotune.lookup(other).advice == ""


# ---- databases that cannot be used -------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"garbage" * 100, None])
def test_a_damaged_database_warns_once_and_the_default_is_used(store: SqlStore, content: bytes | None) -> None:
    store.add([default(), record(FAST, 500)])
    store.close()
    path = Path(settings.database())
    whole = path.read_bytes()
    for extra in path.parent.glob("tuning.sqlite-*"):
        extra.unlink()
    path.write_bytes(content if content is not None else whole[: len(whole) // 3])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answers = [autotune.lookup(Linear(m=m, n=8, k=8)) for m in range(1, 6)] + [autotune.lookup(WORKLOAD)]
    assert all(answer.origin is Origin.DEFAULT for answer in answers)
    told = [str(w.message) for w in caught if "autotune" in str(w.message)]
    assert len(told) <= 1
    if content != b"":  # an empty file is a database with nothing in it
        assert len(told) == 1


def test_a_newer_database_warns_and_the_default_is_used(store: SqlStore) -> None:
    import sqlite3

    store.add([default(), record(FAST, 500)])
    store.close()
    with sqlite3.connect(settings.database()) as connection:
        connection.execute("UPDATE autotune_version SET version_num = '9999'")
    connection.close()
    with pytest.warns(RuntimeWarning, match="upgrade autotune"):
        assert autotune.lookup(WORKLOAD).origin is Origin.DEFAULT


# ---- what is built -----------------------------------------------------------------------------------------


def test_a_built_answer_replaces_f_linear(store: SqlStore) -> None:
    store.add([default(), record(FAST, 500)])
    weight, bias, x = operands()
    linear = autotune.lookup(WORKLOAD).build(weight, bias)
    for given in (x, x[:1], x.reshape(1, 3, 24), torch.randn(2, 5, 24), torch.randn(24), x.t().contiguous().t()):
        assert torch.allclose(linear(given), F.linear(given, weight, bias), atol=1e-5)


def test_inputs_a_kernel_was_not_tuned_for_go_to_the_default(store: SqlStore) -> None:
    store.add([default(), record(FAST, 500)])
    weight, bias, x = operands()
    linear = autotune.lookup(WORKLOAD).build(weight, bias)
    wanting = x.clone().requires_grad_()
    linear(wanting).sum().backward()
    assert wanting.grad is not None
    with pytest.raises(RuntimeError):  # as F.linear itself says it
        linear(x.double())


@pytest.mark.parametrize("view", ["strided", "transposed", "expanded", "parameter"])
def test_c13_weights_that_are_views_give_right_results(store: SqlStore, view: str) -> None:
    store.add([default(), record(FAST, 500)])
    weight, bias, x = operands()
    given = {
        "strided": torch.randn(80, 48)[::2, ::2],
        "transposed": torch.randn(24, 40).t(),
        "expanded": torch.randn(1, 24).expand(40, 24),
        "parameter": torch.nn.Parameter(weight.clone()),
    }[view]
    linear = autotune.lookup(WORKLOAD).build(given, bias)
    with torch.no_grad():
        assert torch.allclose(linear(x), F.linear(x, given, bias), atol=1e-5)


@pytest.mark.parametrize(
    ("weight", "bias", "word"),
    [
        (torch.randn(40, 25), torch.randn(40), "shape [40, 24]"),
        (torch.randn(40, 24).double(), torch.randn(40), "f32 weight"),
        (torch.randn(40, 24), None, "needs a bias"),
        (torch.randn(40, 24), torch.randn(41), "bias of shape [40]"),
        ([[1.0]], torch.randn(40), "list"),
    ],
)
def test_operands_that_do_not_fit_are_refused(weight: object, bias: object, word: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        autotune.lookup(WORKLOAD).build(weight, bias)
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_arguments_of_build_are_refused() -> None:
    weight, bias, _ = operands()
    answer = autotune.lookup(WORKLOAD)
    for args, named in (((weight, bias, bias), {}), ((weight,), {"weight": weight}), ((weight,), {"wait": bias})):
        with pytest.raises(InvalidInput):
            answer.build(*args, **named)


def test_nan_weights_propagate(store: SqlStore) -> None:
    store.add([default(), record(FAST, 500)])
    weight, bias, x = operands()
    weight[3, 2] = float("nan")
    y = autotune.lookup(WORKLOAD).build(weight, bias)(x)
    assert y[:, 3].isnan().all()
    assert not y[:, :3].isnan().any()


def test_a_gemm_is_built_without_operands() -> None:
    a, b = torch.randn(5, 7), torch.randn(7, 3)
    gemm = autotune.lookup(Gemm.of(a, b)).build()
    assert torch.allclose(gemm(a, b), a @ b)


def test_workloads_are_made_from_tensors() -> None:
    x, weight = torch.randn(2, 3, 24), torch.randn(40, 24)
    assert Linear.of(x, weight) == Linear(6, 40, 24)
    assert Linear.of(x, torch.randn(24, 40).t(), torch.randn(40), "relu") == Linear(
        6, 40, 24, bias=True, activation="relu", weight_layout="transposed"
    )
    assert Gemm.of(torch.randn(4, 5, 7), torch.randn(4, 3, 7).transpose(1, 2)) == Gemm(
        5, 3, 7, 4, b_layout="transposed"
    )
    for wrong in ((x, torch.randn(40, 25)), (x, torch.randn(40)), (x, torch.zeros(40, 24, dtype=torch.int64))):
        with pytest.raises(InvalidInput):
            Linear.of(*wrong)
    with pytest.raises(InvalidInput):
        Gemm.of(torch.randn(5, 7), torch.randn(6, 3))


def test_c33_a_best_config_that_does_not_build_is_set_aside_and_the_next_one_used(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Config("mkl_packed", {"threads": 1})
    store.add([default(), record(broken, 100), record(FAST, 500)])

    def fail(*_: object) -> None:
        raise RuntimeError("illegal instruction")

    monkeypatch.setattr(type(registry.algorithm("mkl_packed")), "build", fail)
    weight, bias, x = operands()
    answer = autotune.lookup(WORKLOAD)
    assert answer.config == broken
    with pytest.warns(RuntimeWarning, match="illegal instruction") as caught:
        linear = answer.build(weight, bias)
    assert len(caught) == 1
    assert torch.allclose(linear(x), F.linear(x, weight, bias), atol=1e-5)
    assert autotune.lookup(WORKLOAD).config == FAST
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        autotune.lookup(WORKLOAD).build(weight, bias)


def test_when_nothing_measured_builds_the_default_does(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Config("mkl_packed", {"threads": 1})
    store.add([default(), record(broken, 100)])
    monkeypatch.setattr(type(registry.algorithm("mkl_packed")), "refusal", lambda *_: "there is no MKL")
    weight, bias, x = operands()
    with pytest.warns(RuntimeWarning, match="there is no MKL"):
        linear = autotune.lookup(WORKLOAD).build(weight, bias)
    assert torch.equal(linear(x), F.linear(x, weight, bias))


def test_without_torch_a_lookup_answers_and_building_says_what_is_missing(store: SqlStore) -> None:
    store.add([default(), record(FAST, 500)])
    store.close()
    code = f"""
import sys
sys.modules["torch"] = None
import autotune
answer = autotune.lookup({WORKLOAD.spec!r})
try:
    answer.build(None)
except autotune.Unavailable as error:
    print(answer.origin, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env={**os.environ})
    assert done.returncode == 0, done.stderr
    assert "pip install 'autotune[tune]'" in done.stdout


# ---- processes and threads ---------------------------------------------------------------------------------


def test_c30_threads_and_forked_children_get_the_same_answer(store: SqlStore) -> None:
    """In a process of its own: forking one that runs tests is no test of the library."""
    store.add([default(), record(FAST, 500)])
    store.close()
    code = f"""
import os, sys
from concurrent.futures import ThreadPoolExecutor
import autotune
op = autotune.parse_workload({WORKLOAD.spec!r})
def ask(index):
    answer = autotune.lookup(autotune.Linear(m=op.m, n=op.n, k=op.k, bias=True) if index % 2 else op.spec)
    return answer.origin.value, answer.config.key
first = ask(0)
children = []
for index in range(4):
    pid = os.fork()
    if pid == 0:
        autotune.refresh() if index % 2 else None
        os._exit(0 if ask(index) == first else 1)
    children.append(pid)
assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
autotune.refresh()
with ThreadPoolExecutor(16) as pool:
    assert set(pool.map(ask, range(200))) == {{first}}
print(*first)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env={**os.environ})
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["EXACT", FAST.key]


def test_a_lookup_never_changes_a_database(store: SqlStore) -> None:
    store.add([default(), record(FAST, 500)])
    store.close()
    before = Path(settings.database()).read_bytes()
    autotune.lookup(WORKLOAD)
    autotune.lookup(Linear(1, 1, 1))
    online.refresh()
    assert Path(settings.database()).read_bytes() == before
