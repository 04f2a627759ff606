"""The Triton attention, run by Triton's interpreter on CPU tensors, and compiled for devices that are not here."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch

from autotune.hardware.published import find
from autotune.kernels.triton import flash
from autotune.kernels.triton.compiling import facts_of
from autotune.kernels.triton.flash import Tile, TritonFlash
from autotune.ops.attention import Attention
from autotune.space import Params
from autotune.types import Workload
from tests.attention_contract import OP, AttentionContract
from tests.interpreted import interpreting  # noqa: F401 - before triton

H200 = find("h200").profile
SUBJECT = TritonFlash()
DECODE = Attention(1, 32, 8, 1, 2048, 128, dtype="bf16")
PROMPT = Attention(1, 32, 8, 1024, 1024, 128, True, "bf16")


class TestTritonFlash(AttentionContract):
    algorithm = "triton_flash"
    hardware = H200

    def configs(self, workload: Workload) -> list[dict[str, Any]]:
        """One with its keys in one part, one with several: interpreted kernels are slow."""
        space = self.subject.space(workload, H200)
        random = Random(workload.spec)
        found = [dict(seed) for seed in space.seeds if seed["split"] == 1][-1:]
        drawn = [params for params in (space.sample(random) for _ in range(20)) if params is not None]
        assert drawn
        return found + sorted(drawn, key=lambda params: params["split"] == 1)[:1]

    @pytest.mark.parametrize("split", [1, 2, 4, 8])
    def test_rows_that_see_nothing_of_a_split(self, split: int) -> None:
        for kv_len in (5, 16, 33, 70):
            workload = Attention(2, 4, 2, 5, kv_len, 24, True)
            params = {"rows": 16, "keys": 16, "split": split, "warps": 1, "stages": 1, "precision": "ieee"}
            inputs = OP.inputs(workload, 1)
            self.check(workload, {}, inputs, self.built(workload, params, {}).call)


def test_a_split_is_for_where_the_device_is_not_full() -> None:
    assert max(p["split"] for p in SUBJECT.space(DECODE, H200)) == 64
    assert all(p["split"] == 1 for p in SUBJECT.space(Attention(64, 32, 8, 1, 2048, 128, dtype="bf16"), H200))
    assert {p["split"] for p in SUBJECT.space(PROMPT, H200) if p["rows"] == 128} <= {1, 2}


def test_what_a_split_writes_is_counted() -> None:
    params = {"rows": 16, "keys": 64, "split": 4, "warps": 4, "stages": 2}
    assert SUBJECT.build(DECODE, params, {}).workspace_bytes == 4 * 4 * 32 * (128 + 2)
    assert flash.part_bytes(DECODE, 1) == 0


@pytest.mark.parametrize(("changed", "told"), [({"dtype": "f64"}, "not f64"), ({"head_dim": 512}, "not 512")])
def test_refusals_say_what_is_in_the_way(changed: dict[str, Any], told: str) -> None:
    dims = {"batch": 1, "heads": 2, "kv_heads": 2, "q_len": 3, "kv_len": 4, "head_dim": 8, **changed}
    assert told in SUBJECT.refusal(Attention(**dims), H200)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "gfx942"])
@pytest.mark.parametrize("workload", [DECODE, PROMPT], ids=["decode", "prompt"])
def test_it_compiles_within_its_formula(workload: Attention, arch: str) -> None:
    params = {"rows": 16, "keys": 64, "split": 4, "warps": 4, "stages": 2}
    if workload is PROMPT:
        params = {"rows": 64, "keys": 64, "split": 1, "warps": 4, "stages": 2}
    facts = facts_of(SUBJECT, workload, params, arch)
    assert [f.verdict for f in facts] == ["fits"] * len(facts)
    assert 0 < SUBJECT.needs(workload, params, arch).shared_bytes <= facts[0].shared_bytes


def test_tiles_beyond_the_device_are_not_in_the_space() -> None:
    wide = Attention(1, 32, 32, 1024, 1024, 256, True, "bf16")
    params = {"rows": 128, "keys": 128, "split": 1, "warps": 8, "stages": 4}
    assert flash.shared_bytes(Tile.of(params), "bf16", 256, "sm_90", 256) > 227 * 1024
    assert "shared memory" in SUBJECT.over_limit(wide, params, "sm_90")
    assert not SUBJECT.space(wide, H200).contains(params)


def test_the_same_bits_every_time() -> None:
    workload = Attention(1, 4, 1, 1, 200, 32)
    params: Params = {"rows": 16, "keys": 16, "split": 4, "warps": 1, "stages": 1, "precision": "ieee"}
    call, inputs = SUBJECT.build(workload, params, {}).call, OP.inputs(workload, 1)
    assert torch.equal(call(*inputs), call(*inputs))
