"""Boosters of MIOpen's solvers for `bench_predictor.py`: the members of the ensemble, how each is trained, and where it
is kept between runs.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import miopen_data as data
import numpy as np
import numpy.typing as npt

from autotune.cost.objectives import Objective, boosted

Doubles = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]

MOST = float(np.log(20.0))
"""Costs are clipped in training: how much worse than 20 times no longer matters to a choice."""

SHARED: dict[str, Any] = {"subsample": 0.8, "colsample_bytree": 0.5, "eta": 0.07, "nthread": 2}


MANY = 300_000


@dataclass(frozen=True)
class Member:
    """One booster of the ensemble."""

    name: str
    objective: Objective
    depth: int = 9
    trees: int = 400
    least: float = 0.0  # hessian of a leaf

    def params(self, rows: int) -> dict[str, Any]:
        """XGBoost's, for that many rows: with many, deeper trees still gain."""
        depth = self.depth + (2 if rows > MANY else 0)
        return {**SHARED, "max_depth": depth, "min_child_weight": self.least}


MEMBERS = (
    Member("listwise 3", Objective("listwise", 3.0)),
    Member("listwise 1.5", Objective("listwise", 1.5)),
    Member("expected 3", Objective("expected", 3.0)),
    Member("pairwise 0.5", Objective("pairwise", 0.5), least=1.0),
    Member("pairwise 1", Objective("pairwise", 1.0), least=1.0),
)
PLAIN = Member("squared error", Objective("squared"), least=2.0)
TIME = Member("time", Objective("squared"), trees=300, least=2.0)


class Bench:
    """Where files are, and what is kept. `validate`: report on the validation layers, and train without them."""

    def __init__(self, folder: Path, cache: Path | None, validate: bool = False, shorter: int = 1) -> None:
        self.folder, self.cache, self.validate, self.shorter = folder, cache, validate, shorter
        self.low, self.high = (data.TEST, data.VALIDATION) if validate else (0, data.TEST)

    def problems(self, gpu: str) -> data.Problems:
        return data.load(self.folder, gpu, self.cache)

    def split(self, gpu: str) -> tuple[data.Problems, data.Problems]:
        """(training, what is reported on)."""
        every = self.problems(gpu)
        return every.between(self.high, 1000), every.between(self.low, self.high)

    def booster(
        self, name: str, member: Member, x: Floats, label: Doubles, group: npt.NDArray[np.int64],
        weight: Doubles | None = None,
    ) -> Any:  # fmt: skip
        """Trained, or as it was kept. `name` says of what."""
        import xgboost

        trees = max(1, member.trees // self.shorter)
        kept = None if self.cache is None else self.cache / f"{name}-{member.name.replace(' ', '_')}-{trees}.ubj"
        if kept is not None and kept.exists():
            return xgboost.Booster(model_file=str(kept))
        begin = time.perf_counter()
        made = boosted(x, label, group, member.objective, member.params(len(x)), trees, weight)
        if kept is not None:
            made.save_model(str(kept))
        print(
            f"{name}: {member.name}, {len(x):,} rows, {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True
        )
        return made

    def ranker(self, name: str, member: Member, x: Floats, train: data.Problems, weight: Doubles | None = None) -> Any:
        """A booster of the candidates' costs."""
        return self.booster(name, member, x, np.minimum(train.cost, MOST), train.problem, weight)


def predict(booster: Any, x: Floats) -> Doubles:
    return np.asarray(booster.inplace_predict(x), np.float64)
