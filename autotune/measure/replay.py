"""ReplayRunner: recorded results as a fake device, to compare searches without measuring anything.

It answers with the measurement that was recorded and charges what it took: `effort` grows by the recorded
building and timing, so that a budget in seconds can be replayed too. Nothing is invented: a config that was not
recorded is NOT_APPLICABLE.
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune.errors import InvalidInput
from autotune.measure import Effort, Runner, Task
from autotune.measure.recorded import RecordedSpace
from autotune.store import Store
from autotune.types import Config, Measurement, Stage, Status

Recordings = Mapping[tuple[str, Stage], Mapping[Config, Measurement]]


class ReplayRunner(Runner):
    """`recordings`: (workload key, stage) → config → measurement; a workload key of "" stands for any workload."""

    def __init__(self, recordings: Recordings, bench_s: Mapping[Config, float] | None = None) -> None:
        """`bench_s`: seconds that benchmarking took, for configs whose times do not tell."""
        self.effort = Effort()
        self._recordings = recordings
        self._bench_s = bench_s or {}

    @classmethod
    def of_space(cls, space: RecordedSpace) -> ReplayRunner:
        """One recorded space, whatever the task's workload and the stage."""
        return cls({("", stage): space.results for stage in Stage}, space.bench_s)

    @classmethod
    def of_store(
        cls, store: Store, hardware_key: str | None = None, environment_key: str | None = None
    ) -> ReplayRunner:
        """What a store holds for a machine; of repeated measurements the last one counts.

        Raises `InvalidInput` when the keys leave more than one machine or environment: their times do not mix.
        """
        recordings: dict[tuple[str, Stage], dict[Config, Measurement]] = {}
        machines = set()
        for record in store.records(None, hardware_key, environment_key):
            machines.add((record.hardware.key, record.environment.key))
            known = recordings.setdefault((record.workload.key, record.stage), {})
            known[record.config] = record.measurement
        if len(machines) > 1:
            raise InvalidInput(f"the database holds results of {len(machines)} machines or environments: choose one")
        return cls(recordings)

    def measure(self, task: Task, config: Config, stage: Stage) -> Measurement:
        known = self._recordings.get((task.workload.key, stage)) or self._recordings.get(("", stage)) or {}
        found = known.get(config)
        if found is None:
            return Measurement(Status.NOT_APPLICABLE, f"{config} was not recorded")
        self.effort.build_s += (found.build_ns + found.prepare_ns) * 1e-9
        timed_s = (sum(found.times_ns) + sum(found.baseline_ns)) * 1e-9
        self.effort.time_s += self._bench_s.get(config, timed_s)
        return found

    def close(self) -> None:
        pass
