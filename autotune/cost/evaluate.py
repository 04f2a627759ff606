"""How good a model is on layer shapes it has not seen: whole pipelines trained on the others, answers by lookup's own
rule.

The candidates of a workload are the configs that were measured for it. Regret is log(time of the pick / time of the
best that was decided in many pairs), never below 0; where nothing was decided, of the best screened, which was partly
luck. Intervals of a mean are bootstrapped over shapes, since workloads of one shape are alike.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from autotune.cost import choose
from autotune.cost.dataset import Dataset, Group
from autotune.cost.features import INTERACTIONS, Table
from autotune.cost.fit import Options, folds_of
from autotune.cost.model import Floats, OpModel
from autotune.cost.train import WORST, enough, train_op
from autotune.cost.views import distance, view
from autotune.errors import InvalidInput
from autotune.types import Config

RANKS = (1, 2, 4)
OUTER_FOLDS = 5
BOOTSTRAPS = 1000


@dataclass
class Outcome:
    """What became of one workload. Logarithms of ratios; `picks`: label of each rank's best, in the order of
    `RANKS`."""

    group: Group
    best: float  # label of the best config
    picks: tuple[float, ...]
    answer: float  # label of what a lookup would have served; 0 where it stayed with the default
    answered: bool
    covered: bool | None  # whether the interval of the first pick held its label
    spearman: float | None
    baselines: Mapping[str, float] = field(default_factory=dict)  # label of what each baseline picks


def evaluate(dataset: Dataset, op: str, options: Options, hardware_out: bool = False) -> list[Outcome]:
    """Outcomes of all workloads of an op, each from a model that has seen neither its shape nor, with `hardware_out`,
    its machine.

    Raises `InvalidInput` when there is not enough data.
    """
    groups = dataset.of(op)
    problem = enough(groups, op)
    if problem:
        raise InvalidInput(problem)
    folds = _machines(groups) if hardware_out else folds_of(groups, OUTER_FOLDS, options.seed + 1)
    outcomes: list[Outcome] = []
    for fold in sorted(set(folds.tolist())):
        rest = [group for group, other in zip(groups, folds, strict=True) if other != fold]
        if not rest:
            raise InvalidInput(f"not enough data for {op}: nothing is left to train on")
        model = train_op(op, replace(dataset, groups=rest), options, checked=True).model
        outcomes += [outcome(model, group, rest) for group, own in zip(groups, folds, strict=True) if own == fold]
    return outcomes


def _machines(groups: Sequence[Group]) -> Any:
    keys = sorted({group.hardware.key for group in groups})
    if len(keys) < 2:
        raise InvalidInput("to leave one machine out takes results of two")
    return np.array([keys.index(group.hardware.key) for group in groups])


def outcome(model: OpModel, group: Group, rest: Sequence[Group]) -> Outcome:
    """What the model, trained on `rest`, makes of a workload."""
    known = np.array([model.features.knows(config) for config in group.configs])
    table = Table(group.configs)
    x = model.features.matrix(group.workload, group.hardware, table)
    mean, scale = model.predict_rows(x, group.workload, group.hardware, table)
    label, exact = np.array(group.labels), np.array(group.ratios) <= 1.0
    default = choose.default_index(group)
    mean[default] = 0.0  # the default is itself
    expected = exact.copy()  # those that lookup would take to be exact enough
    if model.usable is not None:
        expected &= model.usable.predict(x) >= float(model.head["usable_from"])
    picked = choose.pick(model, group.hardware.key, mean, scale, expected & known, default)
    everything = np.flatnonzero(exact & (known | (np.arange(len(label)) == default)))
    order = everything[np.argsort(mean[everything], kind="stable")]
    served = picked.index is not None and not choose.refused(model, picked)
    covered = None
    if picked.index is not None:
        low, high = picked.interval
        covered = bool(low <= label[picked.index] <= high)
    return Outcome(
        group,
        best_label(group),
        tuple(float(label[order[:rank]].min()) for rank in RANKS),
        float(label[picked.index]) if served and picked.index is not None else 0.0,
        served,
        covered,
        _spearman(mean[everything], label[everything]),
        _baselines(model, group, rest, x, exact),
    )


def best_label(group: Group) -> float:
    exact = [(y, d) for y, ratio, d in zip(group.labels, group.ratios, group.decided, strict=True) if ratio <= 1.0]
    decided = [y for y, d in exact if d]
    return min(decided if len(decided) > 1 else [y for y, _ in exact])


def _spearman(predicted: Floats, label: Floats) -> float | None:
    if len(label) < 3:
        return None
    ranks = [np.argsort(np.argsort(values, kind="stable"), kind="stable") for values in (predicted, label)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _baselines(model: OpModel, group: Group, rest: Sequence[Group], x: Any, exact: Any) -> dict[str, float]:
    """Labels of what simpler rules pick among the measured configs."""
    label = dict(zip(group.configs, group.labels, strict=True))
    usable = {config for config, good in zip(group.configs, exact, strict=True) if good}
    wins: Counter[Config] = Counter()
    for other in rest:
        wins.update(choose.winners(other, 1))
    ordered = sorted(wins, key=lambda config: (-wins[config], config.key))
    seen = view(group.workload)
    near = sorted(rest, key=lambda other: (distance(view(other.workload), seen), other.workload.key))
    nearest = (config for other in near for config in choose.winners(other, 1))
    column = x[:, model.features.names.index("log2_roofline_of_default")]
    roofline = np.where(exact & np.isfinite(column), column, np.inf)
    assert "log2_roofline_of_default" in INTERACTIONS
    return {
        "default": 0.0,
        "most-winning config": next((label[c] for c in ordered if c in usable), 0.0),
        "nearest shape's winner": next((label[c] for c in nearest if c in usable), 0.0),
        "roofline": float(np.array(group.labels)[int(np.argmin(roofline))]),
    }


@dataclass(frozen=True)
class Summary:
    """Figures of many outcomes. Regrets are ratios, with the 95 % interval of the geometric mean at rank 1."""

    workloads: int
    shapes: int
    regret: dict[int, float]
    regret_low: float
    regret_high: float
    p90: float
    p95: float
    worst: float
    served_regret: float  # of the answer, the default where it abstains
    served_speedup: float
    possible_speedup: float
    slow: float  # share of answers slower than the default by more than 2 %
    slow_unguarded: float  # the same of the first pick
    abstained: float
    coverage: float | None
    spearman: float | None
    baselines: dict[str, float]


def summarise(outcomes: Sequence[Outcome], seed: int = 0) -> Summary:
    if not outcomes:
        raise InvalidInput("there is nothing to summarise")
    best = np.array([o.best for o in outcomes])
    picks = np.array([o.picks for o in outcomes])
    first = np.maximum(picks[:, 0] - best, 0)
    answer = np.array([o.answer for o in outcomes])
    low, high = _bootstrap([repr(o.group.shape) for o in outcomes], first, seed)
    covered = [o.covered for o in outcomes if o.covered is not None]
    ranks = [o.spearman for o in outcomes if o.spearman is not None and math.isfinite(o.spearman)]
    return Summary(
        workloads=len(outcomes),
        shapes=len({o.group.shape for o in outcomes}),
        regret={k: _geomean(np.maximum(picks[:, i] - best, 0)) for i, k in enumerate(RANKS)},
        regret_low=low,
        regret_high=high,
        p90=float(np.exp(np.quantile(first, 0.9))),
        p95=float(np.exp(np.quantile(first, 0.95))),
        worst=float(np.exp(first.max())),
        served_regret=_geomean(np.maximum(answer - best, 0)),
        served_speedup=_geomean(-answer),
        possible_speedup=_geomean(-best),
        slow=float(np.mean(answer > WORST)),
        slow_unguarded=float(np.mean(picks[:, 0] > WORST)),
        abstained=float(np.mean([not o.answered for o in outcomes])),
        coverage=float(np.mean(covered)) if covered else None,
        spearman=float(np.mean(ranks)) if ranks else None,
        baselines={
            name: _geomean(np.maximum(np.array([o.baselines[name] for o in outcomes]) - best, 0))
            for name in outcomes[0].baselines
        },
    )


def _geomean(logs: Floats) -> float:
    return float(np.exp(np.mean(logs)))


def _bootstrap(shapes: Sequence[str], logs: Floats, seed: int) -> tuple[float, float]:
    """95 % interval of the geometric mean, whole shapes drawn with replacement."""
    names = sorted(set(shapes))
    index = np.array([names.index(shape) for shape in shapes])
    total, count = np.bincount(index, logs), np.bincount(index)
    drawn = np.random.default_rng(seed).integers(0, len(names), (BOOTSTRAPS, len(names)))
    means = total[drawn].sum(axis=1) / count[drawn].sum(axis=1)
    return float(np.exp(np.quantile(means, 0.025))), float(np.exp(np.quantile(means, 0.975)))


def card(summaries: Mapping[str, Summary], title: str, notes: Sequence[str] = ()) -> str:
    """A model card in Markdown: what the figures are, and the figures."""
    columns = list(summaries)
    lines = [f"# {title}", "", *(f"{note}  " for note in notes), ""]
    lines += [
        "Each workload is judged by a model that has seen no workload of its shape. Regret: time of the pick over",
        "the best measured, geometric mean; in brackets the 95 % interval, bootstrapped over shapes.", "",
        "| | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns),
    ]  # fmt: skip
    for name, cells in table(summaries):
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def table(summaries: Mapping[str, Summary]) -> list[tuple[str, list[str]]]:
    """Rows of figures: (name, a cell per op)."""
    every = list(summaries.values())

    def row(name: str, cell: Any) -> tuple[str, list[str]]:
        return name, [cell(s) for s in every]

    def share(value: float | None) -> str:
        return "–" if value is None else f"{value:.1%}"

    found = [
        row("workloads / layer shapes", lambda s: f"{s.workloads} / {s.shapes}"),
        row("regret@1", lambda s: f"{s.regret[1]:.3f} ({s.regret_low:.3f}–{s.regret_high:.3f})"),
        *(row(f"regret@{k}", lambda s, k=k: f"{s.regret[k]:.3f}") for k in RANKS[1:]),
        row("regret@1, 90th / 95th percentile", lambda s: f"{s.p90:.2f} / {s.p95:.2f}"),
        row("regret@1, worst", lambda s: f"{s.worst:.2f}"),
        row("regret of the guarded answer", lambda s: f"{s.served_regret:.3f}"),
        row("speed-up of the answers / possible", lambda s: f"{s.served_speedup:.2f} / {s.possible_speedup:.2f}"),
        row("answers > 2 % slower than the default", lambda s: share(s.slow)),
        row("… without the guard", lambda s: share(s.slow_unguarded)),
        row("abstained (default served)", lambda s: share(s.abstained)),
        row("90 % intervals that hold", lambda s: share(s.coverage)),
        row("Spearman within workload", lambda s: "–" if s.spearman is None else f"{s.spearman:.2f}"),
    ]
    for name in every[0].baselines if every else ():
        found.append(row(f"baseline: {name}", lambda s, name=name: f"{s.baselines[name]:.3f}"))
    return found
