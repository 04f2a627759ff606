"""Every CPU algorithm of attention, against the contract."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from random import Random

import pytest
import torch

from autotune import registry
from autotune.hardware.published import find
from autotune.kernels import compiler
from autotune.ops.attention import Attention
from tests.algorithm_contract import HERE
from tests.attention_contract import AttentionContract

needs_compiler = pytest.mark.skipif(bool(compiler.missing_reason()), reason=compiler.missing_reason())


class TestFramework(AttentionContract):
    algorithm = "torch"


class TestSdpa(AttentionContract):
    algorithm = "sdpa"

    def test_on_gpus_it_is_torchs_backends(self) -> None:
        h200 = find("h200").profile
        step = Attention(1, 32, 8, 1, 512, 64, dtype="bf16")
        for workload, backends in (
            (step, ("flash", "cudnn", "math")),
            (replace(step, kv_heads=32), ("flash", "cudnn", "efficient", "math")),
            (replace(step, q_len=8, causal=True), ("math",)),
            (replace(step, dtype="f32", kv_heads=32), ("efficient", "math")),
            (replace(step, dtype="f64"), ("math",)),
        ):
            assert self.subject.refusal(workload, h200) == ""
            assert dict(self.subject.space(workload, h200).parameters) == {"backend": backends}
        inputs = registry.op("attention").inputs(Attention(1, 4, 2, 5, 9, 16, True), 1)
        for backend in ("flash", "math"):  # those that torch has on a CPU, through the path of a GPU
            workload = Attention(1, 4, 2, 5, 9, 16, True)
            self.check(workload, {}, inputs, self.built(workload, {"backend": backend}, {}).call)


class TestMatmulAttention(AttentionContract):
    algorithm = "matmul_attention"


class TestStreamKv(AttentionContract):
    algorithm = "stream_kv"
    most_seeds = 1
    configs_per_workload = 1

    @needs_compiler
    @pytest.mark.parametrize("spec", ["heads=8 kv_heads=2 q_len=1", "heads=6 kv_heads=1 q_len=4 causal=1"])
    def test_configs_from_the_whole_space_are_right(self, spec: str) -> None:
        workload = self.usable(f"attention batch=1 {spec} kv_len=530 head_dim=32")
        space, op, random = self.subject.space(workload, HERE), registry.op("attention"), Random(7)
        inputs = op.inputs(workload, 1)
        for _ in range(5):
            params = space.sample(random)
            assert params is not None
            self.check(workload, {}, inputs, self.built(workload, params, {}).call)

    @needs_compiler
    def test_however_keys_are_split_the_result_is_the_same(self) -> None:
        """Rows that see nothing of a split, among them: the first queries of a causal one."""
        workload = Attention(1, 4, 1, 8, 200, 32, causal=True)
        inputs = registry.op("attention").inputs(workload, 1)
        for kv_len in (8, 9, 64, 65, 200):
            q, k, v = inputs[0], inputs[1][:, :, :kv_len], inputs[2][:, :, :kv_len]
            results = []
            for splits in (1, 2, 4):
                params = {"tile": 4, "block": 32, "prefetch": 0, "splits": splits, "vector": 16, "threads": 2}
                results.append(self.built(workload, params, {}).call(q, k, v))
            assert torch.allclose(results[0], results[1], atol=1e-5)
            assert torch.allclose(results[0], results[2], atol=1e-5)

    def test_a_prompt_is_not_for_it(self) -> None:
        workload = Attention(1, 32, 8, 128, 128, 128, causal=True)
        assert self.subject.refusal(workload, HERE) == "it streams keys past up to 128 queries of a group, not 512"

    @needs_compiler
    def test_it_stays_inside_its_operands(self) -> None:
        command = [sys.executable, "-m", "tests.guarded_ops", "stream_kv"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert ran.returncode == 0, ran.stderr[-2000:]
