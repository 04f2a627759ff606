"""The same workloads on two machines: do their winners agree, and what would copying one's winner to the other lose?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autotune.report.served import Served


@dataclass(frozen=True)
class Comparison:
    """A workload tuned on both. `loss`: how many times B's winner's time A's winner takes on B; None if never decided
    there."""

    a: Served
    b: Served
    loss: float | None

    @property
    def is_common(self) -> bool:
        return self.a.choice.config == self.b.choice.config


def compare(found: Iterable[Served], a: str, b: str) -> list[Comparison]:
    """Of two hardware keys, by spec; of several environments the fastest result counts."""
    best: dict[tuple[str, str], Served] = {}
    for item in found:
        place = (item.hardware.key, item.workload.key)
        if place not in best or item.choice.expected_ns < best[place].choice.expected_ns:
            best[place] = item
    both = sorted(key for machine, key in best if machine == a and (b, key) in best)
    pairs = [(best[a, key], best[b, key]) for key in both]
    return sorted((Comparison(x, y, _loss(x, y)) for x, y in pairs), key=lambda c: c.a.workload.spec)


def _loss(a: Served, b: Served) -> float | None:
    if a.choice.config == b.choice.config:
        return 1.0
    if a.choice.config == b.default:
        return b.choice.speedup
    copied = next((c.speedup for c in b.decided if c.config == a.choice.config), None)
    return None if copied is None else b.choice.speedup / copied
