"""Workers that pretend: other machines, and measurements that are invented and take a given time.

For trying a cluster out without tuning anything, for tests, and for `scripts/bench_cluster.py`. A simulated machine
calls itself so, in the profile and the environment: what it "measures" is never taken for another's.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace

from autotune import registry, settings
from autotune.canonical import content_key
from autotune.cluster.worker import Worker
from autotune.measure import Effort, Runner, Task
from autotune.search import Candidates
from autotune.space import SearchSpace
from autotune.types import Config, Environment, HardwareProfile, Measurement, Stage, Status, Workload

ENVIRONMENT = Environment("simulated")
PROFILE = HardwareProfile("cpu", "Simulated", "autotune", "x86_64", "simulated")
RESOURCE = "autotune_simulated_"
"""A node with the custom resource autotune_simulated_NAME pretends to be the machine NAME."""

SECONDS = "AUTOTUNE_SIMULATED_S"
"""Environment variable: how long a measurement takes; 0.05 s when unset."""

SPACE = SearchSpace({"tile": (1, 2, 4, 8, 16, 32), "threads": (1, 2)})


class SimulatedRunner(Runner):
    """Sleeps, then answers what the config's and the workload's keys say: the same everywhere and always."""

    def __init__(self, seconds: float) -> None:
        self.effort = Effort()
        self._seconds = seconds

    def measure(self, task: Task, config: Config, stage: Stage) -> Measurement:
        time.sleep(self._seconds)
        self.effort.time_s += self._seconds
        if config == registry.op(task.workload.op).default(task.workload):
            return Measurement(Status.OK, "", (1000,) * 10, (1000,) * 10, 0.0)
        draw = int(content_key([task.workload.key, config.key])[:8], 16)
        if draw % 10 == 0:
            return Measurement(Status.RUN_FAILED, "simulated failure")
        return Measurement(Status.OK, "", (500 + draw % 1000,) * 10, (1000,) * 10, 0.0)

    def close(self) -> None:
        pass


class SimulatedWorker(Worker):
    """A worker on a machine that does not exist."""

    def describe(self) -> tuple[HardwareProfile, Environment]:
        num_threads, _ = settings.thread_policy()  # as the environment of a real worker says it
        return replace(PROFILE, model=f"simulated {_pretended()}"), replace(ENVIRONMENT, num_threads=num_threads)

    def make_runner(self) -> Runner:
        return SimulatedRunner(float(os.environ.get(SECONDS, "0.05")))

    def candidates(self, workload: Workload, profile: HardwareProfile) -> Candidates:
        return candidates(workload, profile)


def candidates(workload: Workload, profile: HardwareProfile) -> Candidates:
    return Candidates({"simulated": SPACE}, {}, {"simulated": "1"}, registry.op(workload.op).default(workload))


def _pretended() -> str:
    import ray

    here = ray.get_runtime_context().get_node_id()
    (node,) = (node for node in ray.nodes() if node["NodeID"] == here)
    return next((name.removeprefix(RESOURCE) for name in node["Resources"] if name.startswith(RESOURCE)), "machine")
