"""The best search that can run here: `Surrogate` where the extra `serve` is installed, else `Tpe`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from autotune.search import Candidates, Strategy
from autotune.search.tpe import Tpe
from autotune.types import Config


def guided(candidates: Candidates, seeds: Sequence[Config] = (), seed: int = 0) -> Strategy:
    """A strategy for spaces too large to walk; `seeds` are tried first."""
    if find_spec("xgboost") is None:
        return Tpe(candidates, seeds, seed)
    from autotune.search.surrogate import Surrogate  # needs numpy, and xgboost once it fits

    return Surrogate(candidates, seeds, seed)
