"""Which row of a grid to measure next: a space-filling start, then the largest expected improvement.

Two surrogates are averaged, a Gaussian process and boosted trees, fitted to compressed log times: what is far
worse than the median counts little more than what is worse. Failures take the worst value, and a kernel estimate of the
chance that a row works multiplies its expected improvement. Every few picks one is made without the surrogates' mean:
a change of the best row, or any row, so that a wrong model cannot hold the search.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.search.gp import GaussianProcess
from autotune.search.grid import Floats, Grid, Rows
from autotune.search.transfer import Prior, Source
from autotune.search.trees import Trees

Row = tuple[int, ...]


@dataclass(frozen=True)
class Habits:
    """Settings, chosen on recorded spaces; see docs/search.md."""

    start: int = 10  # space-filling rows
    foretold: int = 6  # rows that a prior finds best, tried first
    pool: int = 6000  # rows the surrogates judge per fit, beside the neighbours of the best
    centres: int = 4  # best rows whose neighbours are judged
    fitted: int = 220  # results the Gaussian process is fitted to, at most
    trees: float = 0.5  # weight of the trees' mean beside the Gaussian process's
    stray: int = 12  # every so many picks, a random move instead
    refit: int = 40  # refit when 1/refit more is known
    greedy: int = 2  # every so many fits, the best by the trees' mean comes first; 0 never
    plain: int = 2  # of four picks in a row, by trees that see no interactions


class Explorer:
    """`ask` for rows, `tell` their log time (None: failed). Never asks a row twice or one told before."""

    def __init__(self, grid: Grid, seed: int = 0, habits: Habits | None = None, sources: Sequence[Source] = ()) -> None:
        self.grid = grid
        self.habits = habits or Habits()
        self._random = np.random.default_rng(seed)
        self._seed = seed
        self.told: dict[Row, float | None] = {}
        self._taken: set[Row] = set()
        self._start: list[Row] | None = None
        self._queue: list[Row] = []
        self._fitted_at = 0
        self._greedy: Floats = np.zeros(0)
        self._picks = 0
        self._process: GaussianProcess | None = None
        self._prior = Prior(grid, sources, seed)
        self._promising: list[Row] | None = None
        self.expected_gain = math.inf  # of the best pick, in log time, at the last fit

    def tell(self, row: Row, value: float | None) -> None:
        if value is not None and not math.isfinite(value):
            value = None
        self.told[row] = value
        self._taken.add(row)

    def avoid(self, row: Row) -> None:
        """Never asks this row; its outcome may be told later, or never."""
        self._taken.add(row)

    def ask(self, count: int) -> list[Row]:
        """Fewer than `count` when no row is left, or none could be found."""
        picked: list[Row] = []
        while len(picked) < count:
            row = self._next()
            if row is None:
                break
            self._taken.add(row)
            picked.append(row)
        return picked

    def _next(self) -> Row | None:
        if self._start is None:
            self._start = self._space_filling()
        if self._prior and (row := self._foretold()) is not None:
            return row
        while self._start and len(self.told) < 2 * self.habits.start:
            row = self._start.pop(0)
            if row not in self._taken:
                return row
        self._picks += 1
        good = [row for row, value in self.told.items() if value is not None]
        if len(good) < 2:
            return self._any()
        if self._picks % self.habits.stray == 0 and (row := self._stray()) is not None:
            return row
        self._queue = [row for row in self._queue if row not in self._taken]
        if not self._queue or len(self.told) - self._fitted_at >= max(1, len(self.told) // self.habits.refit):
            self._queue = self._ranked()
        return self._queue.pop(0) if self._queue else self._any()

    def _foretold(self) -> Row | None:
        """One of the rows that the prior finds best, for as long as it is believed; every third pick is not its."""
        if self._promising is None:
            self._promising = _distinct(self._prior.best(300), self.habits.foretold)
        known, y, _ = self._known()
        if len(known):
            self._prior.judge(known, y)
        if not self._prior or len(self._taken) % 3 == 2:
            return None
        while self._promising:
            row = self._promising.pop(0)
            if row not in self._taken:
                return row
        return None

    def _known(self) -> tuple[Rows, Floats, np.ndarray]:
        """What was told: rows, compressed log times, and which worked."""
        rows = np.asarray(list(self.told), dtype=np.int16).reshape(-1, self.grid.width)
        if all(value is None for value in self.told.values()):
            return rows[:0], np.empty(0), np.empty(0, bool)
        return (rows, *_compressed(self.told.values()))

    # Without surrogates

    def _space_filling(self) -> list[Row]:
        """Greedy maximin over a sample: each next row is the one farthest from those before."""
        pool = self.grid.sample(400)
        if not len(pool):
            return []
        places = self.grid.features(pool)[0]
        chosen = [0]
        distance = np.abs(places - places[0]).sum(1)
        while len(chosen) < min(self.habits.start, len(pool)):
            noisy = distance * self._random.uniform(0.8, 1.0, len(pool))
            chosen.append(int(noisy.argmax()))
            distance = np.minimum(distance, np.abs(places - places[chosen[-1]]).sum(1))
        return [_row(pool[i]) for i in chosen]

    def _any(self) -> Row | None:
        if self.grid.rows is not None and len(self._taken) * 2 > len(self.grid.rows):
            left = self._untaken(self.grid.rows)
        else:
            left = self._untaken(self.grid.sample(64))
        if not left and self.told:  # rejection found none: move from what is known to be valid
            known = list(self.told)
            centres = [known[int(i)] for i in self._random.permutation(len(known))[:8]]
            left = [row for centre in centres for row in self._untaken(self.grid.neighbours(centre, 2))]
        return left[int(self._random.integers(len(left)))] if left else None

    def _stray(self) -> Row | None:
        """A neighbour of one of the best rows, or any row."""
        if self._random.random() < 0.5:
            return self._any()
        best = self.best(self.habits.centres)
        near = self._untaken(self.grid.neighbours(best[int(self._random.integers(len(best)))]))
        return near[int(self._random.integers(len(near)))] if near else self._any()

    def best(self, count: int) -> list[Row]:
        good = [(value, row) for row, value in self.told.items() if value is not None]
        return [row for _, row in sorted(good)[:count]]

    def _untaken(self, rows: Rows) -> list[Row]:
        return [row for row in map(_row, rows) if row not in self._taken]

    # With them

    def _pool(self) -> Rows:
        rows = self.grid.rows
        if rows is None or len(rows) > self.habits.pool:
            sampled = self.grid.sample(self.habits.pool if rows is not None else self.habits.pool // 6)
            near = [self.grid.neighbours(centre, 2) for centre in self.best(self.habits.centres)]
            rows = np.unique(np.concatenate([sampled, *near]), axis=0)
        kept = [i for i, row in enumerate(map(tuple, rows.tolist())) if row not in self._taken]
        return rows[kept]

    def _ranked(self) -> list[Row]:
        """Rows by falling expected improvement, distinct in more than one parameter where possible."""
        self._fitted_at = len(self.told)
        pool = self._pool()
        if not len(pool):
            return []
        known, y, works = self._known()
        places, numbers = self.grid.features(np.concatenate([known, pool]))
        x, x_pool = places[: len(known)], places[len(known) :]
        seen, unseen = numbers[: len(known)], numbers[len(known) :]
        shift, shift_pool = self._shift(known, seen, unseen, y)
        mean, deviation, chance = self._judge(x, seen, x_pool, unseen, y - shift, works)
        mean, self._greedy = mean + shift_pool, self._greedy + shift_pool
        gain = _expected_improvement(mean, deviation, float(y[works].min())) * chance
        order = np.argsort(-gain, kind="stable")[:200]
        self.expected_gain = float(gain[order[0]]) * self._unit()
        wanted = max(8, len(self.told) // self.habits.refit)
        improving = _distinct(pool[order], wanted)
        if not self.habits.greedy:
            return improving
        likely = _distinct(pool[np.argsort(self._greedy + (1 - chance), kind="stable")[:200]], wanted)
        first, second = (likely, improving) if self._picks % self.habits.greedy == 0 else (improving, likely)
        return list(dict.fromkeys(row for pair in zip(first, second, strict=False) for row in pair))

    def _unit(self) -> float:
        """Log time that a compressed step from the best towards the median stands for."""
        good = [value for value in self.told.values() if value is not None]
        return max(float(np.median(good)) - min(good), 1e-9)

    def _shift(self, known: Rows, seen: Floats, unseen: Floats, y: Floats) -> tuple[Floats, Floats]:
        """What the prior says of known rows and of others, in units of `y`."""
        if not self._prior:
            return np.zeros(len(seen)), np.zeros(len(unseen))
        self._prior.judge(known, y)
        foretold = self._prior.predict(np.concatenate([seen, unseen]))
        here = foretold[: len(seen)]
        slope = float(np.cov(here, y)[0, 1] / max(float(np.var(here)), 1e-9)) if len(y) > 2 else 0.0
        scaled = foretold * max(0.0, slope) * (max(self._prior.weights) if self._prior else 0.0)
        return scaled[: len(seen)], scaled[len(seen) :]

    def _judge(
        self, x: Floats, numbers: Floats, x_pool: Floats, numbers_pool: Floats, y: Floats, works: np.ndarray
    ) -> tuple[Floats, Floats, Floats]:
        kept = self._kept(y)
        self._process = self._process or GaussianProcess(x.shape[1])
        self._process.fit(x[kept], y[kept])
        mean, deviation = self._process.predict(x_pool)
        chance = np.ones(len(x_pool))
        if not works.all():
            near = self._process.correlations(x_pool) ** 4
            prior = (works.sum() + 1) / (len(works) + 2)
            chance = (near @ works[kept] + 0.2 * prior) / (near.sum(1) + 0.2)
        self._greedy = mean
        if self.habits.trees > 0:
            trees = Trees(self._seed + len(y))
            if self._picks % 4 < self.habits.plain:
                numbers, numbers_pool = numbers[:, : self.grid.plain], numbers_pool[:, : self.grid.plain]
            trees.fit(numbers, y)
            self._greedy = trees.predict(numbers_pool)
            mean = (1 - self.habits.trees) * mean + self.habits.trees * self._greedy
        return mean, deviation, chance

    def _kept(self, y: Floats) -> np.ndarray:
        """Which results the Gaussian process sees: the best half, and a sample of the others."""
        limit = self.habits.fitted
        if len(y) <= limit:
            return np.arange(len(y))
        order = np.argsort(y, kind="stable")
        others = self._random.permutation(order[limit // 2 :])[: limit - limit // 2]
        return np.sort(np.concatenate([order[: limit // 2], others]))


def _compressed(values: Iterable[float | None]) -> tuple[Floats, np.ndarray]:
    """Log times as steps from the best to the median, logarithmic beyond it; failures are as bad as the worst."""
    raw = np.asarray([math.nan if value is None else value for value in values])
    works = np.isfinite(raw)
    best, middle = float(np.min(raw[works])), float(np.median(raw[works]))
    z = (raw - best) / max(middle - best, 1e-9)
    z = np.where(z > 1, 1 + np.log(np.maximum(z, 1)), z)
    return np.where(works, z, np.max(z[works])), works


def _expected_improvement(mean: Floats, deviation: Floats, best: float) -> Floats:
    """Jones et al., 1998, for minimising; erf by a logistic that is within 0.01."""
    gap = (best - mean) / deviation
    density = np.exp(-0.5 * gap * gap) / math.sqrt(2 * math.pi)
    cumulative = 1 / (1 + np.exp(-1.702 * np.clip(gap, -30, 30)))
    result: Floats = np.maximum(deviation * (gap * cumulative + density), 0.0)
    return result


def _distinct(rows: Rows, count: int) -> list[Row]:
    chosen: list[Row] = []
    for least in (2, 1):
        for row in rows:
            if len(chosen) == count:
                break
            if all((row != np.asarray(other)).sum() >= least for other in chosen):
                chosen.append(_row(row))
    return chosen


def _row(row: np.ndarray) -> Row:
    return tuple(row.tolist())
