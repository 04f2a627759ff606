"""The class every attention algorithm inherits: right on awkward shapes and strides, or refused with a sentence.

class TestMine(AttentionContract):
    algorithm = "mine"
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autotune import registry
from autotune.ops.attention import LAYOUTS, Attention
from autotune.types import Workload
from tests.algorithm_contract import ELSEWHERE, SETTINGS, AlgorithmContract, _assert_sentence

SHAPES = (
    "batch=1 heads=4 kv_heads=4 q_len=1 kv_len=77 head_dim=64",
    "batch=2 heads=8 kv_heads=2 q_len=1 kv_len=300 head_dim=64",
    "batch=1 heads=6 kv_heads=2 q_len=1 kv_len=1 head_dim=32",
    "batch=1 heads=7 kv_heads=1 q_len=1 kv_len=515 head_dim=16",
    "batch=1 heads=8 kv_heads=4 q_len=3 kv_len=130 head_dim=48 causal=1",
    "batch=2 heads=4 kv_heads=2 q_len=33 kv_len=33 head_dim=64 causal=1",
    "batch=1 heads=4 kv_heads=4 q_len=65 kv_len=65 head_dim=32",
    "batch=1 heads=2 kv_heads=1 q_len=20 kv_len=150 head_dim=80 causal=1",
    "batch=2 heads=3 kv_heads=3 q_len=5 kv_len=9 head_dim=20",
    "batch=1 heads=2 kv_heads=2 q_len=4 kv_len=70 head_dim=5",
    "batch=1 heads=1 kv_heads=1 q_len=130 kv_len=129 head_dim=128",
    "batch=1 heads=2 kv_heads=1 q_len=3 kv_len=40 head_dim=256",
)
EMPTY = (
    "batch=0 heads=4 kv_heads=2 q_len=3 kv_len=7 head_dim=16",
    "batch=2 heads=4 kv_heads=2 q_len=0 kv_len=7 head_dim=16",
    "batch=2 heads=4 kv_heads=2 q_len=3 kv_len=0 head_dim=16",
)
OP = registry.op("attention")


class AttentionContract(AlgorithmContract):
    by_magnitude = True
    configs_per_workload = 3

    def laid_out(self, workload: Workload, result: torch.Tensor) -> bool:
        return not OP.result_problem(workload, result)

    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("shape", SHAPES)
    def test_attention_is_right(self, shape: str, layout: str) -> None:
        self.right_in_many_ways(f"attention {shape} layout={layout}")

    @pytest.mark.parametrize("dtype", ["f64", "bf16", "f16"])
    @pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[4], SHAPES[5]])
    def test_attention_is_right_in_other_dtypes(self, shape: str, dtype: str) -> None:
        self.right_in_many_ways(f"attention {shape} dtype={dtype}")

    @pytest.mark.parametrize("shape", EMPTY)
    def test_c14_nothing_to_attend_gives_nothing_or_zeros(self, shape: str) -> None:
        self.right_in_many_ways(f"attention {shape}")

    @SETTINGS
    @given(
        batch=st.integers(0, 2),
        kv_heads=st.integers(1, 3),
        group=st.integers(1, 5),
        q_len=st.integers(1, 9),
        more=st.integers(0, 140),
        head_dim=st.sampled_from((8, 16, 24, 64)),
        causal=st.integers(0, 1),
        layout=st.sampled_from(LAYOUTS),
        draw=st.integers(0, 2**31),
    )
    def test_attention_is_right_for_any_shape(
        self, batch: int, kv_heads: int, group: int, q_len: int, more: int, head_dim: int, causal: int, layout: str,
        draw: int,
    ) -> None:  # fmt: skip
        dims = f"batch={batch} heads={kv_heads * group} kv_heads={kv_heads} q_len={q_len} kv_len={q_len + more}"
        self.right_for_a_draw(f"attention {dims} head_dim={head_dim} causal={causal} layout={layout}", draw)

    @pytest.mark.parametrize("causal", [0, 1])
    def test_attention_takes_any_batch_and_lengths(self, causal: int) -> None:
        """One kernel serves a cache that grows and a batch that changes."""
        workload = self.usable(f"attention batch=2 heads=4 kv_heads=2 q_len=5 kv_len=60 head_dim=32 causal={causal}")
        assert isinstance(workload, Attention)
        accepts = OP.acceptor(workload)
        for params in self.configs(workload):
            call = self.built(workload, params, {}).call
            for batch, q_len, kv_len in ((2, 5, 61), (1, 5, 300), (3, 2, 2), (2, 9, 70)):
                other = replace(workload, batch=batch, q_len=q_len, kv_len=kv_len)
                inputs = OP.inputs(other, 3)
                assert accepts(*inputs)
                self.check(other, {}, inputs, call)

    def test_c13_attention_takes_views(self) -> None:
        """A part of a cache, slices of one joint projection, expanded keys, columns apart, a lazy sign."""
        workload = self.usable("attention batch=2 heads=4 kv_heads=4 q_len=3 kv_len=21 head_dim=32 causal=1")
        random = torch.Generator().manual_seed(4)
        cache = torch.randn(2, 4, 64, 32, generator=random)
        joint = torch.randn(2, 21, 3, 4, 32, generator=random).permute(2, 0, 3, 1, 4)
        wide = torch.randn(2, 4, 21, 64, generator=random)[..., ::2]
        views: tuple[tuple[torch.Tensor, ...], ...] = (
            (joint[0, :, :, -3:], cache[:, :, :21], cache[:, :, 21:42]),
            (joint[0, :, :, -3:], joint[1], joint[2]),
            (wide[:, :, :3], wide, wide),
            (cache[:, :, :3], cache[:1, :1, :21].expand(2, 4, 21, 32), cache[:, :, :21]),
            (cache[:, :, :3]._neg_view(), cache[:, :, :21]._neg_view(), cache[:, :, :21]._neg_view()),
        )
        accepts = OP.acceptor(workload)
        for params in self.configs(workload):
            call = self.built(workload, params, {}).call
            for inputs in views:
                assert accepts(*inputs)
                self.check(workload, {}, inputs, call)

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_attention_passes_on_not_a_number(self, value: float) -> None:
        """In a value or a key, to the queries that see it. To others of that head it may: torch multiplies it by 0."""
        workload = self.usable("attention batch=1 heads=4 kv_heads=2 q_len=4 kv_len=90 head_dim=32 causal=1")
        q, k, v = OP.inputs(workload, 8)
        for operand in (k, v):
            before = operand[0, 1, 88, 3].item()
            operand[0, 1, 88, 3] = value
            for params in self.configs(workload):
                y = self.built(workload, params, {}).call(q, k, v)
                reached = y.isnan() if operand is k else ~y.isfinite()
                assert not reached[0, :2].any(), "heads of another group"
                if operand is v:
                    assert reached[0, 2:, 2:, 3].all()
                    assert not reached[..., :3].any(), "columns of v do not meet"
                elif value != value:
                    assert reached[0, 2:, 2:].all()
            operand[0, 1, 88, 3] = before

    def test_large_scores_do_not_overflow(self) -> None:
        workload = self.usable("attention batch=1 heads=4 kv_heads=2 q_len=2 kv_len=200 head_dim=32")
        q, k, v = OP.inputs(workload, 8)
        for factor in (60.0, -60.0):
            for params in self.configs(workload):
                y = self.built(workload, params, {}).call(q * factor, k * 60, v)
                exact = OP.reference(workload, {}, (q * factor, k * 60, v))
                assert (y - exact).abs().max() < 5e-2, "scores of some 10⁴ have absolute errors of some 10⁻³"

    def test_attention_results_are_fresh_and_operands_untouched(self) -> None:
        self.fresh_results("attention batch=2 heads=4 kv_heads=2 q_len=3 kv_len=140 head_dim=32")

    def test_attention_works_from_another_thread(self) -> None:
        self.same_from_another_thread("attention batch=2 heads=8 kv_heads=2 q_len=1 kv_len=540 head_dim=64")

    def test_attention_detaches(self) -> None:
        workload = self.usable("attention batch=1 heads=2 kv_heads=2 q_len=1 kv_len=40 head_dim=32")
        inputs: Any = [t.requires_grad_() for t in OP.inputs(workload, 1)]
        assert not OP.acceptor(workload)(*inputs), "autograd is for the framework"
        with torch.no_grad():
            for params in self.configs(workload):
                self.check(workload, {}, inputs, self.built(workload, params, {}).call)

    def test_refusals_are_sentences(self) -> None:
        for shape in (*SHAPES, "batch=8 heads=64 kv_heads=64 q_len=4096 kv_len=4096 head_dim=128"):
            for dtype in ("f64", "f32", "f16", "bf16"):
                workload = registry.parse_workload(f"attention {shape} dtype={dtype}")
                for hardware in (self.hardware, ELSEWHERE, replace(self.hardware, isa=())):
                    reason = self.subject.refusal(workload, hardware)
                    if reason:
                        _assert_sentence(reason)
                    else:
                        assert next(iter(self.subject.space(workload, hardware)), None) is not None
