"""The depthwise kernel: every block size, vector width and thread count on planes that divide into none of them."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from dataclasses import replace
from random import Random

import pytest
import torch

from autotune import hardware, registry
from autotune.kernels import compiler, depthwise, own_conv
from autotune.kernels.depthwise import Depthwise
from autotune.measure.check import Case, check
from autotune.ops.conv2d import ACTIVATIONS, LAYOUTS, Conv2d, finish, in_layout, plain
from autotune.space import Params
from autotune.types import HardwareProfile, Status
from tests.conv_contract import ConvContract

needs_compiler = pytest.mark.skipif(compiler.find() is None, reason="no C++ compiler on this machine")
SUBJECT = Depthwise()


@needs_compiler
class TestDepthwise(ConvContract):
    algorithm = "depthwise"


def profile(cpus: int = 3) -> HardwareProfile:
    return replace(hardware.detect(), allowed_cpus=cpus)


def assert_right(workload: Conv2d, params: Params, seed: int = 0) -> None:
    op = registry.op("conv2d")
    constants, inputs = op.constants(workload, seed), op.inputs(workload, seed)
    case = Case(inputs, op.reference(workload, constants, inputs), op.magnitude(workload, constants, inputs))
    call = SUBJECT.build(workload, params, constants).call
    verdict = check(call, [case], SUBJECT.error_bound(workload), lambda y: op.result_problem(workload, y))
    assert verdict.status is Status.OK, (verdict.message, workload.spec, params)


DEPTHWISE = (
    Conv2d(2, 37, 7, 7, 37, 3, 3, padding=1, groups=37, bias=True, activation="relu6"),
    Conv2d(1, 20, 14, 14, 20, 3, 3, 2, 1, groups=20, bias=True, residual=True, activation="hardswish"),
    Conv2d(1, 9, 29, 31, 9, 5, 5, padding=2, groups=9, residual=True),
    Conv2d(1, 40, 15, 19, 40, 5, 5, 2, (0, 3, 4, 1), groups=40, bias=True, activation="silu"),
    Conv2d(2, 6, 12, 10, 6, 3, 2, (3, 1), 2, (2, 3), groups=6),
    Conv2d(1, 3, 2, 1, 3, 3, 3, padding=1, groups=3, bias=True),
    Conv2d(1, 2, 3, 3, 2, 1, 1, padding=4, groups=2, bias=True, residual=True),
    Conv2d(2, 17, 1, 30, 17, 1, 7, padding=(0, 3), groups=17, dtype="f64"),
)


@needs_compiler
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", DEPTHWISE, ids=str)
def test_configs_from_the_whole_space_are_right(shape: Conv2d, layout: str) -> None:
    workload = replace(shape, layout=layout)
    space = SUBJECT.space(workload, profile())
    assert space.seeds
    random = Random(workload.spec)
    for _ in range(4):
        params = space.sample(random)
        assert params is not None
        assert_right(workload, params)


@needs_compiler
@pytest.mark.parametrize("stride", [1, 2])
def test_several_filters_per_channel(stride: int) -> None:
    workload = Conv2d(2, 5, 9, 9, 15, 3, 3, stride, 1, groups=5, bias=True)
    assert_right(workload, SUBJECT.space(workload, profile()).seeds[0])
    assert "one filter per channel" in SUBJECT.refusal(replace(workload, layout="channels_last"), profile())


@pytest.mark.parametrize(
    ("workload", "told"),
    [
        (Conv2d(1, 8, 9, 9, 8, 3, 3), "one group per channel, not 1 for 8"),
        (Conv2d(1, 8, 9, 9, 8, 3, 3, groups=4), "one group per channel, not 4 for 8"),
        (Conv2d(1, 8, 9, 9, 8, 9, 9, groups=8), "up to 64 taps, not 81"),
        (Conv2d(1, 8, 9, 9, 8, 3, 3, groups=8, dtype="f16"), "not f16"),
    ],
)
def test_refusals_say_what_is_in_the_way(workload: Conv2d, told: str) -> None:
    assert told in SUBJECT.refusal(workload, profile())


@needs_compiler
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", [3, 9, 16, 20])
def test_it_writes_only_its_result(layout: str, width: int) -> None:
    """Vectors that are wider than what is left of a row or of the channels end with it."""
    workload = Conv2d(1, width, 5, width, width, 3, 3, padding=1, groups=width, layout=layout)
    params = SUBJECT.space(workload, profile()).seeds[0]
    plan = SUBJECT.build(workload, params, registry.op("conv2d").constants(workload, 1)).call._keep[0]  # type: ignore[attr-defined]
    library = own_conv.load(compiler.shared_library(depthwise.SOURCE, depthwise._defines(workload, params)))
    (x,) = registry.op("conv2d").inputs(workload, 1)
    guarded = torch.full((100 + x.numel() + 100,), 42.0)
    assert library.convolve(ctypes.addressof(plan), x.data_ptr(), 0, guarded[100:].data_ptr()) == 0
    assert (guarded[:100] == 42).all()
    assert (guarded[-100:] == 42).all()
    assert not (guarded[100:-100] == 42).any()


@needs_compiler
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_at_extremes_match_the_framework(activation: str, layout: str) -> None:
    workload = Conv2d(1, 2, 4, 5, 2, 1, 1, groups=2, activation=activation, layout=layout)
    special = [0.0, -0.0, 1e-30, -3.0, 3.0, 6.0, 7.0, 88.0, -88.0, 200.0, -200.0, 1e30]
    special += [float("inf"), float("nan")]
    x = in_layout(torch.tensor([*special, *(i / 2 for i in range(26))]).reshape(1, 2, 4, 5), layout)
    params = SUBJECT.space(workload, profile()).seeds[0]
    y = SUBJECT.build(workload, params, {"weight": torch.ones(2, 1, 1, 1), "bias": None}).call(x)
    expected = finish(x, activation, None)
    assert torch.equal(y.isnan(), expected.isnan())
    assert torch.allclose(y.nan_to_num(0), expected.nan_to_num(0), rtol=3e-6, atol=1e-6)


def test_one_thread_has_one_way() -> None:
    space = SUBJECT.space(Conv2d(1, 32, 14, 14, 32, 3, 3, padding=1, groups=32), profile(1))
    assert all(params["chunks"] == 1 for params in space)


@needs_compiler
def test_weights_are_not_copied_where_they_can_be_read() -> None:
    workload = Conv2d(1, 32, 14, 14, 32, 3, 3, padding=1, groups=32)
    params = {**SUBJECT.space(workload, profile()).seeds[0], "threads": 1, "chunks": 1}
    constants = registry.op("conv2d").constants(workload, 1)
    assert SUBJECT.build(workload, params, constants).workspace_bytes < 32 * 9 * 4 + 4096


@needs_compiler
@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_stays_inside_its_operands(layout: str) -> None:
    command = [sys.executable, "-m", "tests.guarded", "depthwise", layout]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]


@needs_compiler
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_memory_format_of_image_and_residual_is_taken(layout: str) -> None:
    workload = Conv2d(2, 8, 10, 12, 8, 3, 3, padding=1, groups=8, bias=True, residual=True, layout=layout)
    constants = registry.op("conv2d").constants(workload, 5)
    weight = constants["weight"]
    assert weight is not None
    x, residual = registry.op("conv2d").inputs(workload, 5)
    call = SUBJECT.build(workload, SUBJECT.space(workload, profile()).seeds[0], constants).call
    wide = torch.randn(2, 16, 10, 24)[:, ::2, :, ::2]
    for image in (x, in_layout(x, "channels_last"), in_layout(x, "nchw"), wide, x[:1].expand(x.shape), x._neg_view()):
        for added in (
            residual,
            in_layout(residual, "nchw"),
            in_layout(residual, "channels_last"),
            residual._neg_view(),
        ):
            y = call(image, added)
            assert torch.allclose(y, plain(workload, weight, constants["bias"], image, added), atol=1e-4)
            assert not registry.op("conv2d").result_problem(workload, y)


@needs_compiler
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("at", [(0, 0), (6, 6), (3, 0), (0, 6)])
def test_nan_reaches_what_depends_on_it_only(at: tuple[int, int], layout: str) -> None:
    """Vectors read across borders of rows and planes: what they read there must not count, NaN included."""
    workload = Conv2d(1, 20, 7, 7, 20, 3, 3, padding=1, groups=20, layout=layout)
    constants = registry.op("conv2d").constants(workload, 5)
    weight = constants["weight"]
    assert weight is not None
    (x,) = registry.op("conv2d").inputs(workload, 5)
    x[0, 9, at[0], at[1]] = float("nan")
    for params in SUBJECT.space(workload, profile()).seeds:
        y = SUBJECT.build(workload, params, constants).call(x)
        expected = plain(workload, weight, None, x)
        assert torch.equal(y.isnan(), expected.isnan())
