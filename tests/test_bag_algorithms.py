"""Every CPU algorithm of embedding bags, against the contract."""

from __future__ import annotations

from tests.bag_contract import BagContract


class TestFramework(BagContract):
    algorithm = "torch"


class TestGatherReduce(BagContract):
    algorithm = "gather_reduce"


class TestFusedBag(BagContract):
    algorithm = "fused_bag"
    most_seeds = 1
    configs_per_workload = 1
