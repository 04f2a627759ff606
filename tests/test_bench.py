"""What a measuring process times with: operands in turn where their values decide what caches hold."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from autotune import hardware, registry
from autotune.kernels import Algorithm, Built, Constants
from autotune.measure import Task
from autotune.measure.bench import Bench
from autotune.measure.worker import _room_bytes
from autotune.ops.embedding_bag import EmbeddingBag
from autotune.space import Params, SearchSpace
from autotune.types import BenchmarkSpec, Config, HardwareProfile, Stage, Status, Workload

QUICK = replace(BenchmarkSpec(), screen_pairs=6, min_sample_ns=1)


def test_lookups_go_through_other_rows_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[int]] = {"candidate": [], "default": []}

    class Watched(Algorithm):
        name, ops = "torch", ("embedding_bag",)

        def space(self, workload: Workload, hardware: HardwareProfile) -> SearchSpace:
            return SearchSpace({})

        def build(self, workload: Workload, params: Params, constants: Constants) -> Built:
            plain = registry.op(workload.op).plain(workload, dict(constants))
            calls = seen["candidate" if params else "default"]

            def call(indices: torch.Tensor) -> torch.Tensor:
                calls.append(indices.data_ptr())
                return plain(indices)

            return Built(call)

    watched = Watched()
    monkeypatch.setattr(registry, "algorithm", lambda _: watched)
    workload = EmbeddingBag(200_000, 64, 512, 16)
    sets = registry.op("embedding_bag").input_sets(workload)
    assert 4 < sets < 100
    bench = Bench(Task(workload, hardware.detect(), QUICK))
    assert bench.measure(Config("torch", {"other": 1}), Stage.SCREEN).status is Status.OK
    for calls in seen.values():
        timed = calls[-6:]
        assert len(set(timed)) == 6
    assert not set(seen["candidate"][-6:]) & set(seen["default"][-6:]), "neither warms the other's rows"


def test_memory_is_limited_by_what_a_call_reads_not_by_the_whole_table() -> None:
    workload = EmbeddingBag(2**20, 128, 8, 1)
    assert workload.operand_bytes < _room_bytes(workload) < 1.01 * workload.operand_bytes
    product = registry.parse_workload("gemm m=64 n=64 k=64")
    assert _room_bytes(product) == 12 * product.bytes
