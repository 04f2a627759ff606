"""Every CPU algorithm of attention, against the contract."""

from __future__ import annotations

from tests.attention_contract import AttentionContract


class TestFramework(AttentionContract):
    algorithm = "torch"


class TestSdpa(AttentionContract):
    algorithm = "sdpa"


class TestMatmulAttention(AttentionContract):
    algorithm = "matmul_attention"


class TestStreamKv(AttentionContract):
    algorithm = "stream_kv"
    most_seeds = 1
    configs_per_workload = 1
