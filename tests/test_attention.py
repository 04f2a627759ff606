"""The op attention: its workloads, what is wrong with one, its operands, and its reference against torch."""

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
from autotune.ops.attention import Attention, in_layout
from tests.attention_contract import SHAPES

OP = registry.op("attention")
GOOD: dict[str, Any] = {"batch": 2, "heads": 8, "kv_heads": 2, "q_len": 5, "kv_len": 9, "head_dim": 16}


def test_what_it_costs() -> None:
    w = Attention(**GOOD)
    assert w.flops == 2 * 2 * 2 * 8 * 5 * 9 * 16
    assert w.bytes == 4 * 2 * 16 * (2 * 8 * 5 + 2 * 2 * 9)
    causal = Attention(**GOOD, causal=True)
    seen = torch.ones(5, 9).tril(9 - 5).sum()
    assert causal.pairs == seen == 5 * 9 - 10
    assert causal.flops == 4 * 2 * 8 * 16 * int(seen)


def test_c7_counts_of_long_prompts_are_exact() -> None:
    w = Attention(64, 128, 8, 131072, 131072, 128, True, "bf16")
    assert w.flops == 4 * 64 * 128 * 128 * (131072 * 131073 // 2) > 2**53


def test_one_query_has_nothing_to_mask() -> None:
    one = {**GOOD, "q_len": 1}
    assert Attention(**one, causal=True) == Attention(**one)
    assert Attention(**one, causal=True).key == Attention(**one).key
    assert registry.parse_workload(Attention(**one, causal=True).spec) == Attention(**one)
    assert Attention(**GOOD, causal=True).key != Attention(**GOOD).key


def test_c13_the_layout_is_in_the_key() -> None:
    assert Attention(**GOOD, layout="bshd").key != Attention(**GOOD).key
    assert OP.other_layouts(Attention(**GOOD)) == (Attention(**GOOD, layout="bshd"),)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kv_heads": 3}, "kv_heads=3 must divide heads=8"),
        ({"kv_heads": 0}, "kv_heads=0 is out of range"),
        ({"head_dim": 0}, "head_dim=0 is out of range"),
        ({"q_len": -1}, "q_len=-1 is out of range"),
        ({"q_len": 10, "causal": True}, "of q_len=10 queries the first would see none of kv_len=9 keys"),
        ({"causal": 2}, "causal must be true or false"),
        ({"dtype": "i8"}, "attention is computed in f64, f32, f16, bf16, not i8"),
        ({"layout": "sbhd"}, "layout='sbhd' is not one of bhsd, bshd"),
    ],
)
def test_what_is_wrong_with_a_workload_is_said_in_one_sentence(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Attention(**{**GOOD, **changed})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_from_tensors() -> None:
    q, cache = torch.randn(2, 8, 1, 16), torch.randn(2, 2, 64, 16)
    assert Attention.of(q, cache[:, :, :9], cache[:, :, :9]) == Attention(2, 8, 2, 1, 9, 16)
    joint = torch.randn(2, 9, 3, 4, 16).permute(2, 0, 3, 1, 4)
    assert Attention.of(joint[0], joint[1], joint[2], causal=True) == Attention(2, 4, 4, 9, 9, 16, True, layout="bshd")
    short = cache.bfloat16()
    assert autotune.Attention.of(q.bfloat16(), short, short).dtype == "bf16"
    for wrong in ((q, cache, cache[:, :, :3]), (q[0], cache, cache), (q, cache[..., :8], cache[..., :8])):
        with pytest.raises(InvalidInput, match=r"attention needs q \[b, h, s, d\]"):
            Attention.of(*wrong)
    with pytest.raises(InvalidInput, match="of one dtype"):
        Attention.of(q, cache.double(), cache.double())


@pytest.mark.parametrize("shape", SHAPES)
def test_the_reference_is_what_torch_computes_in_f64(shape: str) -> None:
    w = registry.parse_workload(f"attention {shape} dtype=f64")
    assert isinstance(w, Attention)
    q, k, v = OP.inputs(w, 3)
    assert (q.shape, k.shape) == ((w.batch, w.heads, w.q_len, w.head_dim), (w.batch, w.kv_heads, w.kv_len, w.head_dim))
    seen = torch.ones(w.q_len, w.kv_len, dtype=torch.bool).tril(w.kv_len - w.q_len) if w.causal else None
    exact = F.scaled_dot_product_attention(q, k, v, seen, enable_gqa=True)
    assert relative_error(OP.reference(w, {}, (q, k, v)), exact) < 1e-13


def test_the_default_is_torch_left_alone() -> None:
    w = Attention(1, 4, 2, 6, 6, 16, True)
    q, k, v = OP.inputs(w, 3)
    answer = autotune.lookup(w)
    assert (answer.origin, str(answer.config)) == ("DEFAULT", "torch")
    y = answer.build()(q, k, v)
    assert torch.equal(y, F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))
    with pytest.raises(InvalidInput, match="built from 0 operands"):
        answer.build(k)


def test_what_a_kernel_is_given() -> None:
    w = Attention(2, 8, 2, 1, 9, 16)
    accepts, inputs = OP.acceptor(w), OP.inputs(w, 1)
    assert accepts(*inputs)
    assert accepts(*OP.inputs(Attention(1, 8, 2, 1, 700, 16), 1)), "another batch, a longer cache"
    assert not accepts(*OP.inputs(Attention(2, 8, 2, 2, 9, 16), 1)), "masked or not, it cannot know"
    for other in (Attention(2, 8, 4, 1, 9, 16), Attention(2, 8, 2, 1, 9, 8), Attention(2, 8, 2, 1, 9, 16, dtype="f64")):
        assert not accepts(*OP.inputs(other, 1))
    q, k, v = inputs
    assert not accepts(q.requires_grad_(), k, v)
    assert not accepts(q[0], k[0], v[0])
    assert not OP.acceptor(Attention(2, 8, 2, 3, 9, 16, True))(*OP.inputs(Attention(2, 8, 2, 10, 9, 16), 1))


def test_the_layout_of_a_result() -> None:
    result = torch.randn(2, 4, 5, 8)
    strided = in_layout(result, "bshd")
    assert torch.equal(result, strided)
    for layout, right in (("bhsd", True), ("bshd", False)):
        w = Attention(2, 4, 4, 5, 5, 8, layout=layout)
        assert not OP.result_problem(w, strided)
        assert (OP.result_problem(w, result) == "") == right
        assert "strides" in OP.result_problem(w, torch.randn(2, 4, 8, 5).transpose(2, 3))


def test_its_view_is_the_product_of_its_scores() -> None:
    seen = view(Attention(2, 8, 2, 5, 9, 16))
    assert (seen.rows, seen.columns, seen.depth, seen.planes) == (4 * 5, 9, 16, 2 * 2)
    assert seen.categories == {"layout": "bhsd", "dtype": "f32"}
