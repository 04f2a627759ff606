"""The Triton product, run by Triton's interpreter on CPU tensors, through the code path of a GPU."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune import Gemm, Linear, registry
from autotune.hardware.published import find
from autotune.kernels.triton.gemm import TritonGemm
from autotune.measure.check import Case, check
from autotune.ops.activations import ACTIVATIONS
from autotune.types import Status, Workload
from tests.algorithm_contract import GemmContract, LinearContract
from tests.interpreted import interpreting  # noqa: F401 - before triton

H200 = find("h200").profile
SUBJECT = TritonGemm()


class TestTritonGemm(LinearContract, GemmContract):
    algorithm = "triton_gemm"
    hardware = H200

    def configs(self, workload: Workload) -> list[dict[str, Any]]:
        """Two: interpreted kernels are slow. The property tests below draw from the whole space."""
        space = self.subject.space(workload, H200)
        drawn = space.sample(Random(workload.spec))
        assert drawn is not None
        return [*map(dict, space.seeds[:1]), drawn]

    def test_workspace_is_the_packed_weight(self) -> None:
        """Nothing is packed; the parts of a split have their sums, in f32."""
        for split in (1, 4):
            params = {"tile": (16, 32, 16), "warps": 4, "stages": 2, "group": 1, "split": split, "precision": "ieee"}
            held = SUBJECT.build(Linear(6, 330, 1024), params, {"weight": torch.ones(330, 1024), "bias": None})
            assert held.workspace_bytes == (0 if split == 1 else 4 * 4 * 6 * 330)


def assert_right(workload: Workload, params: dict[str, Any], seed: int = 0) -> None:
    """The built kernel against the f64 reference, outputs poisoned, per element."""
    op = registry.op(workload.op)
    constants, inputs = op.constants(workload, seed), op.inputs(workload, seed)
    case = Case(inputs, op.reference(workload, constants, inputs), op.magnitude(workload, constants, inputs))
    built = SUBJECT.build(workload, params, constants)
    verdict = check(built.call, [case], SUBJECT.error_bound(workload))
    assert verdict.status is Status.OK, (verdict.message, workload.spec, params)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**20),
    m=st.integers(1, 150),
    n=st.integers(1, 150),
    k=st.integers(1, 300),
    dtype=st.sampled_from(("f32", "f16", "bf16")),
    activation=st.sampled_from(ACTIVATIONS),
    layouts=st.tuples(*[st.sampled_from(("contiguous", "transposed", "strided", "expanded"))] * 2),
    batch=st.sampled_from((0, 1, 3)),
)
def test_every_admitted_config_is_right_on_odd_shapes(
    seed: int, m: int, n: int, k: int, dtype: str, activation: str, layouts: tuple[str, str], batch: int
) -> None:
    """`batch` 0 stands for a linear layer."""
    workload: Workload = Gemm(m, n, k, batch, dtype, *layouts)
    if not batch:
        workload = Linear(m, n, k, dtype, bool(seed % 2), activation, layouts[0])
    params = SUBJECT.space(workload, H200).sample(Random(seed))
    assert params is not None
    assert_right(workload, params, seed)


@pytest.mark.parametrize("split", [1, 2, 4, 8])
@pytest.mark.parametrize("k", [100, 512])
def test_every_split_adds_up_with_the_epilogue_once(split: int, k: int) -> None:
    params = {"tile": (16, 32, 16), "warps": 4, "stages": 2, "group": 4, "split": split, "precision": "ieee"}
    assert_right(Linear(37, 70, k, bias=True, activation="gelu"), params)
    assert_right(Gemm(37, 70, k, 3), params)


def test_a_split_gives_the_same_bits_every_time() -> None:
    workload = Linear(33, 65, 700)
    constants, (x,) = registry.op("linear").constants(workload, 1), registry.op("linear").inputs(workload, 1)
    params = {"tile": (16, 32, 16), "warps": 4, "stages": 2, "group": 4, "split": 4, "precision": "ieee"}
    call = SUBJECT.build(workload, params, constants).call
    assert torch.equal(call(x), call(x))


def test_tiles_are_visited_once_each_whatever_the_group() -> None:
    for group in (1, 2, 3, 4, 8, 16):
        params = {"tile": (16, 16, 16), "warps": 1, "stages": 1, "group": group, "split": 1, "precision": "ieee"}
        assert_right(Gemm(16 * 5 + 1, 16 * 3 + 1, 16), params)


@pytest.mark.parametrize("dtype", ["f64", "i8"])
def test_other_types_are_refused_with_a_reason(dtype: str) -> None:
    assert dtype in SUBJECT.refusal(Gemm(8, 8, 8, dtype=dtype), H200)


def test_a_cpu_is_refused() -> None:
    from autotune import hardware

    assert SUBJECT.refusal(Gemm(8, 8, 8), hardware.detect()) == "triton_gemm runs on GPUs only"
