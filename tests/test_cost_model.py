"""Learning: what becomes a label, what a trained model says, its file, transfer and evaluation."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune import hardware
from autotune.cost import choose, evaluate, features, fit, model, train
from autotune.cost.dataset import Dataset, collect
from autotune.cost.features import Table
from autotune.cost.model import MAGIC, Calibration, OpModel
from autotune.cost.probes import PER_WORKLOAD, probes
from autotune.cost.trees import Trees
from autotune.cost.ubjson import Malformed, check
from autotune.errors import Incompatible, InvalidInput, Unavailable
from autotune.types import Config, Measurement, Stage, Status
from tests import cost_samples as sample
from tests import store_samples

QUICK = fit.Options(trees=30, depth=4)


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return collect(sample.records())


@pytest.fixture(scope="module")
def trained(dataset: Dataset) -> OpModel:
    return train.train_op("linear", dataset, QUICK).model


@pytest.fixture
def file(trained: OpModel, tmp_path: Path) -> Path:
    path = tmp_path / "model.atm"
    model.write(str(path), [trained], {"autotune": "test"})
    return path


# ---- labels ------------------------------------------------------------------------------------------------


def test_labels_are_logarithms_of_time_over_the_defaults(dataset: Dataset) -> None:
    group = dataset.groups[0]
    for config, label in zip(group.configs, group.labels, strict=True):
        expected = 1.0 if config == Config("torch") else sample.speedup(group.workload, config)  # type: ignore[arg-type]
        assert label == pytest.approx(-math.log(expected), abs=0.01)


@pytest.mark.parametrize("time", [math.nan, math.inf, -math.inf, 0, -5])
def test_c25_a_time_that_is_no_time_is_never_a_label(time: float) -> None:
    workload = sample.workloads()[0]
    good, bad = sample.configs(workload)[:2]
    broken = Measurement(Status.OK, times_ns=(time,) * 10, baseline_ns=(100,) * 10, max_error=1e-7)  # type: ignore[arg-type]
    found = collect([sample.record(workload, good, 1000), sample.record(workload, bad, 1000, measurement=broken)])
    (group,) = found.groups
    assert set(group.configs) == {good, Config("torch")}
    assert group.failed == (bad,)
    assert all(math.isfinite(label) for label in group.labels)


def test_what_is_left_out_is_counted() -> None:
    workload = sample.workloads()[0]
    config = sample.configs(workload)[0]
    made = sample.record(workload, config, 1000)
    busy = replace(made, measurement=replace(made.measurement, contended=True))
    old = replace(made, kernel_revision="older")
    gone = replace(made, config=Config("gone"))
    refused = replace(made, measurement=Measurement(Status.NOT_APPLICABLE, "no"))
    found = collect([busy, old, gone, refused])
    assert found.groups == []
    assert sorted(found.left_out.values()) == [1, 1, 1, 1]
    assert len(collect([old], any_revision=True).groups) == 1


def test_many_pairs_decide_over_screening() -> None:
    workload = sample.workloads()[0]
    config = sample.configs(workload)[0]
    slow = Measurement(Status.OK, times_ns=(2000,) * 20, baseline_ns=(1000,) * 20, max_error=1e-7)
    final = sample.record(workload, config, 1000, measurement=slow, stage=Stage.FINAL)
    (group,) = collect([final, sample.record(workload, config, 1000)]).groups
    assert group.labels[group.configs.index(config)] == pytest.approx(math.log(2))


# ---- models ------------------------------------------------------------------------------------------------


def test_it_learns_the_rule(dataset: Dataset) -> None:
    summary = evaluate.summarise(evaluate.evaluate(dataset, "linear", QUICK))
    assert summary.regret[1] < 1.05
    assert summary.slow == 0
    assert summary.abstained < 0.2
    assert summary.regret[4] <= summary.regret[2] <= summary.regret[1] < summary.baselines["default"]
    assert summary.spearman is not None
    assert summary.spearman > 0.8


def test_training_is_deterministic_given_the_seed(dataset: Dataset, trained: OpModel) -> None:
    again = train.train_op("linear", dataset, QUICK).model
    other = train.train_op("linear", dataset, replace(QUICK, seed=1)).model
    assert list(again.blobs()) == list(trained.blobs())
    assert again.head == trained.head
    assert list(other.blobs()) != list(trained.blobs())


def test_folds_keep_the_workloads_of_a_layer_together(dataset: Dataset) -> None:
    folds = fit.folds_of(dataset.groups, 4, 0)
    by_shape: dict[Any, set[int]] = {}
    for group, fold in zip(dataset.groups, folds.tolist(), strict=True):
        by_shape.setdefault(group.shape, set()).add(fold)
    assert {len(found) for found in by_shape.values()} == {1}
    assert set(folds.tolist()) == {0, 1, 2, 3}


def test_what_is_not_exact_is_learnt_to_be_unusable(dataset: Dataset, trained: OpModel) -> None:
    assert trained.usable is not None
    group = dataset.groups[3]
    usable = trained.usable.predict(trained.features.matrix(group.workload, group.hardware, Table(group.configs)))
    assert [p > 0.5 for p in usable] == [c.algorithm != "fbgemm_int8" for c in group.configs]


def test_intervals_hold_what_they_promise() -> None:
    drawn = np.random.default_rng(0).normal(0.1, 1.0, 400)
    own = Calibration(tuple(np.sort(drawn[:200])), shapes=200)
    low, high = own.bounds(0.0, 0.5)
    share = np.mean((low <= drawn[200:] * 0.5) & (drawn[200:] * 0.5 <= high))
    assert 0.85 < share < 0.96
    assert own.p_below(-9.0, 1.0) > 0.99
    assert own.p_below(9.0, 1.0) < 0.01
    few = replace(own, shapes=5)  # of few shapes, the extremes
    assert few.bounds(0.0, 1.0) == (own.residuals[0], own.residuals[-1])


@pytest.mark.parametrize("count", [0, 3])
def test_too_little_data_says_how_much_it_takes(dataset: Dataset, count: int) -> None:
    few = replace(dataset, groups=dataset.groups[:count])
    with pytest.raises(
        InvalidInput, match=r"not enough data for linear: \d layer shapes .* it takes 12 layer shapes and 200"
    ):
        train.train_op("linear", few, QUICK)
    with pytest.raises(InvalidInput, match="not enough data"):
        evaluate.evaluate(few, "linear", QUICK)


def test_a_card_has_every_figure(dataset: Dataset) -> None:
    summary = evaluate.summarise(evaluate.evaluate(dataset, "linear", QUICK))
    card = evaluate.card({"linear": summary}, "Sample", ["note"])
    assert all(f"| {name} |" in card for name, _ in evaluate.table({"linear": summary}))
    assert "nan" not in card


# ---- files -------------------------------------------------------------------------------------------------


def test_a_model_read_again_says_the_same(trained: OpModel, file: Path, dataset: Dataset) -> None:
    read = model.read(str(file)).ops["linear"]
    for group in dataset.groups[:3]:
        table = Table(group.configs)
        for ours, theirs in zip(
            trained.predict(group.workload, group.hardware, table),
            read.predict(group.workload, group.hardware, table),
            strict=True,
        ):
            np.testing.assert_array_equal(ours, theirs)
    assert read.head == json.loads(json.dumps(trained.head))


def parts(path: Path) -> tuple[dict[str, Any], bytes]:
    data = path.read_bytes()[len(MAGIC) :]
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def joined(path: Path, head: dict[str, Any], body: bytes) -> None:
    text = json.dumps(head).encode()
    path.write_bytes(MAGIC + len(text).to_bytes(8, "little") + text + body)


def opened(path: Path) -> OpModel:
    return model.read(str(path)).ops["linear"]


def test_a_file_cut_anywhere_is_refused(file: Path) -> None:
    data = file.read_bytes()
    for length in (0, 5, len(MAGIC) + 3, 400, len(data) // 2, len(data) - 1):
        file.write_bytes(data[:length])
        with pytest.raises(Incompatible, match=r"model\.atm (is|was)"):
            opened(file)


def test_a_changed_byte_is_noticed(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    file.write_bytes(data)
    with pytest.raises(Incompatible, match="hash"):
        model.read(str(file))


def _drop_feature(head: dict[str, Any]) -> None:
    head["ops"][0]["features"]["names"].remove("tile_efficiency")


def _add_feature(head: dict[str, Any]) -> None:
    head["ops"][0]["features"]["names"].append("luck")


HOSTILE: dict[str, Callable[[dict[str, Any]], object]] = {
    "another format": lambda head: head.update(format=99),
    "other features": lambda head: head.update(features=99),
    "one feature missing": _drop_feature,
    "one feature more": _add_feature,
    "ops that are no list": lambda head: head.update(ops=3),
    "a negative size": lambda head: head["ops"][0]["blobs"][0].__setitem__(1, -1),
    "an op that nobody has": lambda head: head["ops"][0].update(
        op="linear", measured=[{"dims": {"x": 1}, "winners": []}]
    ),
    "winners out of range": lambda head: head["ops"][0]["measured"][0].update(winners=[10**9]),
    "figures that are texts": lambda head: head["ops"][0].update(threshold="high"),
    "no calibration": lambda head: head["ops"][0].update(calibration={"": {"residuals": [], "shapes": 1}}),
    "an infinite figure": lambda head: head["ops"][0].update(reach=math.inf),
    "configs that are none": lambda head: head["ops"][0].update(
        portfolio=[{"algorithm": "", "params": {}, "placement": ""}]
    ),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_header_is_refused_in_one_sentence(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    head, body = parts(file)
    change(head)
    joined(file, head, body)
    with pytest.raises(Incompatible) as refused:
        opened(file)
    assert ("\n" not in str(refused.value) and "train it again" in str(refused.value)) or "copy it again" in str(
        refused.value
    )


def test_c28_permuted_columns_give_the_same_answer_and_others_are_refused(
    file: Path, trained: OpModel, dataset: Dataset
) -> None:
    """The columns of the boosters in another order, stated so: found by name."""
    rows = fit.rows_of(dataset.groups, trained.features, 4, 0)
    order = np.random.default_rng(1).permutation(len(trained.features.names))
    names = [trained.features.names[i] for i in order]
    turned = trained.features.reordered(names)
    blob = fit.boosted(rows.x, rows.y, rows.y, rows.group, replace(QUICK, objective="squared"), 0)
    plain = Trees(blob, rows.x.shape[1])
    shuffled = blob_with_columns(rows, order)
    again = OpModel("linear", turned, [shuffled], None, None, None, trained.head)
    group = dataset.groups[5]
    table = Table(group.configs)
    one = plain.predict(trained.features.matrix(group.workload, group.hardware, table))
    other = again.predict(group.workload, group.hardware, table)[0]
    assert np.argmin(one) == np.argmin(other)
    np.testing.assert_allclose(one, other, atol=0.15)  # columns are sampled by position, so the trees differ a little
    path = str(file.with_name("turned.atm"))
    model.write(path, [again], {})
    np.testing.assert_array_equal(
        model.read(path).ops["linear"].predict(group.workload, group.hardware, table)[0], other
    )


def blob_with_columns(rows: fit.Rows, order: Any) -> Trees:
    made = fit.boosted(rows.x[:, order], rows.y, rows.y, rows.group, QUICK, 0)
    return Trees(made, rows.x.shape[1])


def test_boosters_are_checked_before_the_library_sees_them(trained: OpModel) -> None:
    blob, count = trained.members[0].blob, len(trained.features.names)
    assert check(blob, count) == QUICK.trees
    with pytest.raises(Malformed, match="features"):
        check(blob, count + 1)
    random = np.random.default_rng(0)
    for cut in random.integers(1, len(blob), 20):
        with pytest.raises(Malformed):
            check(blob[: int(cut)], count)
    with pytest.raises(Malformed):
        check(b"{" * 5000, count)
    with pytest.raises(Malformed):
        check(b"[$d#L\x7f\xff\xff\xff\xff\xff\xff\xff", count)


def test_children_outside_the_tree_are_refused(trained: OpModel) -> None:
    """A child index far beyond its tree: what would make the library read foreign memory."""
    blob, count = trained.members[0].blob, len(trained.features.names)
    at = blob.index(b"left_children") + len(b"left_children")
    start = blob.index(b"#", at) + 1
    kind = {b"L": 8, b"l": 4, b"I": 2, b"U": 1, b"i": 1}[blob[start : start + 1]]
    first = start + 1 + kind
    broken = blob[:first] + (1 << 20).to_bytes(4, "big") + blob[first + 4 :]
    with pytest.raises(Malformed, match="children"):
        check(broken, count)


def test_no_file_and_no_library_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be read"):
        model.read(str(tmp_path / "none.atm"))
    with pytest.raises(Unavailable, match="cannot be written"):
        model.write("/proc/none/model.atm", [], {})
    from autotune.cost import trees

    trees._library.cache_clear()
    monkeypatch.setattr(trees, "package_folder", lambda _: "")
    with pytest.raises(Unavailable, match="pip install"):
        opened(file)
    trees._library.cache_clear()


# ---- transfer ----------------------------------------------------------------------------------------------


def test_the_source_is_kept_where_it_helps_and_dropped_where_it_misleads(
    dataset: Dataset, trained: OpModel, tmp_path: Path
) -> None:
    other = replace(hardware.detect(), model="another", name="Another")
    few = collect(r for r in sample.records(other) if r.workload.dims()["n"] in (256, 1024))
    kept = train.train_op("linear", few, QUICK, trained)
    assert kept.model.prior is not None
    assert "kept" in kept.notes[0]
    path = str(tmp_path / "b.atm")
    model.write(path, [kept.model], {})
    group = few.groups[0]
    table = Table(group.configs)
    read = model.read(path).ops["linear"]
    np.testing.assert_array_equal(
        read.predict(group.workload, other, table)[0], kept.model.predict(group.workload, other, table)[0]
    )
    upside_down = replace(
        dataset, groups=[replace(g, labels=tuple(-3 * y for y in g.labels), hardware=other) for g in dataset.groups]
    )
    misled = train.train_op("linear", upside_down, QUICK, trained)
    assert misled.model.prior is None
    assert "dropped" in misled.notes[0]


def test_probes_are_those_the_members_disagree_on(trained: OpModel, file: Path) -> None:
    found = probes(model.read(str(file)), sample.workloads(), hardware.detect(), 12)
    assert len(found) == 12
    assert [p.spread for p in found] == sorted((p.spread for p in found), reverse=True)
    assert max(sum(p.workload == q.workload for q in found) for p in found) <= PER_WORKLOAD
    assert probes(model.read(str(file)), [store_samples.WORKLOAD], hardware.detect(), 3)


def test_the_default_is_never_picked_against_itself(trained: OpModel) -> None:
    zero = np.zeros(3)
    picked = choose.pick(trained, "", zero, zero + 0.01, np.array([True, True, False]), 0)
    assert picked.index == 1
    assert choose.refused(trained, picked) == "nothing is expected to beat the default"
    assert choose.pick(trained, "", zero, zero + 0.01, np.array([True, False, False]), 0).index is None


def test_the_version_of_the_features_is_in_the_file(file: Path) -> None:
    head, _ = parts(file)
    assert head["features"] == features.VERSION
    assert head["format"] == 1
