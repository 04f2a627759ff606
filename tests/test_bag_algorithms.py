"""Every CPU algorithm of embedding bags, against the contract."""

from __future__ import annotations

import subprocess
import sys
from random import Random

import pytest
import torch

from autotune import registry
from autotune.kernels import compiler
from tests.algorithm_contract import HERE
from tests.bag_contract import BagContract

needs_compiler = pytest.mark.skipif(bool(compiler.missing_reason()), reason=compiler.missing_reason())


class TestFramework(BagContract):
    algorithm = "torch"


class TestGatherReduce(BagContract):
    algorithm = "gather_reduce"


class TestFusedBag(BagContract):
    algorithm = "fused_bag"
    most_seeds = 1
    configs_per_workload = 1

    @needs_compiler
    @pytest.mark.parametrize(
        "spec", ["dim=100 lengths=ragged weighted=1", "dim=260 mode=max", "dim=64 mode=mean dtype=bf16"]
    )
    def test_configs_from_the_whole_space_are_right(self, spec: str) -> None:
        workload = self.usable(f"embedding_bag rows=40 bags=300 pooling=9 {spec}")
        space, op, random = self.subject.space(workload, HERE), registry.op("embedding_bag"), Random(7)
        constants, inputs = op.constants(workload, 1), op.inputs(workload, 1)
        for _ in range(4):
            params = space.sample(random)
            assert params is not None
            self.check(workload, constants, inputs, self.built(workload, params, constants).call)

    @needs_compiler
    @pytest.mark.parametrize("offsets", [[1, 2], [0, 5], [0, 3, 2], [0, -1, 2], [-1], [0, 2**40]])
    def test_offsets_that_are_none_are_refused(self, offsets: list[int]) -> None:
        workload = self.usable("embedding_bag rows=9 dim=8 bags=3 pooling=1 lengths=ragged")
        constants = registry.op("embedding_bag").constants(workload, 1)
        for params in self.configs(workload):
            call = self.built(workload, params, constants).call
            with pytest.raises(IndexError, match="offsets begin with 0, do not decrease"):
                call(torch.tensor([1, 2, 3]), torch.tensor(offsets))

    @needs_compiler
    def test_the_table_is_not_copied_where_it_can_be_read(self) -> None:
        workload = self.usable("embedding_bag rows=90 dim=8 bags=3 pooling=1")
        table, (indices,) = torch.randn(90, 16), registry.op("embedding_bag").inputs(workload, 1)
        params = self.configs(workload)[0]
        strided = self.built(workload, params, {"weight": table[:, :8]})
        assert strided.workspace_bytes == 0
        assert self.built(workload, params, {"weight": table[:, ::2]}).workspace_bytes == 90 * 8 * 4
        table[:] = 1.0
        assert (strided.call(indices) == 1).all(), "it is the table itself"

    @needs_compiler
    def test_it_stays_inside_its_operands(self) -> None:
        command = [sys.executable, "-m", "tests.guarded_ops", "fused_bag"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert ran.returncode == 0, ran.stderr[-2000:]
