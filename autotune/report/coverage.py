"""Which suites are tuned on which machines, what that gained, and what is missing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autotune import suites
from autotune.report.served import Served
from autotune.types import HardwareProfile, Workload


@dataclass(frozen=True)
class SuiteCoverage:
    """One suite on one machine. Times are of one pass over the tuned layers, each as often as the model runs it."""

    suite: str
    hardware: HardwareProfile
    workloads: int
    missing: tuple[Workload, ...]
    default_ns: float
    served_ns: float

    @property
    def tuned(self) -> int:
        return self.workloads - len(self.missing)

    @property
    def speedup(self) -> float:
        """Of the tuned layers together; 1.0 where none is tuned."""
        return self.default_ns / self.served_ns if self.served_ns else 1.0


def coverage(found: Iterable[Served], machines: Iterable[HardwareProfile], names: Iterable[str]) -> list[SuiteCoverage]:
    """Each suite on each machine; of several environments the fastest result counts. Raises `InvalidInput`."""
    best: dict[tuple[str, str], Served] = {}
    for item in found:
        place = (item.workload.key, item.hardware.key)
        if place not in best or item.choice.expected_ns < best[place].choice.expected_ns:
            best[place] = item
    loaded = [suites.load(name) for name in names]
    out = []
    for profile in machines:
        for suite in loaded:
            layers = [layer for layer in suite.layers if not layer.workload.is_empty]
            known = [(best.get((layer.workload.key, profile.key)), layer.count) for layer in layers]
            missing = [layer.workload for layer, (item, _) in zip(layers, known, strict=True) if item is None]
            default_ns = sum(count * item.default_ns for item, count in known if item is not None)
            served_ns = sum(count * item.choice.expected_ns for item, count in known if item is not None)
            distinct = len({layer.workload for layer in layers})
            out.append(
                SuiteCoverage(suite.name, profile, distinct, tuple(dict.fromkeys(missing)), default_ns, served_ns)
            )
    return out
