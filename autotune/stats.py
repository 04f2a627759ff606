"""Statistics of paired times. Standard library only, deterministic.

Paired ratios are used because shared machines drift by 2x within minutes: a candidate's sample and its
baseline's neighbour see the same machine.
"""

from __future__ import annotations

import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BOOTSTRAP_RESAMPLES = 400


def median(values: Sequence[float]) -> float:
    """The middle value; the mean of the middle two for an even count. Raises IndexError when empty."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return float(ordered[middle]) if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """Median of `numerators[i] / denominators[i]`."""
    return median([a / b for a, b in zip(numerators, denominators, strict=True)])


def bootstrap_interval(
    numerators: Sequence[float], denominators: Sequence[float], level: float = 0.95
) -> tuple[float, float]:
    """Percentile bootstrap interval of `median_ratio` (Efron 1979), seeded by the data: equal data, equal interval."""
    from random import Random  # 3 ms of import that a lookup need not pay

    ratios = [a / b for a, b in zip(numerators, denominators, strict=True)]
    random = Random(f"{len(ratios)} {sum(numerators)} {sum(denominators)}")
    count = len(ratios)
    medians = sorted(median(random.choices(ratios, k=count)) for _ in range(BOOTSTRAP_RESAMPLES))
    tail = (1 - level) / 2
    low = medians[int(tail * BOOTSTRAP_RESAMPLES)]
    high = medians[min(BOOTSTRAP_RESAMPLES - 1, math.ceil((1 - tail) * BOOTSTRAP_RESAMPLES) - 1)]
    return low, high


def geometric_mean(values: Iterable[float]) -> float:
    """exp(mean(log)); 1.0 for no values."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else 1.0
