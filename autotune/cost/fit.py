"""Boosters from the results of an op: rows, folds of layer shapes, and XGBoost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from autotune.cost.dataset import Group
from autotune.cost.features import Array, FeatureSet, Table
from autotune.cost.model import Floats
from autotune.cost.objectives import Objective
from autotune.cost.objectives import boosted as ranked
from autotune.cost.trees import Trees
from autotune.errors import InvalidInput

OBJECTIVES = {"squared": 1.0, "regret": 1.0, "pairwise": 0.5, "listwise": 3.0, "expected": 3.0}
"""What a booster can be trained for, and the power of a ranking (see objectives.py)."""


@dataclass(frozen=True)
class Options:
    """How to train. `objective`: "squared" error, or weighted by "regret", the distance from the workload's best.

    "pairwise", "listwise" and "expected" boosters only rank (see objectives.py): for comparison.
    """

    seed: int = 0
    members: int = 6
    trees: int = 120
    depth: int = 6
    rate: float = 0.1
    objective: str = "squared"
    focus: float = 2.0  # weight exp(−focus · regret)
    portfolio: int = 320


@dataclass
class Rows:
    """The groups of an op as matrices. `group`: index of each row's group; `fold`: of each group; `margin`: per row,
    what a prior says of its label already."""

    groups: Sequence[Group]
    features: FeatureSet
    tables: list[Table]
    x: Array
    y: Floats
    group: npt.NDArray[np.int64]
    fold: npt.NDArray[np.int64]
    margin: Floats = field(default_factory=lambda: np.zeros(0))


def folds_of(groups: Sequence[Group], count: int, seed: int) -> npt.NDArray[np.int64]:
    """The fold of each group; groups of one layer shape share theirs."""
    from sklearn.model_selection import GroupKFold

    names = {shape: index for index, shape in enumerate(sorted({repr(group.shape) for group in groups}))}
    labels = [names[repr(group.shape)] for group in groups]
    found = np.zeros(len(groups), np.int64)
    if len(names) < 2:
        return found
    splitter = GroupKFold(n_splits=min(count, len(names)), shuffle=True, random_state=seed)
    for index, (_, test) in enumerate(splitter.split(labels, groups=labels)):
        found[test] = index
    return found


def rows_of(groups: Sequence[Group], made: FeatureSet, members: int, seed: int) -> Rows:
    tables = [Table(group.configs) for group in groups]
    x = np.vstack([made.matrix(g.workload, g.hardware, t) for g, t in zip(groups, tables, strict=True)])
    y = np.concatenate([np.array(group.labels) for group in groups])
    index = np.repeat(np.arange(len(groups)), [len(group.configs) for group in groups])
    return Rows(groups, made, tables, x, y, index, folds_of(groups, members, seed), np.zeros(len(y)))


def fold_numbers(rows: Rows) -> list[int]:
    return sorted({int(fold) for fold in rows.fold})


def fit(rows: Rows, chosen: npt.NDArray[np.bool_], options: Options, seed: int) -> Trees:
    """One booster on the chosen rows, of the label less the margin."""
    if not chosen.any():  # a single shape: nothing to leave out
        chosen = np.ones_like(chosen)
    target = rows.y[chosen] - rows.margin[chosen]
    blob = boosted(rows.x[chosen], target, rows.y[chosen], rows.group[chosen], options, seed)
    return Trees(blob, rows.x.shape[1])


def boosted(
    x: Array, target: Floats, label: Floats, group: npt.NDArray[np.int64], options: Options,
    seed: int,
    least: float = 2.0,
) -> bytes:  # fmt: skip
    """The UBJSON of a booster of `target`, with leaves of at least `least` rows. Rows of a group are adjacent;
    `label` decides how much each row matters."""
    import xgboost

    if options.objective not in OBJECTIVES:
        raise InvalidInput(f"objective {options.objective!r} is not one of {', '.join(OBJECTIVES)}")
    best = np.full(int(group.max()) + 1, np.inf)
    np.minimum.at(best, group, label)
    regret = label - best[group]
    params = {
        "objective": "reg:squarederror", "max_depth": options.depth, "eta": options.rate, "seed": seed, "nthread": 2,
        "tree_method": "hist", "subsample": 0.8, "colsample_bytree": 0.7, "min_child_weight": least,
    }  # fmt: skip
    if options.objective == "regret":
        data = xgboost.DMatrix(x, target, weight=np.exp(-options.focus * regret))
    elif options.objective == "squared":
        data = xgboost.DMatrix(x, target)
    else:
        ranking = Objective(options.objective, OBJECTIVES[options.objective])
        params["min_child_weight"] = least / 10  # hessians of a ranking are small
        return bytes(ranked(x, regret, group, ranking, params, options.trees, seed=seed).save_raw("ubj"))
    return bytes(xgboost.train(params, data, options.trees).save_raw("ubj"))


def out_of_fold(rows: Rows, members: Sequence[Trees]) -> Floats:
    """Each row predicted by the member that has not seen its shape."""
    mean = np.zeros(len(rows.y))
    for member, fold in zip(members, fold_numbers(rows), strict=True):
        mine = rows.fold[rows.group] == fold
        mean[mine] = member.predict(rows.x[mine])
    return mean + rows.margin
