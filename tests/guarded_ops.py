"""Runs the kernels of attention and embedding bags on operands between pages that no one may touch.

python -m tests.guarded_ops ALGORITHM: dies of a signal where the kernel reads or writes outside its operands.
"""

from __future__ import annotations

import ctypes
import sys
from random import Random
from typing import Any

import torch

from autotune import hardware, registry
from autotune.kernels import compiler, fused_bag, stream_kv
from autotune.ops import relative_error
from autotune.ops.attention import Attention
from autotune.ops.embedding_bag import EmbeddingBag, split
from autotune.types import Workload
from tests.guarded import between_guards, copy_of

ATTENTION = (
    "batch=2 heads=4 kv_heads=2 q_len=1 kv_len=67 head_dim=16",
    "batch=1 heads=5 kv_heads=1 q_len=3 kv_len=5 head_dim=48 causal=1",
    "batch=1 heads=2 kv_heads=2 q_len=1 kv_len=1 head_dim=64 layout=bshd",
    "batch=1 heads=4 kv_heads=2 q_len=2 kv_len=130 head_dim=32 dtype=bf16",
)
BAGS = (
    "rows=9 dim=19 bags=7 pooling=3",
    "rows=9 dim=3 bags=7 pooling=3 lengths=ragged weighted=1",
    "rows=5 dim=130 bags=3 pooling=4 mode=max lengths=ragged index=i32",
    "rows=9 dim=33 bags=2 pooling=9 mode=mean dtype=f16",
)


def as_stored(tensor: torch.Tensor) -> torch.Tensor:
    """The dense memory of a [b, h, s, d] tensor in either layout."""
    return tensor if tensor.is_contiguous() else tensor.transpose(1, 2)


def attend(workload: Attention, params: dict[str, Any], at_end: bool) -> torch.Tensor:
    library = stream_kv._load(compiler.shared_library(stream_kv.SOURCE, stream_kv._defines(workload, params)))
    inputs = registry.op("attention").inputs(workload, 1)
    plan = stream_kv._plan(workload, params)
    strides = [stride for t in inputs for stride in t.stride()[:3]]
    sizes = stream_kv._Call(workload.batch, workload.q_len, workload.kv_len, *strides)
    y = torch.empty((workload.batch, workload.q_len, workload.heads, workload.head_dim), dtype=inputs[0].dtype)
    result = between_guards(y.nbytes, at_end)
    assert library.attend(ctypes.addressof(plan), sizes, *(copy_of(as_stored(t), at_end) for t in inputs), result) == 0
    ctypes.memmove(y.data_ptr(), result, y.nbytes)
    return y.transpose(1, 2)


def embed(workload: EmbeddingBag, params: dict[str, Any], at_end: bool) -> torch.Tensor:
    library = fused_bag._load(compiler.shared_library(fused_bag.SOURCE, fused_bag._defines(workload, params)))
    op = registry.op("embedding_bag")
    table, inputs = op.constants(workload, 1)["weight"], op.inputs(workload, 1)
    assert table is not None
    plan = fused_bag._plan(workload, params, table)
    plan.table = copy_of(table, at_end)
    indices, offsets, weights = split(workload, inputs)
    y = torch.empty((workload.bags, workload.dim), dtype=table.dtype)
    result = between_guards(y.nbytes, at_end)
    rest = [0 if t is None else copy_of(t, at_end) for t in (offsets, weights)]
    size = (workload.bags, indices.numel(), workload.pooling)
    assert library.embed(ctypes.addressof(plan), copy_of(indices, at_end), *rest, result, *size) == 0
    ctypes.memmove(y.data_ptr(), result, y.nbytes)
    bad = indices.clone()
    for at, value in ((-1, workload.rows), (0, -1), (bad.numel() // 2, 2**30)):
        bad.view(-1)[at] = value
        code = library.embed(ctypes.addressof(plan), copy_of(bad, at_end), *rest, result, *size)
        assert code == fused_bag.BAD_INDEX
    return y


def main(algorithm: str) -> None:
    of_attention = algorithm == "stream_kv"
    for spec in ATTENTION if of_attention else BAGS:
        workload: Workload = registry.parse_workload(f"{'attention' if of_attention else 'embedding_bag'} {spec}")
        op = registry.op(workload.op)
        space = registry.algorithm(algorithm).space(workload, hardware.detect())
        drawn = space.sample(Random(spec))
        assert drawn is not None
        for params in (dict(space.seeds[0]), drawn):
            for at_end in (True, False):
                if isinstance(workload, Attention):
                    y = attend(workload, params, at_end)
                else:
                    assert isinstance(workload, EmbeddingBag)
                    y = embed(workload, params, at_end)
                exact = op.reference(workload, op.constants(workload, 1), op.inputs(workload, 1))
                assert relative_error(y, exact, 0.1) <= op.tolerance(workload), (workload.spec, params)


if __name__ == "__main__":
    main(*sys.argv[1:])
