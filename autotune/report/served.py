"""What a lookup would serve, for each workload, machine and environment of a database."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autotune import decide, registry
from autotune.errors import AutotuneError
from autotune.store import Store
from autotune.types import Choice, Config, Environment, HardwareProfile, Workload


@dataclass(frozen=True)
class Served:
    """`choice` wins under the op's own error budget; `decided` are all decided configs, fastest first."""

    workload: Workload
    hardware: HardwareProfile
    environment: Environment
    choice: Choice
    default: Config
    decided: tuple[Choice, ...]

    @property
    def identity(self) -> tuple[str, str, str]:
        return self.workload.key, self.hardware.key, self.environment.key

    @property
    def is_default(self) -> bool:
        return self.choice.config == self.default

    @property
    def default_ns(self) -> float:
        """The default's time of one call, by the pairs that decided."""
        return self.choice.expected_ns * self.choice.speedup

    @property
    def saved_ns(self) -> float:
        return self.default_ns - self.choice.expected_ns


def served(store: Store, op: str | None = None, hardware_key: str | None = None) -> Iterator[Served]:
    """In the order of the spec strings; workloads with nothing to serve are left out."""
    machines = [p for p in store.hardware() if hardware_key in (None, p.key)]
    systems = store.environments()
    for workload in sorted(store.workloads(), key=lambda w: w.spec):
        if op is not None and workload.op != op:
            continue
        try:
            kind = registry.op(workload.op)
        except AutotuneError:
            continue
        for profile in machines:
            default = kind.default(workload).on(profile.placement)
            for software in systems:
                choices = store.choices(workload.key, profile.key, software.key)
                best = decide.eligible(choices, default, kind.tolerance(workload))
                if best:
                    yield Served(workload, profile, software, best[0], default, choices)
