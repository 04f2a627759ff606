"""Every valid config once, the authors' seeds first. For spaces that can be walked within the trials allowed."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.search import Candidates, Outcome, Strategy
from autotune.types import Config


class Exhaustive(Strategy):
    def __init__(self, candidates: Candidates) -> None:
        self._known: set[Config] = set()
        self._walk = _walk(candidates)

    def ask(self, count: int) -> list[Config]:
        batch: list[Config] = []
        for config in self._walk:
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
