"""The Triton embedding bag, run by Triton's interpreter on CPU tensors, and compiled for devices that are not here."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch

from autotune.hardware.published import find
from autotune.kernels.triton.bag import TritonBag
from autotune.kernels.triton.compiling import facts_of
from autotune.ops.embedding_bag import EmbeddingBag
from autotune.types import Workload
from tests.bag_contract import KINDS, OP, BagContract
from tests.interpreted import interpreting  # noqa: F401 - before triton

H200 = find("h200").profile
SUBJECT = TritonBag()


class TestTritonBag(BagContract):
    algorithm = "triton_bag"
    hardware = H200

    def configs(self, workload: Workload) -> list[dict[str, Any]]:
        """Two: interpreted kernels are slow."""
        space = self.subject.space(workload, H200)
        drawn = space.sample(Random(workload.spec))
        assert drawn is not None
        return [*map(dict, space.seeds[:1]), drawn]

    @pytest.mark.parametrize("kind", KINDS)
    def test_an_index_out_of_range_is_refused_not_read(self, kind: str) -> None:
        """A kernel on a GPU cannot raise: the bag, and no other, is NaN."""
        workload = self.usable(f"embedding_bag rows=60 dim=24 bags=20 pooling=6 {kind}")
        assert isinstance(workload, EmbeddingBag)
        constants = OP.constants(workload, 1)
        params = self.configs(workload)[-1]
        call = self.built(workload, params, constants).call
        inputs = OP.inputs(workload, 2)
        right = call(*inputs)
        for bad in (60, -1, 2**40):
            for at in (0, 57):
                wrong = [t.clone() for t in inputs]
                wrong[0].view(-1)[at] = bad
                y = call(*wrong)
                bag = at // 6 if workload.lengths == "fixed" else int((inputs[1] <= at).sum()) - 1
                assert y[bag].isnan().all()
                others = torch.arange(20) != bag
                assert torch.equal(y[others], right[others])

    @pytest.mark.parametrize("offsets", [[1, 2], [0, 5], [0, 3, 2], [0, -1, 2], [0, 2**40]])
    def test_offsets_that_are_none_are_not_followed(self, offsets: list[int]) -> None:
        workload = self.usable("embedding_bag rows=9 dim=8 bags=3 pooling=1 lengths=ragged")
        constants = OP.constants(workload, 1)
        y = self.built(workload, self.configs(workload)[0], constants).call(
            torch.tensor([1, 2, 3]), torch.tensor(offsets)
        )
        assert y.isnan().any()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "gfx942"])
def test_it_compiles(arch: str) -> None:
    workload = EmbeddingBag(40_000_000, 128, 2048, 20, "sum", True, "ragged", "bf16")
    (facts,) = facts_of(SUBJECT, workload, {"width": 128, "together": 8, "warps": 4}, arch)
    assert facts.verdict == "fits"


def test_f64_is_refused() -> None:
    assert "not f64" in SUBJECT.refusal(EmbeddingBag(9, 8, 3, 1, dtype="f64"), H200)
