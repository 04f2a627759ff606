"""Winograd: what it takes it computes within its bound, in every config; what it does not take it refuses by name."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune import hardware, registry
from autotune.kernels import compiler
from autotune.kernels.winograd import Winograd
from autotune.measure.check import Case, check
from autotune.ops import relative_error
from autotune.ops.conv2d import ACTIVATIONS, LAYOUTS, Conv2d
from autotune.types import HardwareProfile, Status
from tests.conv_contract import ConvContract

needs_compiler = pytest.mark.skipif(compiler.find() is None, reason="no C++ compiler on this machine")
WINOGRAD = Winograd()


@needs_compiler
class TestWinograd(ConvContract):
    algorithm = "winograd"
    configs_per_workload = 1  # each is compiled; the property test below draws from the whole space


def profile(cpus: int = 3) -> HardwareProfile:
    """This machine's silicon with a number of CPUs that divides nothing evenly."""
    return replace(hardware.detect(), allowed_cpus=cpus)


def errors(w: Conv2d, params: dict[str, Any], seed: int = 0) -> float:
    """The worst element of two results against f64; asserts that they pass the check."""
    op = registry.op("conv2d")
    constants = op.constants(w, seed)
    cases = []
    for case in range(2):
        inputs = op.inputs(w, seed + case)
        reference = op.reference(w, constants, inputs)
        cases.append(Case(inputs, reference, op.magnitude(w, constants, inputs)))
    built = WINOGRAD.build(w, params, constants)
    bound = WINOGRAD.error_bound(w)
    verdict = check(built.call, cases, bound, lambda y: op.result_problem(w, y))
    assert verdict.status is Status.OK, (verdict.message, w.spec, params)
    assert verdict.max_error is not None
    return verdict.max_error


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ("r=3 s=3 stride=2", "stride"),
        ("r=3 s=3 stride=1,2", "stride"),
        ("r=3 s=3 dilation=2", "dilation"),
        ("r=5 s=5", "5x5"),
        ("r=1 s=1", "1x1"),
        ("r=1 s=3", "1x3"),
        ("r=3 s=3 groups=2", "groups=2"),
        ("r=3 s=3 groups=8", "groups=8"),
        ("r=3 s=3 dtype=f16", "f16"),
        ("r=3 s=3 dtype=bf16", "bf16"),
    ],
)
def test_c9_what_it_does_not_take_is_refused_by_name(spec: str, word: str) -> None:
    workload = registry.parse_workload(f"conv2d n=1 c=8 h=12 w=12 k=8 {spec}")
    assert word in WINOGRAD.refusal(workload, hardware.detect())


def test_it_refuses_a_gpu() -> None:
    gpu = replace(hardware.detect(), kind="gpu")
    assert "CPU" in WINOGRAD.refusal(Conv2d(1, 8, 12, 12, 8, 3, 3), gpu)


# Compiling is what costs here, so each compiled variant is tried on several shapes, splits and block sizes.
@needs_compiler
@settings(max_examples=16, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, database=None)
@given(
    seed=st.integers(0, 2**20),
    dtype=st.sampled_from(["f32", "f32", "f64"]),
    layout=st.sampled_from(LAYOUTS),
    activation=st.sampled_from(ACTIVATIONS),
)
def test_every_admitted_config_is_right_on_odd_shapes(seed: int, dtype: str, layout: str, activation: str) -> None:
    random = Random(seed)
    workload = random_workload(random, dtype, layout, activation)
    variant = WINOGRAD.space(workload, profile()).sample(random)
    assert variant is not None
    for _ in range(8):
        errors(workload, variant, seed)
        workload = random_workload(random, dtype, layout, activation)
        runtime = WINOGRAD.space(workload, profile()).sample(random)
        assert runtime is not None
        compiled_in = ("m", "tile", "vector", "unroll", "prefetch")
        variant = {**runtime, **{name: variant[name] for name in compiled_in}}


