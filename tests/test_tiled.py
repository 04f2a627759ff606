"""The project's C++ kernel: every config the space admits computes the right product."""

from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune import Gemm, Linear, hardware, registry
from autotune.kernels import compiler
from autotune.kernels.tiled import Tiled
from autotune.measure.check import Case, check, poisoned_allocations
from autotune.ops import relative_error
from autotune.ops.activations import ACTIVATIONS
from autotune.types import HardwareProfile, Status, Workload
from tests.algorithm_contract import GemmContract, LinearContract

needs_compiler = pytest.mark.skipif(compiler.find() is None, reason="no C++ compiler on this machine")
TILED = Tiled()


@needs_compiler
class TestTiled(LinearContract, GemmContract):
    algorithm = "tiled"
    configs_per_workload = 1  # each is compiled; the property test below draws from the whole space

    def configs(self, workload: Workload) -> list[dict[str, object]]:
        space = self.subject.space(workload, hardware.detect())
        return [*map(dict, space.seeds[:1]), space.sample(Random(workload.spec))]


def assert_right(workload: Workload, params: dict[str, object], seed: int = 0) -> None:
    """The built kernel against the f64 reference, outputs poisoned, per element."""
    op = registry.op(workload.op)
    constants = op.constants(workload, seed)
    cases = []
    for case in range(2):
        inputs = op.inputs(workload, seed + case)
        reference = op.reference(workload, constants, inputs)
        cases.append(Case(inputs, reference, op.magnitude(workload, constants, inputs)))
    built = TILED.build(workload, params, constants)
    verdict = check(built.call, cases, TILED.error_bound(workload))
    assert verdict.status is Status.OK, (verdict.message, workload.spec, params)


def profile(cpus: int = 3) -> HardwareProfile:
    """This machine's silicon with a number of CPUs that divides nothing evenly."""
    from dataclasses import replace

    return replace(hardware.detect(), allowed_cpus=cpus)


# Compiling is what costs here, so each example of a compiled variant is tried on several shapes and block sizes.
@needs_compiler
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(
    seed=st.integers(0, 2**20),
    op=st.sampled_from(["linear", "gemm"]),
    dtype=st.sampled_from(["f32", "f64"]),
    activation=st.sampled_from(ACTIVATIONS),
)
def test_every_admitted_config_is_right_on_odd_shapes(seed: int, op: str, dtype: str, activation: str) -> None:
    random = Random(seed)
    workload = random_workload(random, op, dtype, activation)
    space = TILED.space(workload, profile())
    variant = space.sample(random)
    assert variant is not None
    for _ in range(6):
        assert_right(workload, variant, seed)
        workload = random_workload(random, op, dtype, activation)
        runtime = TILED.space(workload, profile()).sample(random)
        assert runtime is not None
        compiled_in = ("tile", "vector", "unroll", "prefetch", "pack_a", "pack_b")
        # block sizes and splits are chosen at run time: other values, the same compiled code
        variant = {**runtime, **{name: variant[name] for name in compiled_in if name in variant}}
        if op == "gemm":
            variant["pack_a"], variant["pack_b"] = 1, 1


def random_workload(random: Random, op: str, dtype: str, activation: str) -> Workload:
    m, n, k = (random.choice((1, 2, 3, 5, 17, 31, 64, 97, 130)) for _ in range(3))
    if op == "linear":
        return Linear(m, n, k * random.choice((1, 9)), dtype, bias=random.random() < 0.5, activation=activation)
    layouts = ("contiguous", "transposed", "strided", "expanded")
    return Gemm(
        m, n, k, random.choice((1, 1, 3)), dtype, a_layout=random.choice(layouts), b_layout=random.choice(layouts)
    )


@needs_compiler
@pytest.mark.parametrize(
    "workload",
    [Linear(1, 4097, 65537), Linear(1, 128, 1), Linear(4, 33, 4099, bias=True), Gemm(250, 249, 251), Gemm(1, 1, 1)],
    ids=str,
)
def test_c5_seeds_are_within_tolerance_at_the_edges(workload: Workload) -> None:
    space = TILED.space(workload, profile())
    assert space.seeds
    for params in space.seeds[: 1 if workload.bytes > 1 << 28 else 3]:
        assert_right(workload, dict(params))


@needs_compiler
@pytest.mark.parametrize("split", ["m", "n", "k", "batch"])
def test_every_split_on_one_and_many_threads(split: str) -> None:
    workload = Gemm(70, 130, 2100, batch=3, dtype="f32")
    space = TILED.space(workload, profile(4))
    base = dict(space.seeds[0])
    for threads, chunks in ((1, 1), (2, 1), (3, 4), (4, 8)):
        assert_right(workload, {**base, "split": split, "threads": threads, "chunks": chunks})


@needs_compiler
@pytest.mark.parametrize(("m", "n", "k"), [(0, 5, 7), (5, 0, 7), (5, 7, 0), (0, 0, 0)])
def test_c14_empty_dimensions_give_empty_or_activated_bias(m: int, n: int, k: int) -> None:
    workload = Linear(m, n, k, bias=True, activation="silu")
    params = dict(TILED.space(Linear(5, 7, 7), profile()).seeds[0])
    assert_right(workload, params)
    assert_right(Gemm(m, n, k), {**params, "pack_b": 1, "pack_a": 1})


