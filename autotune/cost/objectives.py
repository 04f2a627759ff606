"""What boosters are to learn of candidates that compete: their costs, or only who beats whom. Lower scores are better.

`cost` is log(time / best time) of each candidate; candidates of one workload (a `group`) are adjacent. Regressions are
squared error of a transformed cost, weighted; rankings are custom objectives, gradients and hessians by XGBoost's
convention:

- pairwise: RankNet's logistic loss (Burges et al., 2005) on pairs of a group, each weighted by (difference of
  cost)^power, so that a pair matters by what confusing it costs.
- listwise: cross entropy between softmax(−power · cost) and softmax(−score), as in ListNet's top one (Cao et al.,
  2007).
- expected: listwise, and `EXPECTED` times the cost to expect of a candidate drawn by softmax(−score): the regret
  itself, smoothed. Alone it is flat where a booster begins, hence the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.errors import InvalidInput

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

MOST_PAIRS = 8
"""Partners of a candidate in a large group; up to there, all pairs are taken."""

LEAST_HESSIAN = 1e-6

EXPECTED = 4.0
"""Weight of the expected cost beside the cross entropy."""


@dataclass(frozen=True)
class Objective:
    """One way to learn. `kind`: "squared", "root", "share", "regret", "pairwise", "listwise" or
    "expected".

    squared: the cost. root: its square root, which tells the best few apart. share: 1 − best time / time, weighted
    by best time / time. regret: the cost, weighted by exp(−power · cost). `power`: see there and above.
    """

    kind: str
    power: float = 0.5

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise InvalidInput(f"objective {self.kind!r} is not one of {', '.join(_KINDS)}")
        if not 0 < self.power < 100:
            raise InvalidInput(f"the power of an objective must be between 0 and 100, not {self.power}")

    @property
    def ranks(self) -> bool:
        """Whether its scores only rank: they are no costs."""
        return self.kind in ("pairwise", "listwise", "expected")

    def target(self, cost: Floats) -> tuple[Floats, Floats | None]:
        """(label, weight or None) of a regression."""
        if self.kind == "root":
            return np.sqrt(np.maximum(cost, 0.0)), None
        if self.kind == "share":
            return 1.0 - np.exp(-cost), np.exp(-cost) + 0.1
        if self.kind == "regret":
            return cost, np.exp(-self.power * cost)
        return cost, None

    def custom(
        self, cost: Floats, group: Whole, seed: int = 0, weight: Floats | None = None
    ) -> Callable[[npt.NDArray[np.float32], Any], tuple[Floats, Floats]]:
        """The custom objective of a ranking. `weight`: of each candidate's group."""
        if self.kind == "pairwise":
            return _pairwise(cost, group, self.power, seed, weight)
        if self.kind == "listwise":
            return _listwise(cost, group, self.power, 0.0, weight)
        if self.kind == "expected":
            return _listwise(cost, group, self.power, EXPECTED, weight)
        raise InvalidInput(f"objective {self.kind!r} is a regression")


_KINDS = ("squared", "root", "share", "regret", "pairwise", "listwise", "expected")

ENSEMBLE = (
    Objective("listwise", 3.0),
    Objective("listwise", 1.5),
    Objective("expected", 3.0),
    Objective("pairwise", 0.5),
    Objective("pairwise", 1.0),
)
"""Members that err differently; their mean ranks better than any of them (see docs/cost-model.md)."""


def boosted(
    x: npt.NDArray[np.float32], cost: Floats, group: Whole, objective: Objective, params: dict[str, Any], trees: int,
    weight: Floats | None = None, seed: int = 0,
) -> Any:  # fmt: skip
    """An XGBoost booster of that objective. `params` are XGBoost's own; `weight`: of each row."""
    import xgboost

    given = {"tree_method": "hist", "seed": seed, "max_bin": 256, **params}
    if objective.ranks:
        data = xgboost.QuantileDMatrix(x, cost, max_bin=given["max_bin"])
        given |= {"base_score": 0.0, "disable_default_eval_metric": 1}
        return xgboost.train(given, data, trees, obj=objective.custom(cost, group, seed, weight))
    label, own = objective.target(cost)
    if weight is not None:
        own = weight if own is None else own * weight
    data = xgboost.QuantileDMatrix(x, label, weight=own, max_bin=given["max_bin"])
    return xgboost.train({"objective": "reg:squarederror", **given}, data, trees)


