"""The direct kernel: every tile, block and thread count on rows that divide into none of them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from random import Random

import pytest

from autotune import hardware, registry
from autotune.kernels import compiler
from autotune.kernels.direct import Direct
from autotune.measure.check import Case, check
from autotune.ops.conv2d import Conv2d
from autotune.space import Params
from autotune.types import HardwareProfile, Status
from tests.conv_contract import ConvContract

needs_compiler = pytest.mark.skipif(compiler.find() is None, reason="no C++ compiler on this machine")
SUBJECT = Direct()


@needs_compiler
class TestDirect(ConvContract):
    algorithm = "direct"


def profile(cpus: int = 3) -> HardwareProfile:
    return replace(hardware.detect(), allowed_cpus=cpus)


def assert_right(workload: Conv2d, params: Params, seed: int = 0) -> None:
    op = registry.op("conv2d")
    constants, inputs = op.constants(workload, seed), op.inputs(workload, seed)
    case = Case(inputs, op.reference(workload, constants, inputs), op.magnitude(workload, constants, inputs))
    call = SUBJECT.build(workload, params, constants).call
    verdict = check(call, [case], SUBJECT.error_bound(workload), lambda y: op.result_problem(workload, y))
    assert verdict.status is Status.OK, (verdict.message, workload.spec, params)


SHAPES = (
    Conv2d(2, 3, 23, 37, 21, 7, 7, 2, 3, bias=True, activation="relu6"),
    Conv2d(1, 1, 40, 33, 9, 3, 3, padding=1, residual=True, activation="relu6"),
    Conv2d(1, 4, 17, 19, 10, 5, 3, (3, 2), (0, 3, 4, 1), bias=True, residual=True, activation="relu6"),
    Conv2d(3, 12, 9, 11, 20, 3, 2, (1, 3), 3, (2, 3), groups=4, activation="relu6"),
    Conv2d(1, 2, 2, 3, 4, 3, 3, padding=6, bias=True, activation="relu6"),
)


# Compiling is what costs, so each compiled variant is tried on several shapes with other blocks and threads.
@needs_compiler
@pytest.mark.parametrize("seed", range(6))
def test_every_admitted_config_is_right(seed: int) -> None:
    random = Random(seed)
    variant = SUBJECT.space(SHAPES[0], profile()).sample(random)
    assert variant is not None
    for workload in SHAPES:
        for _ in range(3):
            runtime = SUBJECT.space(workload, profile()).sample(random)
            assert runtime is not None
            assert_right(workload, {**runtime, **{name: variant[name] for name in ("tile", "vector", "unroll")}}, seed)


@pytest.mark.parametrize(
    ("workload", "told"),
    [
        (Conv2d(1, 65, 9, 9, 8, 3, 3), "up to 64 channels per group, not 65"),
        (Conv2d(1, 3, 9, 9, 8, 1, 1), "matrix product"),
        (Conv2d(1, 8, 9, 9, 8, 3, 3, groups=8), "depthwise"),
        (Conv2d(1, 3, 9, 9, 8, 3, 3, layout="channels_last"), "not channels_last"),
        (Conv2d(1, 3, 9, 9, 8, 3, 3, dtype="f16"), "not f16"),
    ],
)
def test_refusals_say_what_is_in_the_way(workload: Conv2d, told: str) -> None:
    assert told in SUBJECT.refusal(workload, profile())


@needs_compiler
def test_it_stays_inside_its_operands() -> None:
    command = [sys.executable, "-m", "tests.guarded", "direct", "nchw"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]


def test_seeds_are_in_the_space_and_use_every_cpu() -> None:
    space = SUBJECT.space(Conv2d(1, 3, 224, 224, 64, 7, 7, 2, 3), profile())
    assert 3 <= len(space.seeds) <= 8
    assert all(space.contains(seed) and seed["threads"] == max(space.parameters["threads"]) for seed in space.seeds)
