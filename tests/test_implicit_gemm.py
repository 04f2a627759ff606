"""The implicit GEMM kernel: every config the space admits is right wherever tiles straddle rows, images and groups."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random

import pytest
import torch

from autotune import hardware, registry
from autotune.kernels import compiler
from autotune.kernels.implicit_gemm import ImplicitGemm
from autotune.measure.check import Case, check
from autotune.ops import relative_error
from autotune.ops.conv2d import LAYOUTS, Conv2d
from autotune.space import Params
from autotune.types import HardwareProfile, Status
from tests.conv_contract import ConvContract

needs_compiler = pytest.mark.skipif(compiler.find() is None, reason="no C++ compiler on this machine")
SUBJECT = ImplicitGemm()
COMPILED_IN = ("tile", "vector", "unroll", "image")


@needs_compiler
class TestImplicitGemm(ConvContract):
    algorithm = "implicit_gemm"


def profile(cpus: int = 3) -> HardwareProfile:
    """This machine's silicon with a number of CPUs that divides nothing evenly."""
    return replace(hardware.detect(), allowed_cpus=cpus)


def assert_right(workload: Conv2d, params: Params, seed: int = 0) -> None:
    op = registry.op("conv2d")
    constants, inputs = op.constants(workload, seed), op.inputs(workload, seed)
    case = Case(inputs, op.reference(workload, constants, inputs), op.magnitude(workload, constants, inputs))
    call = SUBJECT.build(workload, params, constants).call
    verdict = check(call, [case], SUBJECT.error_bound(workload), lambda y: op.result_problem(workload, y))
    assert verdict.status is Status.OK, (verdict.message, workload.spec, params)


STRADDLING = (
    Conv2d(2, 12, 9, 11, 21, 3, 3, padding=1, bias=True, residual=True, activation="relu6"),
    Conv2d(1, 6, 23, 23, 9, 5, 3, (2, 3), (1, 2, 0, 3), activation="relu6", residual=True),
    Conv2d(3, 10, 7, 7, 40, 3, 3, 2, 1, groups=2, bias=True, activation="relu6"),
    Conv2d(1, 4, 19, 17, 24, 3, 2, padding=3, dilation=(2, 3), groups=4, activation="relu6"),
    Conv2d(2, 150, 1, 9, 35, 1, 1, bias=True, residual=True, activation="relu6"),
)


# Compiling is what costs, so each compiled variant is tried on several shapes with other blocks, splits and threads.
@needs_compiler
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(6))
def test_every_admitted_config_is_right(seed: int, layout: str) -> None:
    random = Random(seed)
    variant = SUBJECT.space(replace(STRADDLING[0], layout=layout), profile()).sample(random)
    assert variant is not None
    for shape in STRADDLING:
        for _ in range(3):
            workload = replace(shape, layout=layout)
            runtime = SUBJECT.space(workload, profile()).sample(random)
            assert runtime is not None
            assert_right(workload, {**runtime, **{name: variant[name] for name in COMPILED_IN}}, seed)


@needs_compiler
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("image", ["in_place", "packed"])
def test_pointwise_reads_the_image_in_place_or_packed(image: str, layout: str) -> None:
    workload = Conv2d(2, 300, 6, 7, 37, 1, 1, bias=True, residual=True, layout=layout)
    space = SUBJECT.space(workload, profile())
    assert space.parameters["image"] == ("in_place", "packed")
    seed = next(seed for seed in space.seeds if seed["image"] == image)
    for kc in (128, 0):
        for split in ("pixels", "channels"):
            assert_right(workload, {**seed, "kc": kc, "split": split, "nc": 0})
            assert_right(replace(workload, c=4, k=6, groups=2), {**seed, "kc": kc, "split": split, "nc": 0})


@pytest.mark.parametrize(
    "change", [{"r": 3, "s": 3, "padding": 1}, {"padding": 1}, {"stride": 2}, {"stride": (1, 2)}, {"r": 1, "s": 2}]
)
def test_anything_else_is_packed(change: dict[str, object]) -> None:
    workload = Conv2d.from_dims({"n": 1, "c": 8, "h": 8, "w": 8, "k": 8, "r": 1, "s": 1} | change)
    assert SUBJECT.space(workload, profile()).parameters["image"] == ("packed",)


