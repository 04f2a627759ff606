"""Every valid config once, the authors' seeds first. For spaces that can be walked within the trials allowed."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.search import Candidates, Outcome, Strategy
from autotune.types import Config


class Exhaustive(Strategy):
    def __init__(self, candidates: Candidates) -> None:
        self._known: set[Config] = set()
        self._walk = _walk(candidates)
        self._left = sum(1 for _ in _walk(candidates))

    def planned(self) -> int:
        return self._left

    def ask(self, count: int) -> list[Config]:
        batch: list[Config] = []
        for config in self._walk:
            self._left -= 1
            if config not in self._known:
                self._known.add(config)
                batch.append(config)
                if len(batch) == count:
                    break
        return batch

    def tell(self, outcome: Outcome) -> None:
        self._known.add(outcome.config)


def _walk(candidates: Candidates) -> Iterator[Config]:
    yield from candidates.seeds()
    for algorithm in candidates.spaces:
        yield from candidates.configs(algorithm)
