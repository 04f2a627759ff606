"""Portfolio: several strategies share one job, and the trials go to those that find something.

Every outcome is told to every member, so none pays for having waited. The next member is the one of largest upper
bound on its credit (UCB1, Auer et al., 2002), where credit is the share of a member's recent proposals that came within
a few per cent of the best known, or beat it. A member that is out of ideas leaves. With k members the best of them gets
at least its share of the trials, and in time nearly all: the mix cannot be much worse than it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from autotune.search import Outcome, Strategy
from autotune.types import Config

CLOSE = 0.97
"""A proposal earns credit when its speed-up is at least this much of the best before it."""

REMEMBERED = 24
"""Proposals of a member that count."""

CURIOSITY = 0.35


class Portfolio(Strategy):
    def __init__(self, members: Sequence[Strategy]) -> None:
        self._members = list(members)
        self._credit: list[deque[float]] = [deque(maxlen=REMEMBERED) for _ in members]
        self._asked: list[int] = [0] * len(members)
        self._pending: dict[Config, int] = {}
        self._proposed: set[Config] = set()
        self._done: set[int] = set()
        self._best = 0.0

    def planned(self) -> int:
        return max((member.planned() for member in self._members), default=0)

    def ask(self, count: int) -> list[Config]:
        batch: list[Config] = []
        while len(batch) < count and len(self._done) < len(self._members):
            number = self._choose()
            found = self._members[number].ask(1)
            if not found:
                self._done.add(number)
            for config in found:
                if config not in self._proposed:  # two members may propose the same before either is told
                    self._proposed.add(config)
                    self._pending[config] = number
                    self._asked[number] += 1
                    batch.append(config)
        return batch

    def tell(self, outcome: Outcome) -> None:
        self._proposed.add(outcome.config)
        for member in self._members:
            member.tell(outcome)
        speedup = outcome.speedup or 0.0
        number = self._pending.pop(outcome.config, None)
        if number is not None:
            self._credit[number].append(
                1.0 if speedup > self._best else 0.5 if speedup >= CLOSE * self._best > 0 else 0.0
            )
        if math.isfinite(speedup):
            self._best = max(self._best, speedup)

    def _choose(self) -> int:
        total = sum(self._asked) + 1

        def bound(number: int) -> float:
            credit, asked = self._credit[number], self._asked[number]
            if not asked:
                return math.inf
            earned = sum(credit) / len(credit) if credit else 0.0
            return earned + CURIOSITY * math.sqrt(math.log(total) / min(asked, REMEMBERED))

        left = [number for number in range(len(self._members)) if number not in self._done]
        return max(left, key=lambda number: (bound(number), -number))
