"""The algorithms that call other people's libraries, and the Numba kernel, against the contract of all algorithms."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
import torch

from autotune import registry
from autotune.kernels import gomp, numba_tiled, openblas
from autotune.kernels.threads import limited
from autotune.ops.linear import Linear
from tests.algorithm_contract import HERE, GemmContract, LinearContract


class TestFramework(LinearContract, GemmContract):
    algorithm = "torch"

    @pytest.mark.parametrize("spec", ["linear m=6 n=33 k=65 bias=1 activation=gelu", "gemm m=6 n=33 k=65"])
    def test_the_default_builds_from_no_parameters_and_is_not_in_the_space(self, spec: str) -> None:
        workload = registry.parse_workload(spec)
        op = registry.op(workload.op)
        config = op.default(workload)
        assert config.algorithm == self.algorithm
        assert not config.params
        constants, inputs = op.constants(workload, 0), op.inputs(workload, 0)
        self.check(workload, constants, inputs, self.subject.build(workload, config.params, constants).call)
        if HERE.allowed_cpus > 1:
            assert not self.subject.space(workload, HERE).contains(config.params)

    def test_no_configuration_repeats_the_default(self) -> None:
        for layout in ("contiguous", "transposed", "strided", "expanded"):
            workload = registry.parse_workload(f"linear m=6 n=33 k=65 weight_layout={layout}")
            for params in self.subject.space(workload, HERE):
                assert params["threads"] != HERE.allowed_cpus or params["weight"] not in ("as_given", layout)

    def test_the_default_takes_what_torch_takes(self) -> None:
        workload = registry.parse_workload("gemm m=6 n=33 k=65")
        call = self.subject.build(workload, {}, {}).call
        a, b = torch.randn(1, 6, 65), torch.randn(1, 65, 33)
        assert torch.equal(call(a, b), a @ b)


class TestOneDnnPacked(LinearContract):
    algorithm = "onednn_packed"


class TestMklPacked(LinearContract):
    algorithm = "mkl_packed"


class TestOpenBlas(LinearContract, GemmContract):
    algorithm = "openblas"

    def test_its_thread_count_is_put_back(self) -> None:
        workload = self.usable("linear m=60 n=133 k=65")
        library = openblas._library()
        before = library.get_num_threads()
        constants, inputs = registry.op("linear").constants(workload, 0), registry.op("linear").inputs(workload, 0)
        for params in self.subject.space(workload, HERE):
            self.subject.build(workload, params, constants).call(*inputs)
            assert library.get_num_threads() == before

    @pytest.mark.parametrize("package", ["numpy", "threadpoolctl"])
    def test_a_missing_package_is_named(self, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, package, None)
        openblas._library.cache_clear()
        try:
            reason = self.subject.refusal(registry.parse_workload("gemm m=6 n=33 k=65"), HERE)
        finally:
            openblas._library.cache_clear()
        assert package in reason


class TestFbgemmInt8(LinearContract):
    algorithm = "fbgemm_int8"

    def test_the_quantised_engine_is_put_back(self) -> None:
        workload = self.usable("linear m=6 n=33 k=65")
        before = torch.backends.quantized.engine
        for params in self.subject.space(workload, HERE):
            self.subject.build(workload, params, registry.op("linear").constants(workload, 0))
            assert torch.backends.quantized.engine == before

    def test_inputs_lose_a_bit_only_where_the_product_could_saturate(self) -> None:
        from dataclasses import replace

        workload = self.usable("linear m=6 n=33 k=65")
        for isa, reduced in ((("avx2",), True), (("avx2", "avx_vnni"), False), (("avx2", "avx512_vnni"), False)):
            space = self.subject.space(workload, replace(HERE, isa=isa))
            assert space.parameters["reduce_range"] == (reduced,)

    def test_large_same_signed_operands_do_not_saturate(self) -> None:
        workload = self.usable("linear m=4 n=32 k=64")
        weight, x = torch.ones(32, 64), torch.ones(4, 64)
        for params in self.subject.space(workload, HERE):
            call = self.built(workload, params, {"weight": weight, "bias": None}).call
            assert torch.allclose(call(x), torch.full((4, 32), 64.0), rtol=0.02)

    def test_tiny_and_zero_weights(self) -> None:
        workload = self.usable("linear m=4 n=3 k=8")
        weight = torch.tensor([[0.0], [1e-38], [1e-20]]).expand(3, 8)
        for params in self.subject.space(workload, HERE):
            result = self.built(workload, params, {"weight": weight, "bias": None}).call(torch.ones(4, 8))
            assert torch.allclose(result, torch.tensor([0.0, 0.0, 8e-20]), rtol=0.02, atol=1e-30)


class TestNumbaTiled(LinearContract, GemmContract):
    algorithm = "numba_tiled"

    @pytest.mark.parametrize("tile", [*numba_tiled.TILES_16, *numba_tiled.TILES_32])
    def test_every_tile(self, tile: str) -> None:
        workload = self.usable("linear m=13 n=131 k=33 bias=1 activation=relu")
        constants, inputs = registry.op("linear").constants(workload, 0), registry.op("linear").inputs(workload, 0)
        for threads, split in ((1, "n"), (2, "n"), (2, "m"), (5, "m")):
            params: dict[str, Any] = {"tile": tile, "threads": threads, "split": split}
            self.check(workload, constants, inputs, self.built(workload, params, constants).call)

    @pytest.mark.parametrize("split", ["m", "n"])
    def test_nothing_is_written_outside_the_result(self, split: str) -> None:
        run = numba_tiled._Run({"tile": "4x16", "split": split}, 2)
        for m, n in ((1, 1), (3, 15), (4, 16), (5, 17), (9, 33)):
            memory = torch.full((m * n + 256,), 7.0)
            result = memory[128 : 128 + m * n].view(m, n)
            weight = torch.ones(n, 3)
            run(torch.ones(m, 3), numba_tiled._pack(weight, 16), torch.zeros(-(-n // 16) * 16), result, False)
            assert torch.equal(result, torch.full((m, n), 3.0))
            assert (memory[:128] == 7).all()
            assert (memory[128 + m * n :] == 7).all()

    def test_without_a_pool_there_is_one_thread(self, monkeypatch: pytest.MonkeyPatch) -> None:
        workload = self.usable("linear m=60 n=133 k=65")
        monkeypatch.setattr(gomp, "parallel_address", lambda: 0)
        space = self.subject.space(workload, HERE)
        assert space.parameters["threads"] == (1,)
        constants, inputs = registry.op("linear").constants(workload, 0), registry.op("linear").inputs(workload, 0)
        params: dict[str, Any] = {"tile": "4x16", "threads": 2, "split": "n"}
        self.check(workload, constants, inputs, self.subject.build(workload, params, constants).call)


def test_limited_puts_the_count_back_after_an_error() -> None:
    before = torch.get_num_threads()
    seen: list[int] = []

    def fail(*_: Any) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        limited(fail, before + 1)()
    assert seen == [before + 1]
    assert torch.get_num_threads() == before
    assert limited(fail, 0) is fail


def test_two_kernels_in_two_threads() -> None:
    workload = registry.parse_workload("linear m=33 n=257 k=65 bias=1")
    assert isinstance(workload, Linear)
    op = registry.op("linear")
    wrong: list[str] = []
    for algorithm in registry.algorithms("linear"):
        if algorithm.name not in ("numba_tiled", "openblas", "torch") or algorithm.refusal(workload, HERE):
            continue
        params = next(iter(algorithm.space(workload, HERE)))
        constants = [op.constants(workload, seed) for seed in (0, 1)]
        inputs = [op.inputs(workload, seed) for seed in (0, 1)]
        kernels = [algorithm.build(workload, params, each).call for each in constants]
        expected = [kernel(*each) for kernel, each in zip(kernels, inputs, strict=True)]

        def repeat(index: int, kernels: Any = kernels, inputs: Any = inputs, expected: Any = expected) -> None:
            for _ in range(50):
                if not torch.equal(kernels[index](*inputs[index]), expected[index]):
                    wrong.append(str(index))

        workers = [threading.Thread(target=repeat, args=(index,)) for index in (0, 1)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
        assert not wrong, algorithm.name


def test_the_modules_load_without_torch() -> None:
    import subprocess

    names = ("framework", "onednn", "mkl", "openblas", "fbgemm", "numba_tiled")
    program = "import sys\n" + "".join(f"import autotune.kernels.{name}\n" for name in names)
    program += "from autotune import registry\n[registry.algorithm(n).revision() for n in ('torch', 'numba_tiled')]\n"
    program += "assert not {'torch', 'numpy', 'numba', 'typing', 'ctypes'} & set(sys.modules), 'heavy'\n"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