@needs_compiler
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_at_extremes_match_the_framework(activation: str) -> None:
    workload = Linear(3, 70, 1, activation=activation)
    params = dict(TILED.space(workload, profile()).seeds[0])
    special = [0.0, -0.0, 1e-30, -1e-30, 88.0, -88.0, 200.0, -200.0, 1e30, float("inf"), float("-inf"), float("nan")]
    weight = torch.tensor(special + [i / 8 for i in range(-29, 29)]).reshape(70, 1)
    x = torch.ones(3, 1)
    ours = TILED.build(workload, params, {"weight": weight, "bias": None}).call(x)
    reference = registry.op("linear").reference(workload, {"weight": weight, "bias": None}, (x,))
    finite = reference.isfinite()
    assert torch.equal(ours.isnan(), reference.isnan())
    assert torch.allclose(ours[finite].double(), reference[finite], rtol=3e-6, atol=1e-6)
    assert torch.equal(ours[reference.isinf()].double(), reference[reference.isinf()])


@needs_compiler
def test_nan_stays_where_it_belongs() -> None:
    workload = Linear(5, 33, 40)
    params = dict(TILED.space(workload, profile()).seeds[0])
    weight = torch.randn(33, 40)
    weight[7, 3] = float("nan")
    y = TILED.build(workload, params, {"weight": weight, "bias": None}).call(torch.randn(5, 40))
    assert y[:, 7].isnan().all()
    assert not torch.cat([y[:, :7], y[:, 8:]], dim=1).isnan().any()


@needs_compiler
def test_it_writes_only_its_output() -> None:
    """Rows and columns past the result stay as they were: the tails of tiles never reach memory."""
    from autotune.kernels import tiled

    workload = Linear(5, 33, 40)
    params = dict(TILED.space(workload, profile()).seeds[0])
    built = TILED.build(workload, params, {"weight": torch.randn(33, 40), "bias": None})
    plan = built.call._keep[0]
    library = tiled._load(compiler.shared_library(tiled.SOURCE, tiled._defines(workload, params)))
    guarded = torch.full((7, 33), 42.0)
    x = torch.randn(5, 40)
    import ctypes

    library.linear(ctypes.addressof(plan), x.data_ptr(), 40, guarded[1:].data_ptr(), 5)
    assert (guarded[0] == 42).all()
    assert (guarded[6] == 42).all()
    assert not (guarded[1:6] == 42).any()


@needs_compiler
def test_calls_from_several_threads_at_once_do_not_meet() -> None:
    from concurrent.futures import ThreadPoolExecutor

    workload = Linear(37, 130, 300)
    params = dict(TILED.space(workload, profile()).seeds[0]) | {"pack_a": 1, "threads": 2}
    weight = torch.randn(130, 300)
    call = TILED.build(workload, params, {"weight": weight, "bias": None}).call
    xs = [torch.randn(37, 300) for _ in range(32)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(call, xs))
    for x, y in zip(xs, results, strict=True):
        assert relative_error(y, x.double() @ weight.double().T) < 1e-5


def test_space_has_no_two_names_for_one_code() -> None:
    space = TILED.space(Linear(1, 300, 200), profile(1))
    for params in space:
        assert params["split"] == "n"
        assert params["chunks"] == 1
        assert params["mc"] == 0


@pytest.mark.parametrize(
    ("isa", "arch", "widths", "registers"),
    [
        (("avx2", "avx512f", "avx512vl", "fma"), "x86_64", {64, 32}, 32),
        (("avx2", "fma"), "x86_64", {32}, 16),
        (("sse4_2",), "x86_64", {16}, 16),
        (("asimd",), "aarch64", {16}, 32),
    ],
)
@pytest.mark.parametrize("workload", [Linear(1, 4096, 1024), Linear(64, 768, 3072), Gemm(100, 64, 100, 12)], ids=str)
def test_tiles_fit_the_registers_of_each_isa(
    isa: tuple[str, ...], arch: str, widths: set[int], registers: int, workload: Workload
) -> None:
    from dataclasses import replace

    machine = replace(profile(), isa=isa, arch=arch)
    space = TILED.space(workload, machine)
    assert set(space.parameters["vector"]) == widths
    assert space.seeds
    random = Random(0)
    for _ in range(50):
        params = space.sample(random)
        assert params is not None
        (mr, nr), lanes = params["tile"], params["vector"] // 4
        assert mr * (nr // lanes) + nr // lanes < registers
    for tile in space.parameters["tile"]:  # a value that no valid combination has would only waste proposals
        one_thread = {**space.seeds[0], "tile": tile, "threads": 1, "split": "n", "chunks": 1}
        assert any(space.valid({**one_thread, "vector": vector}) for vector in widths), tile


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_16_bit_types_are_refused_with_a_reason(dtype: str) -> None:
    assert dtype in TILED.refusal(Linear(1, 8, 8, dtype), profile())


def test_poison_reaches_torch_empty() -> None:
    with poisoned_allocations():
        assert torch.empty(1000).isnan().all()
        assert torch.ones(2).new_empty((3, 5)).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()