def random_workload(random: Random, dtype: str, layout: str, activation: str) -> Conv2d:
    """3x3, any sizes: images from one pixel up to several strips, padding up to more than the filter."""
    n, c, k = random.choice((1, 1, 2, 3)), random.choice((1, 3, 16, 17, 40)), random.choice((1, 5, 16, 31, 70))
    h, w = (random.choice((1, 2, 5, 7, 8, 14, 33, 150 // n)) for _ in range(2))
    padding = random.choice(((1, 1, 1, 1), (1, 1, 1, 1), (2, 2, 2, 2), (1, 2, 3, 4), (0, 7, 5, 2)))
    bias, residual = random.random() < 0.5, random.random() < 0.5
    return Conv2d(
        n, c, h + 2, w + 2, k, 3, 3, padding=padding, dtype=dtype, layout=layout, bias=bias, residual=residual,
        activation=activation,
    )  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("m", [2, 4])
def test_every_split_and_block_gives_the_same_numbers(m: int, layout: str) -> None:
    """Blocks and threads decide who computes a tile and when, never how."""
    w = Conv2d(2, 20, 21, 43, 40, 3, 3, padding=1, layout=layout, bias=True, residual=True)
    op = registry.op("conv2d")
    constants, inputs = op.constants(w, 1), op.inputs(w, 1)
    base = next(dict(seed) for seed in WINOGRAD.space(w, profile()).seeds if seed["m"] == m)
    results = []
    for split in ("tiles", "channels"):
        for threads, chunks, block in ((1, 1, 0), (1, 1, 7), (2, 1, 32), (3, 2, 64), (4, 4, 0), (7, 1, 1)):
            params = {**base, "split": split, "threads": threads, "chunks": chunks, "block": block}
            results.append(WINOGRAD.build(w, params, constants).call(*inputs))
    assert all(torch.equal(result, results[0]) for result in results)


@needs_compiler
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("channels", [1, 3, 64, 256])
def test_the_error_grows_with_the_tile_and_stays_within_the_bound(channels: int, dtype: str) -> None:
    """m=2 loses no more than a direct sum, m=4 two or three times as much: below its own bound, not far below."""
    w = Conv2d(1, channels, 32, 32, 32, 3, 3, padding=1, dtype=dtype)
    small, large = (errors(w, next(dict(s) for s in seeds(w) if s["m"] == m)) for m in (2, 4))
    tolerance, bound = registry.op("conv2d").tolerance(w), WINOGRAD.error_bound(w)
    assert small < tolerance / 2
    assert 1.5 * small < large < bound / 2
    assert large > bound / 60, "the bound says nothing"


@needs_compiler
def test_a_lookup_with_the_default_budget_may_use_either_m() -> None:
    """The layers that it is for: m=4 stays within what rounding explains of a direct sum."""
    for channels, size in ((64, 56), (128, 28), (256, 14), (512, 7)):
        w = Conv2d(1, channels, size, size, channels, 3, 3, padding=1)
        worst = max(errors(w, dict(seed)) for seed in {str(s["m"]): s for s in seeds(w)}.values())
        assert worst < registry.op("conv2d").tolerance(w)


def seeds(w: Conv2d) -> Any:
    found = WINOGRAD.space(w, profile(2)).seeds
    assert {seed["m"] for seed in found} == {2, 4}
    return found


@needs_compiler
def test_the_workspace_is_the_filters_and_the_scratch_of_a_block() -> None:
    """Transformed filters are (m + 2)² / 9 the size of the weight; scratch grows with block and threads."""
    w = Conv2d(1, 64, 56, 56, 64, 3, 3, padding=1)
    constants = registry.op("conv2d").constants(w, 0)
    weight_bytes = 64 * 64 * 9 * 4
    held = {}
    for m in (2, 4):
        base = {**next(dict(seed) for seed in seeds(w) if seed["m"] == m), "split": "tiles"}
        for threads, block in ((1, 32), (1, 64), (2, 32)):
            built = WINOGRAD.build(w, {**base, "threads": threads, "block": block}, constants)
            held[threads, block] = built.workspace_bytes - weight_bytes * (m + 2) ** 2 // 9
        tile = (m + 2) ** 2 * 64 * 4
        assert 16 * tile < held[1, 32] < 2.5 * 40 * tile + 100_000  # V, at most as much M, a strip
        assert held[1, 64] > held[1, 32]
        assert 1.5 * held[1, 32] < held[2, 32] <= 2 * held[1, 32]


@needs_compiler
def test_lazily_negated_operands_have_their_own_sign() -> None:
    w = Conv2d(1, 4, 9, 9, 6, 3, 3, padding=1, bias=True, residual=True)
    op = registry.op("conv2d")
    constants, (x, residual) = op.constants(w, 2), op.inputs(w, 2)
    negated = {name: None if t is None else torch._neg_view(t) for name, t in constants.items()}
    call = WINOGRAD.build(w, dict(WINOGRAD.space(w, profile()).seeds[0]), negated).call
    reference = op.reference(w, {name: None if t is None else -t for name, t in constants.items()}, (-x, -residual))
    result = call(torch._neg_view(x), torch._neg_view(residual))
    assert relative_error(result, reference) < WINOGRAD.error_bound(w)


def test_the_space_holds_each_way_once() -> None:
    """No two configs that run the same code over the same blocks."""
    w = Conv2d(1, 16, 12, 12, 16, 3, 3, padding=1)
    space = WINOGRAD.space(w, profile(2))
    counted = 0
    for params in space:
        counted += 1
        assert params["split"] == "channels" or params["chunks"] == 1
        assert params["threads"] != 1 or params["split"] == "tiles"
    assert 0 < counted < space.size
    assert all(space.contains(dict(seed)) for seed in space.seeds)
    assert len({str(seed) for seed in space.seeds}) == len(space.seeds) >= 4
