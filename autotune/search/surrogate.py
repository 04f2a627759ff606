"""Surrogate: model-guided search over the algorithms of a job; see explorer.py for how a config is chosen.

Seeds and small algorithms are tried first, as with `Tpe`. Results of other workloads or machines can be given as a
prior (see transfer.py). Needs numpy and xgboost, the extra `serve`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from autotune.search import Candidates, Outcome, Strategy
from autotune.search.explorer import Explorer, Habits, Row
from autotune.search.grid import Grid
from autotune.search.transfer import Source
from autotune.types import Config


class Surrogate(Strategy):
    def __init__(
        self,
        candidates: Candidates,
        seeds: Sequence[Config] = (),
        seed: int = 0,
        sources: Sequence[Sequence[Outcome]] = (),
        habits: Habits | None = None,
    ) -> None:
        """`seeds`: configs to try first. `sources`: what was measured of similar workloads or on other machines."""
        self._candidates = candidates
        self._asked: set[Config] = {candidates.default}
        self._first = deque(dict.fromkeys(candidates.first(seeds)))
        self._grid = Grid(candidates.large, seed)
        self._explorer = Explorer(self._grid, seed, habits, [self._source(outcomes) for outcomes in sources])
        if (row := self._row(candidates.default)) is not None:
            self._explorer.avoid(row)

    def planned(self) -> int:
        return len(self._first)

    @property
    def expected_gain(self) -> float:
        """Log speed-up the next config is expected to add; infinite before the first fit."""
        return self._explorer.expected_gain

    def ask(self, count: int) -> list[Config]:
        batch: list[Config] = []
        while self._first and len(batch) < count:
            config = self._first.popleft()
            if config not in self._asked:
                self._asked.add(config)
                batch.append(config)
                if (row := self._row(config)) is not None:
                    self._explorer.avoid(row)
        if self._grid.branches:
            for row in self._explorer.ask(count - len(batch)):
                config = self._candidates.config(*self._grid.params(row))
                self._asked.add(config)
                batch.append(config)
        return batch

    def tell(self, outcome: Outcome) -> None:
        self._asked.add(outcome.config)
        if (row := self._row(outcome.config)) is not None:
            self._explorer.tell(row, _log_time(outcome))

    def _row(self, config: Config) -> Row | None:
        return self._grid.row(config.algorithm, config.params)

    def _source(self, outcomes: Sequence[Outcome]) -> Source:
        told = ((self._row(outcome.config), _log_time(outcome)) for outcome in outcomes)
        return Source({row: value for row, value in told if row is not None})


def _log_time(outcome: Outcome) -> float | None:
    """Relative to the default; None for a failure or a speed-up that is none."""
    speedup = outcome.speedup
    return -math.log(speedup) if speedup is not None and speedup > 0 and math.isfinite(speedup) else None
