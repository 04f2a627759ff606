"""Triton's convolutions, implicit GEMM and Winograd, run by Triton's interpreter through the code path of a GPU."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune import Conv2d, registry
from autotune.hardware.published import find
from autotune.kernels.triton.winograd import transformed
from autotune.measure.check import Case, check
from autotune.types import Status
from tests.conv_contract import ConvContract, convolutions
from tests.interpreted import interpreting  # noqa: F401 - before triton

H200 = find("h200").profile


class TritonConvContract(ConvContract):
    hardware = H200

    def configs(self, workload: Conv2d) -> list[dict[str, Any]]:
        """One, a seed or a draw: interpreted kernels are slow."""
        space, random = self.subject.space(workload, H200), Random(workload.spec)
        chosen = dict(random.choice(space.seeds)) if space.seeds and random.random() < 0.3 else space.sample(random)
        assert chosen is not None
        return [chosen]


class TestTritonConv(TritonConvContract):
    algorithm = "triton_conv"


class TestTritonWinograd(TritonConvContract):
    algorithm = "triton_winograd"


def assert_right(name: str, workload: Conv2d, params: dict[str, Any], seed: int = 0) -> None:
    op, subject = registry.op("conv2d"), registry.algorithm(name)
    constants, inputs = op.constants(workload, seed), op.inputs(workload, seed)
    case = Case(inputs, op.reference(workload, constants, inputs), op.magnitude(workload, constants, inputs))
    call = subject.build(workload, params, constants).call
    verdict = check(call, [case], subject.error_bound(workload), lambda y: op.result_problem(workload, y))
    assert verdict.status is Status.OK, (verdict.message, workload.spec, params)


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_16_bit_types_are_right_too(data: st.DataObject) -> None:
    drawn = data.draw(convolutions())
    workload = Conv2d.from_dims({**drawn.dims(), "dtype": data.draw(st.sampled_from(("f16", "bf16")))})
    for name in ("triton_conv", "triton_winograd"):
        subject = registry.algorithm(name)
        if not subject.refusal(workload, H200):
            params = subject.space(workload, H200).sample(Random(data.draw(st.integers(0, 1000))))
            assert params is not None
            assert_right(name, workload, params)


@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
@pytest.mark.parametrize("split", [1, 2, 4])
def test_every_split_adds_up_with_the_epilogue_once(split: int, layout: str) -> None:
    workload = Conv2d(
        2, 24, 7, 9, 20, 3, 3, padding=1, groups=2, layout=layout, bias=True, activation="silu", residual=True
    )
    params = {"tile": (16, 16, 16), "warps": 4, "stages": 2, "group": 4, "split": split, "precision": "ieee"}
    assert_right("triton_conv", workload, params)


@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
@pytest.mark.parametrize("size", [(1, 1), (4, 4), (5, 6), (13, 8)])
def test_winograd_tiles_of_both_sizes_cover_the_image(m: int, layout: str, size: tuple[int, int]) -> None:
    h, w = size
    workload = Conv2d(
        2, 5, h, w, 7, 3, 3, padding=(1, 2, 1, 1), layout=layout, bias=True, residual=True, activation="relu"
    )
    params = {"m": m, "tile": (16, 16, 16), "warps": 2, "stages": 1, "group": 1, "precision": "ieee"}
    assert_right("triton_winograd", workload, params)


@pytest.mark.parametrize("m", [2, 4])
def test_transformed_filters_are_those_of_the_points(m: int) -> None:
    """A filter of ones at its first tap is 1 at every point, over the products of the differences between points."""
    weight = torch.zeros(1, 1, 3, 3, dtype=torch.float64)
    weight[..., 2, 2] = 1  # the highest power: the point at infinity sees it alone
    at_points = transformed(weight, m, "nchw").reshape(m + 2, m + 2)
    assert at_points[-1, -1] == 1
    assert (at_points[0] == 0).all()


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ("r=3 s=3 stride=2", "stride"), ("r=3 s=3 dilation=2", "dilation"), ("r=5 s=5", "3x3"),
        ("r=3 s=3 groups=2", "groups"), ("r=3 s=3 dtype=f64", "f64"),
    ],
)  # fmt: skip
def test_c9_what_winograd_cannot_do_is_refused_on_a_gpu_too(spec: str, word: str) -> None:
    workload = registry.parse_workload(f"conv2d n=1 c=8 h=16 w=16 k=8 {spec}")
    assert word in registry.algorithm("triton_winograd").refusal(workload, H200)