def united(scores: Sequence[Floats], group: Whole) -> Floats:
    """The mean of several members' scores, each in units of its own spread within groups."""
    total = np.zeros(len(group))
    for score in scores:
        centred = score - _sums(score, group)[group] / _sums(np.ones(len(score)), group)[group]
        total += centred / max(float(np.sqrt(np.mean(centred**2))), 1e-12)
    return total / len(scores)


def pairs(group: Whole, seed: int = 0, most: int = MOST_PAIRS) -> tuple[Whole, Whole]:
    """Pairs of rows of one group, each once: all of small groups, `most` random partners per row of others."""
    first = np.searchsorted(group, group)
    size = np.bincount(group)[group]
    random = np.random.default_rng(seed)
    one, other = [], []
    rows = np.arange(len(group))
    for step in range(1, most + 1):
        partner = rows + step
        near = rows[(size <= most + 1) & (partner < first + size)]
        one.append(near)
        other.append(near + step)
        wide = rows[size > most + 1]
        drawn = first[wide] + random.integers(0, size[wide])
        kept = drawn != wide
        one.append(wide[kept])
        other.append(drawn[kept])
    return np.concatenate(one), np.concatenate(other)


def _sums(values: Floats, group: Whole) -> Floats:
    return _at(group, values)


def _at(places: Whole, values: Floats, length: int = 0) -> Floats:
    """Sums of the values of each place."""
    return np.asarray(np.bincount(places, values, length), np.float64)


def _pairwise(
    cost: Floats, group: Whole, power: float, seed: int, weight: Floats | None
) -> Callable[[npt.NDArray[np.float32], Any], tuple[Floats, Floats]]:
    one, other = pairs(group, seed)
    gap = cost[one] - cost[other]
    swapped = gap > 0
    winner, loser = np.where(swapped, other, one), np.where(swapped, one, other)
    kept = gap != 0
    winner, loser, w = winner[kept], loser[kept], np.abs(gap[kept]) ** power
    if weight is not None:
        w = w * weight[winner]
    rows = len(cost)
    w = w * (rows / max(float(w.sum()), 1e-12))

    def objective(score: npt.NDArray[np.float32], _: Any) -> tuple[Floats, Floats]:
        s = score.astype(np.float64)
        wrong = 1.0 / (1.0 + np.exp(np.clip(s[loser] - s[winner], -50, 50)))
        push, bend = w * wrong, w * wrong * (1.0 - wrong)
        gradient = _at(winner, push, rows) - _at(loser, push, rows)
        hessian = _at(winner, bend, rows) + _at(loser, bend, rows)
        return gradient, np.maximum(hessian, LEAST_HESSIAN)

    return objective


def _listwise(
    cost: Floats, group: Whole, sharpness: float, regret: float, weight: Floats | None
) -> Callable[[npt.NDArray[np.float32], Any], tuple[Floats, Floats]]:
    wanted = _softmax(-sharpness * cost, group)
    w = np.ones(len(cost)) if weight is None else weight

    def objective(score: npt.NDArray[np.float32], _: Any) -> tuple[Floats, Floats]:
        p = _softmax(-score.astype(np.float64), group)
        push = wanted - p
        if regret:
            push -= regret * p * (cost - _sums(p * cost, group)[group])
        return w * push, np.maximum(w * p * (1.0 - p), LEAST_HESSIAN)

    return objective


def _softmax(value: Floats, group: Whole) -> Floats:
    top = np.full(int(group[-1]) + 1, -np.inf)
    np.maximum.at(top, group, value)
    e = np.exp(value - top[group])
    return np.asarray(e / _sums(e, group)[group])
