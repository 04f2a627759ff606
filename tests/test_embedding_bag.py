"""The op embedding_bag: its workloads, what is wrong with one, its operands, and its reference against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import autotune
from autotune import registry
from autotune.cost.views import view
from autotune.errors import InvalidInput
from autotune.ops import relative_error
from autotune.ops.embedding_bag import EmbeddingBag, split
from tests.bag_contract import KINDS

OP = registry.op("embedding_bag")
GOOD: dict[str, Any] = {"rows": 100, "dim": 16, "bags": 8, "pooling": 5}


def test_what_it_costs() -> None:
    w = EmbeddingBag(**GOOD)
    assert w.flops == 8 * 5 * 16
    assert w.bytes == 40 * 16 * 4 + 40 * 8 + 8 * 16 * 4
    assert w.operand_bytes == 100 * 16 * 4 + 40 * 8 + 8 * 16 * 4
    weighted = EmbeddingBag(**GOOD, weighted=True, lengths="ragged", index="i32")
    assert weighted.flops == 2 * w.flops
    assert weighted.bytes == 40 * 16 * 4 + 40 * (4 + 4) + 8 * 4 + 8 * 16 * 4
    few_rows = EmbeddingBag(**{**GOOD, "rows": 3})
    assert few_rows.bytes == 3 * 16 * 4 + 40 * 8 + 8 * 16 * 4, "no row is counted twice"


def test_c7_a_table_beyond_32_bits() -> None:
    w = EmbeddingBag(2**33, 128, 8, 5)
    assert w.operand_bytes > 2**42
    with pytest.raises(InvalidInput, match="i32 indices do not reach"):
        EmbeddingBag(2**33, 128, 8, 5, index="i32")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rows": 0}, "rows=0 is out of range"),
        ({"bags": -1}, "bags=-1 is out of range"),
        ({"mode": "min"}, "mode='min' is not one of sum, mean, max"),
        ({"mode": "mean", "weighted": True}, "weights per lookup go with mode=sum only, not mean"),
        ({"lengths": "even"}, "lengths='even' is not one of fixed, ragged"),
        ({"index": "i16"}, "index='i16' is not one of i64, i32"),
        ({"distribution": "normal"}, "distribution='normal' is not one of uniform, zipf"),
        ({"dtype": "i8"}, "embedding_bag is computed in f64, f32, f16, bf16, not i8"),
    ],
)
def test_what_is_wrong_with_a_workload_is_said_in_one_sentence(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        EmbeddingBag(**{**GOOD, **changed})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_from_tensors() -> None:
    table, indices = torch.randn(10, 4), torch.zeros(6, 3, dtype=torch.int32)
    assert EmbeddingBag.of(table, indices) == EmbeddingBag(10, 4, 6, 3, "mean", index="i32")
    flat, offsets = torch.zeros(17, dtype=torch.long), torch.tensor([0, 2, 2, 7])
    expected = EmbeddingBag(10, 4, 4, 5, "sum", True, "ragged", distribution="zipf")
    assert EmbeddingBag.of(table, flat, offsets, torch.randn(17), "sum", "zipf") == expected
    for wrong, told in (
        ((table[0], indices), "a table"),
        ((table, flat), "without offsets"),
        ((table, indices, offsets), "with offsets"),
        ((table, indices.float()), "int64 or int32"),
    ):
        with pytest.raises(InvalidInput, match=told):
            EmbeddingBag.of(*wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_is_what_torch_computes_in_f64(kind: str) -> None:
    w = registry.parse_workload(f"embedding_bag rows=50 dim=7 bags=40 pooling=2 {kind} dtype=f64")
    assert isinstance(w, EmbeddingBag)
    constants, inputs = OP.constants(w, 3), OP.inputs(w, 3)
    indices, offsets, weights = split(w, inputs)
    table = constants["weight"]
    assert table is not None
    exact = F.embedding_bag(indices, table, offsets, mode=w.mode, per_sample_weights=weights)
    assert relative_error(OP.reference(w, constants, inputs), exact) < 1e-13
    if w.lengths == "ragged":
        assert offsets is not None
        assert (offsets.diff() == 0).any(), "some bags are empty"
        assert len(indices) != w.lookups or (offsets.diff() != w.pooling).any()


def test_indices_fall_as_the_workload_says() -> None:
    uniform = OP.inputs(EmbeddingBag(1000, 1, 2000, 50), 1)[0].view(-1).bincount(minlength=1000)
    assert uniform.max() < 2 * uniform.float().mean()
    zipf = OP.inputs(EmbeddingBag(1000, 1, 2000, 50, distribution="zipf"), 1)[0].view(-1).bincount(minlength=1000)
    assert len(zipf) == 1000
    share = zipf.sort(descending=True).values / zipf.sum()
    assert share[0] == pytest.approx(0.1, rel=0.1), "log 2 / log 1001"
    assert share[:10].sum() == pytest.approx(0.35, rel=0.1), "log 11 / log 1001"
    assert (zipf.argsort(descending=True)[:5].diff().abs() > 1).all(), "popular rows are not neighbours"


def test_timing_goes_through_more_rows_than_caches_hold() -> None:
    small = EmbeddingBag(10_000_000, 64, 128, 1)
    assert OP.input_sets(small) == 512
    large = EmbeddingBag(10_000_000, 64, 4096, 20)
    assert 2 <= OP.input_sets(large) < 10
    assert OP.input_sets(EmbeddingBag(10, 4, 128, 1)) == 2, "a table that is always in the caches"


def test_the_default_is_torch_left_alone() -> None:
    w = EmbeddingBag(30, 4, 6, 3, "mean")
    constants, (indices,) = OP.constants(w, 3), OP.inputs(w, 3)
    answer = autotune.lookup(w)
    assert (answer.origin, str(answer.config)) == ("DEFAULT", "torch")
    table = constants["weight"]
    assert table is not None
    assert torch.equal(answer.build(table)(indices), F.embedding_bag(indices, table, mode="mean"))
    with pytest.raises(InvalidInput, match=r"needs a weight of shape \[30, 4\]"):
        answer.build(table[:9])


def test_what_a_kernel_is_given() -> None:
    w = EmbeddingBag(30, 4, 6, 3, weighted=True, lengths="ragged")
    accepts, (indices, offsets, weights) = OP.acceptor(w), OP.inputs(w, 3)
    assert accepts(indices, offsets, weights)
    assert accepts(indices[:2], offsets[:1], weights[:2])
    for wrong in (
        (indices, offsets), (indices, weights, offsets), (indices.int(), offsets, weights),
        (indices, offsets.int(), weights),
        (indices, offsets, weights.double()), (indices, offsets, weights[1:]), (indices[None], offsets, weights[None]),
        (indices, offsets, weights.requires_grad_()),
    ):  # fmt: skip
        assert not accepts(*wrong)
    fixed = OP.acceptor(EmbeddingBag(30, 4, 6, 3))
    assert fixed(torch.zeros(2, 9, dtype=torch.long))
    assert not fixed(torch.zeros(2, dtype=torch.long))


def test_its_view_is_a_sparse_product() -> None:
    seen = view(EmbeddingBag(1024, 16, 8, 5))
    assert (seen.rows, seen.columns, seen.depth, seen.planes) == (8, 16, 5, 1)
    assert (seen.extra["table_rows"], seen.extra["table_bytes"]) == (10.0, 16.0)
