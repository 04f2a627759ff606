"""How good picks among MIOpen's solvers are, for `bench_predictor.py`: tables, baselines, intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from miopen_data import Problems

Doubles = npt.NDArray[np.float64]

CLIP = np.log(10.0)
BOOTSTRAPS = 1000


@dataclass(frozen=True)
class Quality:
    """Of picks over problems: slowdowns against the best recorded. `low`, `high`: 95 % interval of the geometric mean,
    bootstrapped over layers; `top`: geometric mean when the first 1, 2 and 3 are measured, as far as that was asked."""

    accuracy: float
    low: float
    high: float
    p95: float
    worst: float
    clipped: float
    top: tuple[float, ...]

    def row(self, name: str) -> str:
        second, third = (f"{value:.4f}" for value in self.top[1:]) if len(self.top) > 1 else ("", "")
        return (
            f"| {name} | {self.accuracy:.3f} | {self.top[0]:.4f} ({self.low:.4f}–{self.high:.4f}) | {self.p95:.3f} | "
            f"{self.worst:.1f} | {self.clipped:.4f} | {second} | {third} |"
        )


HEAD = (
    "| | top-1 | geomean (95 % interval) | p95 | worst | clipped at 10x | top 2 measured | top 3 measured |\n"
    "|---|---|---|---|---|---|---|---|"
)


def ordered(problems: Problems, score: Doubles) -> npt.NDArray[np.int64]:
    """Candidates by problem, lowest score first; equal scores in the order of the solvers' names."""
    return np.lexsort((np.arange(len(score)), score, problems.problem))


def quality(problems: Problems, score: Doubles) -> Quality:
    """Of picking the candidate with the lowest score."""
    order, cost = ordered(problems, score), problems.cost
    first = np.searchsorted(problems.problem, np.arange(len(problems)))
    size = np.bincount(problems.problem)
    best = [cost[order[first]]]
    for rank in (1, 2):
        further = cost[order[first + np.minimum(rank, size - 1)]]
        best.append(np.minimum(best[-1], further))
    return summary(problems, *best)


def second_opinion(problems: Problems, score: Doubles, members: Sequence[Doubles]) -> tuple[Quality, float]:
    """Of measuring the two with the lowest scores where a member would pick another one, and trusting the first
    elsewhere; and the share of problems that are measured."""
    order, cost = ordered(problems, score), problems.cost
    first = np.searchsorted(problems.problem, np.arange(len(problems)))
    mine = order[first]
    doubted = np.any([picks(problems, member) != mine for member in members], axis=0)
    both = np.minimum(cost[mine], cost[order[first + 1]])
    return summary(problems, np.where(doubted, both, cost[mine])), float(doubted.mean())


def summary(problems: Problems, *best: Doubles) -> Quality:
    """Of costs per problem: of the pick, and of the best of the first two, three where they are measured."""
    picked = best[0]
    layers = problems.layers
    count, total = np.bincount(layers), np.bincount(layers, picked)
    drawn = np.random.default_rng(0).integers(0, len(count), (BOOTSTRAPS, len(count)))
    means = np.exp(total[drawn].sum(axis=1) / count[drawn].sum(axis=1))
    low, high = np.quantile(means, (0.025, 0.975))
    return Quality(
        float(np.mean(picked <= 1e-12)), float(low), float(high), float(np.exp(np.quantile(picked, 0.95))),
        float(np.exp(picked.max())), float(np.exp(np.minimum(picked, CLIP).mean())),
        tuple(float(np.exp(cost.mean())) for cost in best),
    )  # fmt: skip


def picks(problems: Problems, score: Doubles) -> npt.NDArray[np.int64]:
    """The row of each problem's candidate with the lowest score."""
    return ordered(problems, score)[np.searchsorted(problems.problem, np.arange(len(problems)))]


def conformal(errors: Doubles, coverage: float) -> tuple[float, float]:
    """Bounds that so large a share of further errors falls between (split-conformal: Vovk et al., 2005)."""
    high = min((1 + coverage) / 2 * (len(errors) + 1) / len(errors), 1.0)
    low, above = np.quantile(errors, (1 - high, high))
    return float(low), float(above)


def most_winning(train: Problems, test: Problems, keys: tuple[str, ...] = ()) -> Doubles:
    """Scores by wins in training: among problems with the same values of `keys`, and overall where there were none."""
    won = train.solver[train.cost == 0], train.problem[train.cost == 0]
    overall = np.bincount(won[0], minlength=len(train.solvers)).astype(float)
    score = -overall[test.solver] / (overall.sum() + 1.0)
    if keys:
        names = [train.column(key) for key in keys], [test.column(key) for key in keys]
        both = np.concatenate([np.stack(names[0], axis=1), np.stack(names[1], axis=1)])
        cell = np.unique(both, axis=0, return_inverse=True)[1].reshape(-1)
        mine, theirs = cell[: len(train)], cell[len(train) :]
        table = np.zeros((int(cell.max()) + 1, len(train.solvers)))
        np.add.at(table, (mine[won[1]], won[0]), 1.0)
        score = score - table[theirs[test.problem], test.solver]
    return np.asarray(score)


def largest(problems: Problems, picked: npt.NDArray[np.int64], count: int = 5) -> list[str]:
    """The worst picks in words."""
    cost = problems.cost[picked]
    told = []
    for index in np.argsort(-cost)[:count]:
        row = picked[index]
        c, k, h, w, y, x = (int(problems.column(name)[index]) for name in ("c", "k", "h", "w", "y", "x"))
        told.append(
            f"{np.exp(cost[index]):.1f}x: {problems.solvers[problems.solver[row]]} at {problems.ms[row]:.4g} ms, best "
            f"{problems.best_ms[index]:.4g} ms, {c}→{k} channels of {h}x{w}, filter {y}x{x}"
        )
    return told
