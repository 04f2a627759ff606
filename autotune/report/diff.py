"""What differs between two databases in what they would serve."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from autotune.report.served import Served
from autotune.types import Choice


class Change(StrEnum):
    """From A to B."""

    ONLY_A = "only in A"
    ONLY_B = "only in B"
    WINNER = "another winner"
    TIED = "tied winners"  # another winner, but either database finds them equal within noise
    FASTER = "gains more"
    SLOWER = "gains less"
    SAME = "same"


@dataclass(frozen=True)
class Difference:
    """One workload, machine and environment; `a` or `b` is None where a database does not know it."""

    change: Change
    a: Served | None
    b: Served | None

    @property
    def either(self) -> Served:
        found = self.a or self.b
        assert found is not None
        return found


def differences(a: Iterable[Served], b: Iterable[Served]) -> list[Difference]:
    """Every identity that either knows, by spec."""
    left, right = ({item.identity: item for item in side} for side in (a, b))
    found = [_difference(left.get(key), right.get(key)) for key in left.keys() | right.keys()]
    return sorted(found, key=lambda d: (d.either.workload.spec, d.either.identity))


def _difference(a: Served | None, b: Served | None) -> Difference:
    if a is None or b is None:
        return Difference(Change.ONLY_B if a is None else Change.ONLY_A, a, b)
    if a.choice.config != b.choice.config:
        tied = _ties(a, b.choice) or _ties(b, a.choice)
        return Difference(Change.TIED if tied else Change.WINNER, a, b)
    if overlap(a.choice, b.choice):
        return Difference(Change.SAME, a, b)
    return Difference(Change.FASTER if b.choice.speedup > a.choice.speedup else Change.SLOWER, a, b)


def _ties(own: Served, other: Choice) -> bool:
    """Whether a database that chose otherwise measured the other's winner too, and as fast within noise."""
    if other.config == own.default:
        return own.choice.interval[0] <= 1.0
    return any(c.config == other.config and overlap(c, own.choice) for c in own.decided)


def overlap(one: Choice, other: Choice) -> bool:
    """Whether the 95 % intervals of their speed-ups have a point in common."""
    return one.interval[0] <= other.interval[1] and other.interval[0] <= one.interval[1]
