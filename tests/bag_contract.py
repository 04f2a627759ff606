"""The class every embedding_bag algorithm inherits: right for every kind of bag, or refused with a sentence.

class TestMine(BagContract):
    algorithm = "mine"
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autotune import registry
from autotune.ops.embedding_bag import LENGTHS, MODES, EmbeddingBag
from tests.algorithm_contract import ELSEWHERE, SETTINGS, AlgorithmContract, _assert_sentence

SHAPES = (
    "rows=100 dim=16 bags=33 pooling=5",
    "rows=7 dim=64 bags=3 pooling=40",
    "rows=1 dim=1 bags=1 pooling=1",
    "rows=50 dim=100 bags=9 pooling=1",
    "rows=50 dim=3 bags=9 pooling=4",
    "rows=20 dim=130 bags=5 pooling=9",
    "rows=20 dim=600 bags=2 pooling=3",
    "rows=1000 dim=33 bags=64 pooling=7 distribution=zipf",
)
EMPTY = (
    "rows=10 dim=8 bags=0 pooling=3",
    "rows=10 dim=8 bags=4 pooling=0",
    "rows=10 dim=0 bags=4 pooling=3",
)
KINDS = tuple(f"mode={mode} lengths={lengths}" for mode in MODES for lengths in LENGTHS) + tuple(
    f"mode=sum weighted=1 lengths={lengths}" for lengths in LENGTHS
)
OP = registry.op("embedding_bag")


class BagContract(AlgorithmContract):
    by_magnitude = True
    configs_per_workload = 3

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("shape", SHAPES)
    def test_bags_are_right(self, shape: str, kind: str) -> None:
        self.right_in_many_ways(f"embedding_bag {shape} {kind}")

    @pytest.mark.parametrize("dtype", ["f64", "f16", "bf16"])
    @pytest.mark.parametrize("kind", KINDS)
    def test_bags_are_right_in_other_dtypes(self, kind: str, dtype: str) -> None:
        self.right_in_many_ways(f"embedding_bag rows=60 dim=24 bags=20 pooling=6 {kind} dtype={dtype} index=i32")

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("shape", EMPTY)
    def test_c14_no_bags_or_empty_ones(self, shape: str, kind: str) -> None:
        self.right_in_many_ways(f"embedding_bag {shape} {kind}")

    @SETTINGS
    @given(
        rows=st.integers(1, 50),
        dim=st.integers(1, 70),
        bags=st.integers(0, 40),
        pooling=st.integers(0, 20),
        kind=st.sampled_from(KINDS),
        index=st.sampled_from(("i32", "i64")),
        draw=st.integers(0, 2**31),
    )
    def test_bags_are_right_for_any_shape(
        self, rows: int, dim: int, bags: int, pooling: int, kind: str, index: str, draw: int
    ) -> None:
        dims = f"rows={rows} dim={dim} bags={bags} pooling={pooling}"
        self.right_for_a_draw(f"embedding_bag {dims} {kind} index={index}", draw)

    @pytest.mark.parametrize("kind", KINDS)
    def test_any_number_of_bags_and_indices_is_taken(self, kind: str) -> None:
        workload = self.usable(f"embedding_bag rows=60 dim=24 bags=20 pooling=6 {kind}")
        assert isinstance(workload, EmbeddingBag)
        constants, accepts = OP.constants(workload, 1), OP.acceptor(workload)
        for params in self.configs(workload):
            call = self.built(workload, params, constants).call
            for bags, pooling in ((1, 1), (3, 0), (0, 4), (50, 2), (2, 90)):
                other = replace(workload, bags=bags, pooling=pooling)
                inputs = OP.inputs(other, 2)
                assert accepts(*inputs)
                self.check(other, constants, inputs, call)

    @pytest.mark.parametrize("kind", KINDS)
    def test_an_index_out_of_range_is_refused_not_read(self, kind: str) -> None:
        """Anywhere in any bag, near or far, on either side: an exception, as torch has it."""
        workload = self.usable(f"embedding_bag rows=60 dim=24 bags=20 pooling=6 {kind}")
        constants = OP.constants(workload, 1)
        for params in self.configs(workload):
            call = self.built(workload, params, constants).call
            for bad in (60, -1, 2**40, -(2**62)):
                for at in (0, 57, -1):
                    inputs = OP.inputs(workload, 2)
                    inputs[0].view(-1)[at] = bad
                    with pytest.raises((IndexError, RuntimeError)):
                        call(*inputs)
            self.check(workload, constants, OP.inputs(workload, 2), call)

    @pytest.mark.parametrize("kind", KINDS)
    def test_c13_views_of_every_operand(self, kind: str) -> None:
        workload = self.usable(f"embedding_bag rows=60 dim=24 bags=20 pooling=6 {kind}")
        inputs = OP.inputs(workload, 3)
        spread = tuple(torch.stack((t, t), -1)[..., 0] for t in inputs)
        assert not any(t.is_contiguous() for t in spread)
        table = torch.randn(120, 50, generator=torch.Generator().manual_seed(5))
        views = (table[::2, :24], table[:60, 1:49:2], table.T[:, :24].repeat(2, 1)[:60], table[:1, :24].expand(60, 24))
        for weight in views:
            constants = {"weight": weight}
            OP.check_constants(workload, dict(constants))
            for params in self.configs(workload):
                call = self.built(workload, params, dict(constants)).call
                self.check(workload, dict(constants), inputs, call)
                self.check(workload, dict(constants), spread, call)

    def test_bag_results_are_fresh_and_operands_untouched(self) -> None:
        self.fresh_results("embedding_bag rows=60 dim=24 bags=20 pooling=6 lengths=ragged weighted=1")

    def test_bags_work_from_another_thread(self) -> None:
        self.same_from_another_thread("embedding_bag rows=600 dim=64 bags=200 pooling=6 lengths=ragged")

    def test_a_table_that_wants_gradients_is_detached(self) -> None:
        workload = self.usable("embedding_bag rows=60 dim=24 bags=20 pooling=6")
        weight = OP.constants(workload, 12)["weight"]
        assert weight is not None
        for params in self.configs(workload):
            built = self.built(workload, params, {"weight": weight.requires_grad_()})
            assert not built.call(*OP.inputs(workload, 12)).requires_grad

    def test_refusals_are_sentences(self) -> None:
        for shape in (*SHAPES, "rows=1000000 dim=5000 bags=100000 pooling=50"):
            for kind in KINDS:
                for dtype in ("f64", "f32", "f16", "bf16"):
                    workload = registry.parse_workload(f"embedding_bag {shape} {kind} dtype={dtype}")
                    for hardware in (self.hardware, ELSEWHERE, replace(self.hardware, isa=())):
                        reason = self.subject.refusal(workload, hardware)
                        if reason:
                            _assert_sentence(reason)
                        else:
                            assert next(iter(self.subject.space(workload, hardware)), None) is not None
