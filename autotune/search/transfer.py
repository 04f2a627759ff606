"""Results from elsewhere as a prior: other hardware, or other shapes, in the same space.

Each source becomes trees that predict its log times. A source counts as far as its predictions rank what is
measured here (Spearman's ρ): its weight is 0 below ρ = 0.2 and grows to 1. The weighted prediction, scaled by
regression to what is seen here, is the mean from which the surrogates learn the difference: a source that
disagrees weighs nothing, and the search is the cold one. Weights are renewed with every fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.search.grid import Floats, Grid, Rows
from autotune.search.trees import Trees

LEAST_AGREEMENT = 0.2

JUDGED_FROM = 5
"""Results here before a source is judged; until then it is trusted."""

LARGEST_SOURCE = 4000
FEWEST = 4
"""Results that a source needs to count at all."""


@dataclass(frozen=True)
class Source:
    """What another search found: row → log time, None for a failure."""

    values: Mapping[tuple[int, ...], float | None]


class Prior:
    """The sources of one search, and how far each is to be believed."""

    def __init__(self, grid: Grid, sources: Sequence[Source], seed: int = 0) -> None:
        self._grid = grid
        self._models: list[Trees] = []
        for source in sources:
            worked = sorted((row, value) for row, value in source.values.items() if value is not None)
            if len(worked) < FEWEST:
                continue
            worst = max(value for _, value in worked)
            known = sorted((row, worst if value is None else value) for row, value in source.values.items())
            if len(known) > LARGEST_SOURCE:
                chosen = np.random.default_rng(seed).permutation(len(known))[:LARGEST_SOURCE]
                known = [known[int(i)] for i in chosen]
            y = np.asarray([value for _, value in known])
            y = np.minimum(y, np.median(y) + (np.median(y) - y.min()))  # how bad the bad are does not matter
            model = Trees(seed, rounds=200)
            model.fit(grid.features(np.asarray([row for row, _ in known], np.int16))[1], y)
            self._models.append(model)
        self.weights = [1.0] * len(self._models)

    def __bool__(self) -> bool:
        return any(weight > 0 for weight in self.weights)

    def judge(self, rows: Rows, y: Floats) -> None:
        """Renews the weights by what was measured here."""
        if len(y) >= JUDGED_FROM and self._models:
            numbers = self._grid.features(rows)[1]
            agreements = [_spearman(model.predict(numbers), y) for model in self._models]
            self.weights = [max(0.0, (r - LEAST_AGREEMENT) / (1 - LEAST_AGREEMENT)) for r in agreements]

    def predict(self, numbers: Floats) -> Floats:
        """Weighted mean of the sources' predictions, each with mean 0 and deviation 1 over these rows."""
        total = np.zeros(len(numbers))
        for model, weight in zip(self._models, self.weights, strict=True):
            if weight > 0:
                predicted = model.predict(numbers)
                total += weight * (predicted - predicted.mean()) / max(float(predicted.std()), 1e-9)
        return total / max(sum(self.weights), 1e-9)

    def best(self, count: int) -> Rows:
        """The rows that look best, over a sample of large spaces, distinct in at least two parameters first."""
        pool = self._grid.rows if self._grid.rows is not None else self._grid.sample(4000)
        if not len(pool):
            return pool
        ranked = pool[np.argsort(self.predict(self._grid.features(pool)[1]), kind="stable")]
        return ranked[:count]


def _spearman(a: Floats, b: Floats) -> float:
    """Rank correlation, ties by position; 0 where one is constant."""
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    ranks = [np.argsort(np.argsort(values, kind="stable"), kind="stable") for values in (a, b)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])
