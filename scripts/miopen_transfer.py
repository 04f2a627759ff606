"""A GPU that was never measured: picks by boosters of the other GPUs, then with few problems of its own. For
`bench_predictor.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import miopen_data as data
import miopen_quality as told
import numpy as np
import numpy.typing as npt
from miopen_boosters import MEMBERS, Bench, Doubles, Floats, predict
from miopen_features import SPECS, Habits, matrix

from autotune.cost.objectives import united

RANKERS = (MEMBERS[2], MEMBERS[3])
EACH = 12_000
"""Problems taken of each other GPU: what helps there are more GPUs, not more problems of one."""

LOCAL, WEIGHT = (100, 500), 10.0
"""Problems of the GPU itself, and how much more each of them counts."""

SEEDS = 2


def leave_out(bench: Bench, gpu: str) -> None:
    """The table of a GPU from others' problems, and from them with 100 and 500 of its own."""
    mine, test = bench.split(gpu)
    others = {other: some(bench.split(other)[0], EACH, 0) for other in data.GPUS if other != gpu}
    print(f"\n## {gpu} left out: {sum(map(len, others.values())):,} problems of {len(others)} other GPUs\n")
    print(told.HEAD)
    for local in (0, *LOCAL):
        rows = []
        for seed in range(SEEDS if local else 1):
            few = some(mine, local, seed + 1)
            score = _scores(bench, gpu, others, few, test, f"{gpu}-{bench.high}-out-{local}-{seed}")
            rows.append(told.quality(test, score))
        for seed, row in enumerate(rows):
            name = "other GPUs only" if not local else f"with {local} problems of its own, draw {seed + 1}"
            print(row.row(name), flush=True)


def some(problems: data.Problems, count: int, seed: int) -> data.Problems:
    """So many problems, drawn at random."""
    chosen = np.zeros(len(problems), np.bool_)
    chosen[np.random.default_rng(seed).permutation(len(problems))[:count]] = True
    return problems.only(chosen)


def _scores(
    bench: Bench, gpu: str, others: dict[str, data.Problems], few: data.Problems, test: data.Problems, name: str
) -> Doubles:
    parts = [*others.values(), few, test]
    every = data.united(parts)
    solvers = [data.united([part, every.only(np.zeros(len(every), np.bool_))]) for part in parts]
    habits = Habits.of(data.united([*solvers[:-2], *[solvers[-2]] * (int(WEIGHT) if len(few) else 0)]))
    x, cost, group, weight = _pooled([*others, gpu], solvers[:-1], habits)
    y = matrix(solvers[-1], habits, SPECS[gpu])[0]
    scores = []
    for member in RANKERS:
        label = np.minimum(cost, np.log(20.0))
        scores.append(predict(bench.booster(name, member, x, label, group, weight), y))
    return united(scores, test.problem)


def _pooled(
    gpus: Sequence[str], parts: Sequence[data.Problems], habits: Habits
) -> tuple[Floats, Doubles, npt.NDArray[np.int64], Doubles]:
    """(features, costs, groups, weights) of several GPUs' problems; the last one counts more."""
    x, cost, group, weight, begin = [], [], [], [], 0
    for gpu, part in zip(gpus, parts, strict=True):
        if not len(part):
            continue
        x.append(matrix(part, habits, SPECS[gpu])[0])
        cost.append(part.cost)
        group.append(part.problem + begin)
        weight.append(np.full(len(part.ms), WEIGHT if part is parts[-1] else 1.0))
        begin += len(part)
    return np.vstack(x), np.concatenate(cost), np.concatenate(group), np.concatenate(weight)