@needs_compiler
@pytest.mark.parametrize("layout", LAYOUTS)
def test_scratch_is_packing_blocks_only(layout: str) -> None:
    """No im2col buffer: what is held beyond the weights is bounded by the blocks, not by the image."""
    workload = Conv2d(1, 64, 112, 112, 64, 3, 3, padding=1, layout=layout)
    params = {**SUBJECT.space(workload, profile()).seeds[0], "kc": 256, "nc": 256, "threads": 2, "chunks": 1}
    weight = torch.randn(64, 64, 3, 3)
    held = SUBJECT.build(workload, params, {"weight": weight, "bias": None}).workspace_bytes
    blocks = 2 * 256 * 256 * 4
    assert weight.nbytes < held < 1.3 * weight.nbytes + 1.2 * blocks
    assert held < 64 * 9 * 112 * 112 * 4 / 20
    larger = replace(workload, h=224, w=112)
    assert SUBJECT.build(larger, params, {"weight": weight, "bias": None}).workspace_bytes == held


@needs_compiler
@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_writes_only_its_result(layout: str) -> None:
    import ctypes

    from autotune.kernels import implicit_gemm, own_conv

    workload = Conv2d(1, 5, 9, 9, 7, 3, 3, padding=1, layout=layout)
    params = dict(SUBJECT.space(workload, profile()).seeds[0])
    plan = SUBJECT.build(workload, params, registry.op("conv2d").constants(workload, 1)).call._keep[0]  # type: ignore[attr-defined]
    library = own_conv.load(compiler.shared_library(implicit_gemm.SOURCE, implicit_gemm._defines(workload, params)))
    (x,) = registry.op("conv2d").inputs(workload, 1)
    guarded = torch.full((100 + 7 * 81 + 100,), 42.0)
    assert library.convolve(ctypes.addressof(plan), x.data_ptr(), 0, guarded[100:].data_ptr()) == 0
    assert (guarded[:100] == 42).all()
    assert (guarded[-100:] == 42).all()
    assert not (guarded[100:-100] == 42).any()


@needs_compiler
@pytest.mark.parametrize("layout", LAYOUTS)
def test_calls_from_several_threads_at_once_do_not_meet(layout: str) -> None:
    workload = Conv2d(1, 24, 20, 20, 40, 3, 3, padding=1, layout=layout)
    space = SUBJECT.space(workload, profile())
    constants = registry.op("conv2d").constants(workload, 1)
    call = SUBJECT.build(workload, {**space.seeds[0], "threads": 2}, constants).call
    images = [registry.op("conv2d").inputs(workload, seed) for seed in range(16)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(call, (x for (x,) in images)))
    for image, result in zip(images, results, strict=True):
        reference = registry.op("conv2d").reference(workload, constants, image)
        assert relative_error(result, reference, 1.0) < 1e-5


def test_one_thread_has_one_way() -> None:
    for params in SUBJECT.space(Conv2d(1, 16, 4, 4, 8, 1, 1), profile(1)):
        assert params["split"] == "pixels"
        assert params["chunks"] == 1


@pytest.mark.parametrize(
    ("isa", "arch", "registers"),
    [
        (("avx2", "avx512f", "avx512vl", "fma"), "x86_64", 32),
        (("avx2", "fma"), "x86_64", 16),
        (("sse4_2",), "x86_64", 16),
        (("asimd",), "aarch64", 32),
    ],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tiles_fit_the_registers_of_each_isa(isa: tuple[str, ...], arch: str, registers: int, layout: str) -> None:
    machine = replace(profile(), isa=isa, arch=arch)
    for workload in (
        Conv2d(1, 64, 56, 56, 64, 3, 3, padding=1),
        Conv2d(8, 512, 7, 7, 512, 1, 1),
        Conv2d(1, 1, 1, 1, 1, 1, 1),
    ):
        space = SUBJECT.space(replace(workload, layout=layout), machine)
        assert space.seeds
        for params in (*space.seeds, *(space.sample(Random(seed)) for seed in range(30))):
            assert params is not None
            tile, vector = params["tile"], params["vector"]
            assert isinstance(tile, tuple)
            mr, nr = tile
            assert isinstance(mr, int)
            assert isinstance(nr, int)
            assert isinstance(vector, int)
            vectors = nr * 4 // vector
            assert mr * vectors + vectors < registers


def test_16_bit_types_are_refused_with_a_reason() -> None:
    assert "f16" in SUBJECT.refusal(Conv2d(1, 8, 8, 8, 8, 3, 3, dtype="f16"), profile())


@needs_compiler
@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_stays_inside_its_operands(layout: str) -> None:
    command = [sys.executable, "-m", "tests.guarded", "implicit_gemm", layout]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
