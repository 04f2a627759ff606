"""Boosted trees over numbers of a config: sharp edges and interactions that a smooth kernel misses."""

from __future__ import annotations

from typing import Any

import numpy as np

from autotune.search.grid import Floats

ROUNDS = 60  # enough for some hundred results, and 15 ms


class Trees:
    """`fit` on numbers (n × d, NaN where absent) and values (n), then `predict`. Needs xgboost."""

    def __init__(self, seed: int, rounds: int = ROUNDS) -> None:
        self._seed, self._rounds = seed, rounds

    def fit(self, x: Floats, y: Floats) -> None:
        import xgboost

        settings: dict[str, Any] = {
            "max_depth": 5,
            "eta": 0.15,
            "min_child_weight": 1,
            "subsample": 0.9,
            "colsample_bynode": 0.5,
            "lambda": 0.5,
            "max_bin": 32,
            "tree_method": "hist",
            "nthread": 1,
            "seed": self._seed,
            "verbosity": 0,
        }
        self._mean = float(y.mean())
        data = xgboost.DMatrix(x.astype(np.float32), label=y - self._mean, nthread=1)
        self._booster = xgboost.train({**settings, "base_score": 0.0}, data, num_boost_round=self._rounds)

    def predict(self, x: Floats) -> Floats:
        predicted = self._booster.inplace_predict(x.astype(np.float32), missing=np.nan)
        return np.asarray(predicted, dtype=float) + self._mean
