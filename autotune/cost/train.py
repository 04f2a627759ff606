"""Trains a model from a dataset: boosters bagged by shape, calibrated on the shapes that each of them did not see.

Member i of the ensemble is trained on all layer shapes but those of fold i, so its errors on fold i are those of
shapes unseen (cross-conformal prediction: Vovk, 2015). The prediction is the members' mean, which is a little better
than any of them, so intervals err on the wide side. Everything is deterministic given the seed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.cost import choose, features
from autotune.cost.dataset import Dataset, Group
from autotune.cost.features import FeatureSet, Table
from autotune.cost.fit import Options, Rows, boosted, fit, fold_numbers, out_of_fold, rows_of
from autotune.cost.model import Floats, OpModel
from autotune.cost.transfer import prior_for, prior_margin
from autotune.cost.trees import Trees
from autotune.cost.views import place, view
from autotune.errors import InvalidInput
from autotune.types import Config

LEAST_SHAPES = 12
LEAST_ROWS = 200
LEAST_WITH_BASE = 3
"""Layer shapes, and results, of an op that a model is trained from; shapes where there is a model of another
machine."""

SERVED = 2
"""The best few predicted of each workload calibrate: what is served is among them."""

NEAR_TOP = 0.5
"""Errors of configs predicted within this of the best, in log time, say how large they are for what is served."""

LEAST_RESIDUALS = 10
"""Of a machine, for a calibration of its own."""

KEPT_RESIDUALS = 400
WORST = math.log(1.02)
"""An answer this much slower than the default is a bad one."""

MOST_BAD = 0.01
"""Share of answers that may be bad on the shapes not seen."""


@dataclass(frozen=True)
class Trained:
    """A model of an op, and what was found out on the way, in sentences."""

    model: OpModel
    notes: tuple[str, ...] = ()


def enough(groups: Sequence[Group], op: str, base: bool = False) -> str:
    """Why there is not enough data to learn an op from, and how much it takes; "" when there is."""
    shapes, rows = len({group.shape for group in groups}), sum(len(group.configs) for group in groups)
    if base and shapes >= LEAST_WITH_BASE:
        return ""
    if shapes >= LEAST_SHAPES and rows >= LEAST_ROWS:
        return ""
    least = f"{LEAST_WITH_BASE} layer shapes" if base else f"{LEAST_SHAPES} layer shapes and {LEAST_ROWS} results"
    return f"not enough data for {op}: {shapes} layer shapes with {rows} results, and it takes {least}"


def train_op(
    op: str, dataset: Dataset, options: Options, base: OpModel | None = None, checked: bool = False
) -> Trained:
    """A model of one op. Raises `InvalidInput` when there is not enough data, unless that was `checked` for more of
    it."""
    groups = dataset.of(op)
    problem = enough(groups, op, base is not None)
    if problem and not checked:
        raise InvalidInput(problem)
    configs = {config: None for group in groups for config in group.configs}
    made = FeatureSet.of([g.workload for g in groups], configs)
    rows = rows_of(groups, made, options.members, options.seed)
    notes: list[str] = []
    prior = None
    if base is not None:
        prior, note = prior_for(rows, base, options)
        notes.append(note)
        if prior is not None:
            rows.margin = prior_margin(rows, prior)
        elif enough(groups, op):
            raise InvalidInput(f"{note}; and alone, {enough(groups, op)}")
    members = [
        fit(rows, rows.fold[rows.group] != fold, options, options.seed + int(fold)) for fold in fold_numbers(rows)
    ]
    mean = out_of_fold(rows, members)
    head = _head(rows, dataset, options)
    scale, expected = _scale(rows, mean, head, options)
    _calibrate(head, rows, mean, expected)
    model = OpModel(op, made, members, _default_time(rows, options), _usable(rows, options), scale, head, prior)
    head["threshold"] = _threshold(model, rows, mean, expected)
    return Trained(model, tuple(notes))


def _head(rows: Rows, dataset: Dataset, options: Options) -> dict[str, Any]:
    """What a lookup must know beside the boosters."""
    groups = rows.groups
    portfolio = _portfolio(groups, options.portfolio)
    index = {config: position for position, config in enumerate(portfolio)}
    names = rows.features.names
    varying = [
        *features.WORKLOAD[:7],
        *(f"op.{name}" for name in rows.features.extras if name != "bias"),
        *features.HARDWARE,
    ]
    columns = {name: rows.x[:, names.index(name)] for name in varying}
    return {
        "ranges": {name: [float(np.min(column)), float(np.max(column))] for name, column in columns.items()},
        "hardware": sorted({g.hardware.key: g.hardware.name for g in groups}.items()),
        "figures": {  # measured ones: a machine is to look at lookup as it looked in training
            g.hardware.key: {"peak_gflops": dict(g.hardware.peak_gflops), "bandwidth_gbs": g.hardware.bandwidth_gbs}
            for g in groups
        },
        "arches": sorted({g.hardware.arch for g in groups}),
        "environments": sorted({g.environment_key for g in groups}),
        "revisions": {name: dataset.revisions[name] for name in rows.features.categories["algorithm"]},
        "reach": max(2.0, float(np.quantile(_gaps(groups, rows.features.extras), 0.95))),
        "portfolio": [
            {"algorithm": c.algorithm, "params": dict(c.params), "placement": c.placement} for c in portfolio
        ],
        "measured": [
            {"dims": g.workload.dims(), "winners": [index[c] for c in choose.winners(g) if c in index]} for g in groups
        ],
        "errors": _errors(groups),
        "counts": {"workloads": len(groups), "shapes": len({g.shape for g in groups}), "results": len(rows.y)},
        "options": {name: getattr(options, name) for name in ("seed", "trees", "depth", "rate", "objective", "focus")},
        "threshold": 0.8,
        "usable_from": 0.5,
        "floor": 0.01,
        "calibration": {},
    }  # fmt: skip


def _gaps(groups: Sequence[Group], extras: Sequence[str]) -> list[float]:
    """Distance of each workload to the nearest one of another layer shape, as `views.distance` measures it."""
    shapes = {group.workload: repr(group.shape) for group in groups}
    views = [view(workload) for workload in shapes]
    places = np.array([place(seen, extras) for seen in views])
    names = sorted({name for seen in views for name in seen.categories})
    texts = np.array([[seen.categories.get(name) for name in names] for seen in views], object)
    own = np.array(list(shapes.values()))
    gaps = []
    for index in range(len(views)):
        apart = np.abs(places - places[index])
        apart[:, 4:] = np.minimum(apart[:, 4:], 2.0)
        others = (apart.sum(axis=1) + (texts != texts[index]).sum(axis=1))[own != own[index]]
        gaps.append(float(others.min()) if len(others) else 0.0)
    return gaps


def _portfolio(groups: Sequence[Group], most: int) -> list[Config]:
    """The configs worth ranking anywhere: those near the top of a workload, the most often so first."""
    votes: Counter[Config] = Counter()
    for group in groups:
        for rank, config in enumerate(choose.winners(group, 12)):
            votes[config] += 12 - rank
    ordered = sorted(votes, key=lambda config: (-votes[config], config.key))
    return ordered[:most]


def _errors(groups: Sequence[Group]) -> dict[str, list[float]]:
    """Least and largest error over tolerance of each algorithm (Winograd's m apart), of what was known."""
    found: dict[str, list[float]] = {}
    for group in groups:
        for config, ratio in zip(group.configs, group.ratios, strict=True):
            if math.isfinite(ratio):
                low, high = found.get(choose.variant(config), (ratio, ratio))
                found[choose.variant(config)] = [min(low, ratio), max(high, ratio)]
    return dict(sorted(found.items()))


def _default_time(rows: Rows, options: Options) -> Trees:
    """log(the default's ns / its roofline) from the workload alone."""
    groups = rows.groups
    x = np.stack([rows.features.workload_row(g.workload, g.hardware) for g in groups])
    y = np.array([math.log(g.default_ns / features.roofline_ns(g.workload, g.hardware)) for g in groups])
    own = replace(options, objective="squared", trees=60, depth=4)
    return Trees(boosted(x, y, y, np.arange(len(y)), own, options.seed), x.shape[1])


def _usable(rows: Rows, options: Options) -> Trees | None:
    """A classifier of what ran within the op's tolerance; None where nearly everything did."""
    import xgboost

    x, good = [rows.x], [np.concatenate([np.array(g.ratios) <= 1.0 for g in rows.groups])]
    for group in rows.groups:
        if group.failed:
            x.append(rows.features.matrix(group.workload, group.hardware, Table(group.failed)))
            good.append(np.zeros(len(group.failed), np.bool_))
    label = np.concatenate(good)
    if (~label).sum() < 5:
        return None
    params = {
        "objective": "binary:logistic",
        "max_depth": 5,
        "eta": 0.15,
        "seed": options.seed,
        "nthread": 2,
        "tree_method": "hist",
    }
    booster = xgboost.train(params, xgboost.DMatrix(np.vstack(x), label), 50)
    return Trees(bytes(booster.save_raw("ubj")), rows.x.shape[1])


def _scale(rows: Rows, mean: Floats, head: dict[str, Any], options: Options) -> tuple[Trees, Floats]:
    """Boosters of the size of the error near the top, and what they say of each row when trained on other folds.

    Small, noisy workloads and algorithms that behave erratically get wider intervals than others.
    """
    error = np.abs(rows.y - mean)
    best = np.full(len(rows.groups), np.inf)
    np.minimum.at(best, rows.group, mean)
    near = mean - best[rows.group] < NEAR_TOP
    head["floor"] = max(float(np.median(error[near])) / 3, 0.005)
    own = replace(options, objective="squared", trees=40, depth=3)

    def made(chosen: npt.NDArray[np.bool_]) -> Trees:
        chosen = chosen & near if (chosen & near).any() else near
        x, target = rows.x[chosen], error[chosen]
        return Trees(boosted(x, target, target, rows.group[chosen], own, options.seed, least=20.0), x.shape[1])

    expected = np.zeros(len(rows.y))
    for fold in fold_numbers(rows):
        mine = rows.fold[rows.group] == fold
        expected[mine] = made(~mine).predict(rows.x[mine])
    return made(np.ones_like(near)), np.maximum(expected, head["floor"])


def _calibrate(head: dict[str, Any], rows: Rows, mean: Floats, scale: Floats) -> None:
    """Residuals of what would be served, per machine, and of all machines under ""."""
    found: dict[str, list[float]] = {}
    shapes: dict[str, set[str]] = {}
    begin = 0
    for group in rows.groups:
        mine = np.arange(begin, begin + len(group.configs))
        begin += len(group.configs)
        served = np.array(group.ratios) <= 1.0
        served[choose.default_index(group)] = False
        mine = mine[served]
        best = mine[np.argsort(mean[mine], kind="stable")[:SERVED]]
        for key in (group.hardware.key, ""):
            found.setdefault(key, []).extend(((rows.y[best] - mean[best]) / scale[best]).tolist())
            shapes.setdefault(key, set()).add(repr(group.shape))
    head["calibration"] = {
        key: {"residuals": _thinned(values), "shapes": len(shapes[key])}
        for key, values in sorted(found.items())
        if len(values) >= LEAST_RESIDUALS or not key
    }


def _thinned(values: Sequence[float]) -> list[float]:
    """The sorted values, or as many of their quantiles."""
    ordered = np.sort(np.array(values))
    if len(ordered) > KEPT_RESIDUALS:
        ordered = np.quantile(ordered, (np.arange(KEPT_RESIDUALS) + 0.5) / KEPT_RESIDUALS)
    return [round(float(value), 5) for value in ordered]


def _threshold(model: OpModel, rows: Rows, mean: Floats, scale: Floats) -> float:
    """The least probability of being faster from which at most `MOST_BAD` of the workloads get a bad answer."""
    picked: list[tuple[float, bool]] = []
    for index, group in enumerate(rows.groups):
        mine = rows.group == index
        pick = choose.pick(
            model,
            group.hardware.key,
            mean[mine],
            scale[mine],
            np.array(group.ratios) <= 1.0,
            choose.default_index(group),
        )
        if pick.index is not None:
            picked.append((pick.p_faster, group.labels[pick.index] > WORST))
    for threshold in (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.99):
        bad = sum(slow for p, slow in picked if p >= threshold)
        if bad <= MOST_BAD * len(rows.groups):
            return threshold
    return 0.99
