"""When to end a search: nothing is left of its budget, or nothing is to be expected of it."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class StopRule:
    """`trials` and `seconds` are budgets; `gain` is the log speed-up of the next pick that is not worth a trial.

    The expectation of one fit may be off, so `patience` of them in a row must be below `gain`.
    """

    trials: int | None = None
    seconds: float | None = None
    gain: float = 0.001
    patience: int = 8

    def reason(self, trials: int, seconds: float, expected: list[float]) -> str:
        """Why the search ends here; empty while it goes on. `expected`: gains expected before each pick so far."""
        if self.trials is not None and trials >= self.trials:
            return f"{trials} trials were allowed"
        if self.seconds is not None and seconds >= self.seconds:
            return f"{self.seconds:g} seconds were allowed"
        last = expected[-self.patience :]
        if len(last) == self.patience and all(math.isfinite(gain) and gain < self.gain for gain in last):
            return f"less than {self.gain:.1%} is expected of the next config"
        return ""
