"""What every algorithm of `linear` and `gemm` owes its callers. A test class inherits what it computes.

    class TestMine(LinearContract, GemmContract):
        algorithm = "mine"

Memory that torch hands out uninitialised is NaN here, so a result that is not written everywhere shows.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune import registry
from autotune.errors import InvalidInput
from autotune.kernels import Algorithm, Built
from autotune.ops import relative_error
from autotune.ops.activations import ACTIVATIONS, apply_activation
from autotune.ops.layout import lay_out
from autotune.types import HardwareProfile, StrideClass, Workload

_memory: Any = torch.utils.deterministic  # its settings are untyped

Tensors = dict[str, torch.Tensor | None]


def _isa() -> tuple[str, ...]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            flags = next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return ()
    return tuple(flags.partition(":")[2].split())


HERE = HardwareProfile(
    "cpu", "test machine", "any", platform.machine(), "any", isa=_isa(), allowed_cpus=len(os.sched_getaffinity(0))
)
ELSEWHERE = HardwareProfile("cpu", "another machine", "any", "riscv64", "any")

LINEAR = (
    "linear m=1 n=128 k=1",
    "linear m=5 n=1 k=1",
    "linear m=1 n=129 k=65537 bias=1",
    "linear m=100 n=99 k=101",
    "linear m=64 n=96 k=128 bias=1",
    "linear m=0 n=5 k=7 bias=1",
    "linear m=5 n=0 k=7 bias=1",
    "linear m=5 n=7 k=0",
    "linear m=5 n=7 k=0 bias=1 activation=gelu",
    "linear m=0 n=0 k=0",
    *(f"linear m=9 n=37 k=65 bias=1 activation={name}" for name in ACTIVATIONS),
    *(f"linear m=7 n=33 k=65 weight_layout={layout.value}" for layout in StrideClass),
    *(f"linear m=4 n=40 k=70 bias=1 activation=silu dtype={dtype}" for dtype in ("f64", "bf16", "f16")),
)
GEMM = (
    "gemm m=1 n=128 k=1",
    "gemm m=100 n=99 k=101",
    "gemm m=1 n=513 k=1031",
    "gemm m=513 n=1 k=31",
    "gemm m=0 n=5 k=7",
    "gemm m=5 n=0 k=7",
    "gemm m=5 n=7 k=0",
    "gemm m=4 n=5 k=0 batch=3",
    "gemm m=6 n=7 k=8 batch=0",
    *(f"gemm m=7 n=33 k=65 a_layout={a.value} b_layout={b.value}" for a in StrideClass for b in StrideClass),
    *(f"gemm m=7 n=33 k=65 batch=3 a_layout={a.value} b_layout={b.value}" for a in StrideClass for b in StrideClass),
    *(f"gemm m=9 n=40 k=70 dtype={dtype}" for dtype in ("f64", "bf16", "f16")),
)


SETTINGS = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.function_scoped_fixture],
)


class AlgorithmContract:
    """The base: what the contracts of single ops are made of, and what is asked of any algorithm."""

    algorithm: ClassVar[str]
    hardware: ClassVar[HardwareProfile] = HERE
    configs_per_workload: ClassVar[int] = 4
    most_seeds: ClassVar[int | None] = None  # of those that take a compiler a second each
    by_magnitude: ClassVar[bool] = False
    """Whether errors are relative to what the op says is typical, as measuring has it."""

    @pytest.fixture(autouse=True)
    def _poisoned_memory(self) -> Iterator[None]:
        before = torch.are_deterministic_algorithms_enabled(), _memory.fill_uninitialized_memory
        threads = torch.get_num_threads()
        torch.use_deterministic_algorithms(True)
        _memory.fill_uninitialized_memory = True
        try:
            yield
            assert torch.get_num_threads() == threads, "the thread count was not put back"
        finally:
            torch.use_deterministic_algorithms(before[0])
            _memory.fill_uninitialized_memory = before[1]
            torch.set_num_threads(threads)

    @property
    def subject(self) -> Algorithm:
        return registry.algorithm(self.algorithm)

    def usable(self, spec: str) -> Workload:
        """The workload, if this algorithm takes it here; otherwise the test is skipped, with the reason."""
        workload = registry.parse_workload(spec)
        assert workload.op in self.subject.ops
        reason = self.subject.refusal(workload, self.hardware)
        if reason:
            _assert_sentence(reason)
            pytest.skip(reason)
        return workload

    def configs(self, workload: Workload) -> list[dict[str, Any]]:
        """Seeds, then other members of the space spread by a fixed draw."""
        space = self.subject.space(workload, self.hardware)
        members = list(space)
        assert members, "an algorithm that does not refuse has at least one configuration"
        assert all(space.contains(member) for member in members)
        others = Random(0).sample(members, min(self.configs_per_workload, len(members)))
        return [*(dict(seed) for seed in space.seeds[: self.most_seeds]), *others]

    def built(self, workload: Workload, params: dict[str, Any], constants: Tensors) -> Built:
        self.subject.compile(workload, params)
        built = self.subject.build(workload, params, constants)
        assert built.workspace_bytes >= 0
        return built

    def check(self, workload: Workload, constants: Tensors, inputs: tuple[torch.Tensor, ...], call: Any) -> None:
        op = registry.op(workload.op)
        result = call(*inputs)
        reference = op.reference(workload, constants, inputs)
        assert result.dtype is op.result_dtype(workload, inputs)
        assert not result.requires_grad
        assert self.laid_out(workload, result)
        assert result.layout is torch.strided
        error = relative_error(
            result, reference, op.magnitude(workload, constants, inputs) if self.by_magnitude else 0.0
        )
        assert error <= self.subject.error_bound(workload), f"{error:.2e} for {workload}"

    def laid_out(self, workload: Workload, result: torch.Tensor) -> bool:
        """Whether a result lies in memory as the op wants it."""
        return result.is_contiguous()

    def right_in_many_ways(self, spec: str, seed: int = 1) -> None:
        workload = self.usable(spec)
        op = registry.op(workload.op)
        constants, inputs = op.constants(workload, seed), op.inputs(workload, seed)
        for params in self.configs(workload):
            self.check(workload, constants, inputs, self.built(workload, params, constants).call)

    def right_for_a_draw(self, spec: str, draw: int) -> None:
        workload = self.usable(spec)
        op = registry.op(workload.op)
        constants, inputs = op.constants(workload, draw), op.inputs(workload, draw)
        params = self.subject.space(workload, self.hardware).sample(Random(draw))
        assert params is not None
        self.check(workload, constants, inputs, self.built(workload, params, constants).call)

    def fresh_results(self, spec: str) -> None:
        workload = self.usable(spec)
        op = registry.op(workload.op)
        constants, first, second = op.constants(workload, 9), op.inputs(workload, 9), op.inputs(workload, 10)
        operands = [tensor for tensor in (*constants.values(), *first, *second) if tensor is not None]
        copies = [tensor.clone() for tensor in operands]
        for params in self.configs(workload):
            call = self.built(workload, params, constants).call
            one = call(*first)
            kept = one.clone()
            two = call(*second)
            assert torch.equal(one, kept), "a later call changed an earlier result"
            memory = {tensor.untyped_storage().data_ptr() for tensor in (one, two, *operands)}
            assert len(memory) == 2 + len({tensor.untyped_storage().data_ptr() for tensor in operands})
        assert all(torch.equal(tensor, copy) for tensor, copy in zip(operands, copies, strict=True))

    def same_from_another_thread(self, spec: str) -> None:
        workload = self.usable(spec)
        op = registry.op(workload.op)
        constants, inputs = op.constants(workload, 11), op.inputs(workload, 11)
        for params in self.configs(workload):
            call = self.built(workload, params, constants).call
            here = call(*inputs)
            there: list[torch.Tensor] = []
            worker = threading.Thread(target=lambda call=call, there=there: there.append(call(*inputs)))
            worker.start()
            worker.join(60)
            assert there, "the call did not return"
            assert torch.equal(here, there[0])

    def passes_on(self, spec: str, value: float) -> None:
        """One `value` in the last column of the first operand reaches the results it should, and no others."""
        workload = self.usable(spec)
        op = registry.op(workload.op)
        constants, inputs = op.constants(workload, 8), op.inputs(workload, 8)
        inputs[0][..., 3, -1] = value
        plain = op.reference(workload, constants, inputs)
        for params in self.configs(workload):
            result = self.built(workload, params, constants).call(*inputs)
            assert torch.equal(result.isnan(), plain.isnan())
            assert torch.equal(result.isinf(), plain.isinf())

    # what it says of itself

    def test_refusals_are_sentences(self) -> None:
        for op in {"linear", "gemm"}.intersection(self.subject.ops):
            for dtype in ("f64", "f32", "f16", "bf16", "i8"):
                workload = registry.parse_workload(f"{op} m=6 n=33 k=65 dtype={dtype}")
                for hardware in (self.hardware, ELSEWHERE, replace(self.hardware, isa=())):
                    reason = self.subject.refusal(workload, hardware)
                    assert isinstance(reason, str)
                    if reason:
                        _assert_sentence(reason)
                    else:
                        assert next(iter(self.subject.space(workload, hardware)), None) is not None
            assert self.subject.refusal(registry.parse_workload(f"{op} m=6 n=33 k=65 dtype=i8"), self.hardware)

    def test_identity(self) -> None:
        assert self.subject.name == self.algorithm
        assert self.subject.revision()
        assert self.subject.revision() == type(self.subject)().revision()


class LinearContract(AlgorithmContract):
    @pytest.mark.parametrize("spec", LINEAR)
    def test_linear_is_right(self, spec: str) -> None:
        self.right_in_many_ways(spec)

    @SETTINGS
    @given(
        m=st.integers(0, 40),
        n=st.integers(0, 70),
        k=st.integers(0, 70),
        bias=st.integers(0, 1),
        activation=st.sampled_from(ACTIVATIONS),
        draw=st.integers(0, 2**31),
    )
    def test_linear_is_right_for_any_shape(self, m: int, n: int, k: int, bias: int, activation: str, draw: int) -> None:
        self.right_for_a_draw(f"linear m={m} n={n} k={k} bias={bias} activation={activation}", draw)

    @pytest.mark.parametrize("lead", [(), (1,), (3,), (17,), (2, 3), (2, 1, 4), (2, 0)])
    def test_linear_takes_any_leading_dimensions(self, lead: tuple[int, ...]) -> None:
        workload = self.usable("linear m=6 n=33 k=65 bias=1 activation=relu")
        constants = registry.op("linear").constants(workload, 2)
        x = torch.randn((*lead, 65), generator=torch.Generator().manual_seed(3))
        for params in self.configs(workload):
            self.check(workload, constants, (x,), self.built(workload, params, constants).call)

    @pytest.mark.parametrize("layout", [layout.value for layout in StrideClass])
    @pytest.mark.parametrize("lead", [(6,), (2, 3)])
    def test_linear_takes_any_input_layout(self, lead: tuple[int, ...], layout: str) -> None:
        workload = self.usable("linear m=6 n=33 k=65 bias=1")
        constants = registry.op("linear").constants(workload, 4)
        x = lay_out(torch.randn((*lead, 65), generator=torch.Generator().manual_seed(5)), layout)
        for params in self.configs(workload):
            self.check(workload, constants, (x,), self.built(workload, params, constants).call)

    def test_linear_takes_a_bias_that_is_a_view_and_an_input_with_a_lazy_sign(self) -> None:
        workload = self.usable("linear m=6 n=33 k=65 bias=1")
        constants = registry.op("linear").constants(workload, 6)
        constants["bias"] = torch.randn(66)[::2]
        x = torch._neg_view(registry.op("linear").inputs(workload, 6)[0])
        for params in self.configs(workload):
            self.check(workload, constants, (x,), self.built(workload, params, constants).call)

    @pytest.mark.parametrize("activation", ACTIVATIONS)
    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_not_a_number_in_the_weight_is_passed_on_or_refused(self, value: float, activation: str) -> None:
        workload = self.usable(f"linear m=5 n=33 k=65 bias=1 activation={activation}")
        constants = registry.op("linear").constants(workload, 7)
        weight, bias = constants["weight"], constants["bias"]
        assert weight is not None
        weight[17, 3] = value
        (x,) = registry.op("linear").inputs(workload, 7)
        plain = apply_activation(torch.nn.functional.linear(x, weight, bias), activation)
        exact = registry.op("linear").reference(workload, constants, (x,))
        for params in self.configs(workload):
            try:
                built = self.built(workload, params, constants)
            except InvalidInput as error:
                _assert_sentence(str(error))
                continue
            result = built.call(x)
            assert torch.equal(result.isfinite(), plain.isfinite())
            # torch's own vectorised GELU makes NaN of +inf, its scalar one does not: as the default, or as it is right
            assert any(torch.equal(result.isnan(), other.isnan()) for other in (plain, exact))

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    @pytest.mark.parametrize("activation", ["none", "relu"])
    def test_linear_passes_on_not_a_number(self, activation: str, value: float) -> None:
        self.passes_on(f"linear m=5 n=33 k=65 bias=1 activation={activation}", value)

    def test_linear_results_are_fresh_and_operands_untouched(self) -> None:
        self.fresh_results("linear m=6 n=33 k=65 bias=1 activation=relu")

    def test_linear_works_from_another_thread(self) -> None:
        self.same_from_another_thread("linear m=60 n=133 k=65 bias=1")

    def test_parameters_that_want_gradients_are_detached(self) -> None:
        workload = self.usable("linear m=6 n=33 k=65 bias=1")
        constants = registry.op("linear").constants(workload, 12)
        wanting: Tensors = {name: value.requires_grad_() for name, value in constants.items() if value is not None}
        inputs = registry.op("linear").inputs(workload, 12)
        for params in self.configs(workload):
            call = self.built(workload, params, wanting).call
            assert not call(*inputs).requires_grad
            with torch.no_grad():
                assert not call(inputs[0].clone().requires_grad_()).requires_grad

    def test_linear_follows_the_thread_count_of_the_application(self) -> None:
        workload = self.usable("linear m=60 n=133 k=65 bias=1")
        constants, inputs = registry.op("linear").constants(workload, 13), registry.op("linear").inputs(workload, 13)
        before = torch.get_num_threads()
        for params in self.configs(workload):
            call = self.built(workload, params, constants).call
            for count in (1, before):
                torch.set_num_threads(count)
                self.check(workload, constants, inputs, call)
                assert torch.get_num_threads() == count

    def test_linear_does_not_depend_on_the_default_dtype(self) -> None:
        workload = self.usable("linear m=6 n=33 k=65 bias=1 activation=gelu")
        constants, inputs = registry.op("linear").constants(workload, 15), registry.op("linear").inputs(workload, 15)
        torch.set_default_dtype(torch.float64)
        try:
            for params in self.configs(workload):
                self.check(workload, constants, inputs, self.built(workload, params, constants).call)
        finally:
            torch.set_default_dtype(torch.float32)

    def test_workspace_is_the_packed_weight(self) -> None:
        workload = self.usable("linear m=6 n=330 k=65")
        constants = registry.op("linear").constants(workload, 14)
        for params in self.configs(workload):
            held = self.built(workload, params, constants).workspace_bytes
            assert held == 0 or held >= 330 * 65  # one byte a weight at the least


class GemmContract(AlgorithmContract):
    @pytest.mark.parametrize("spec", GEMM)
    def test_gemm_is_right(self, spec: str) -> None:
        self.right_in_many_ways(spec)

    @SETTINGS
    @given(
        m=st.integers(0, 40),
        n=st.integers(0, 70),
        k=st.integers(0, 70),
        batch=st.integers(0, 3),
        draw=st.integers(0, 2**31),
    )
    def test_gemm_is_right_for_any_shape(self, m: int, n: int, k: int, batch: int, draw: int) -> None:
        self.right_for_a_draw(f"gemm m={m} n={n} k={k} batch={batch}", draw)

    def test_gemm_takes_operands_with_a_lazy_sign(self) -> None:
        workload = self.usable("gemm m=6 n=33 k=65")
        a, b = (torch._neg_view(tensor) for tensor in registry.op("gemm").inputs(workload, 6))
        for params in self.configs(workload):
            self.check(workload, {}, (a, b), self.built(workload, params, {}).call)

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    @pytest.mark.parametrize("batch", [1, 2])
    def test_gemm_passes_on_not_a_number(self, batch: int, value: float) -> None:
        self.passes_on(f"gemm m=5 n=33 k=65 batch={batch}", value)

    def test_gemm_results_are_fresh_and_operands_untouched(self) -> None:
        self.fresh_results("gemm m=6 n=33 k=65")

    def test_gemm_works_from_another_thread(self) -> None:
        self.same_from_another_thread("gemm m=60 n=133 k=65")


def _assert_sentence(reason: str) -> None:
    assert len(reason.split()) >= 4, reason
    assert "\n" not in reason
