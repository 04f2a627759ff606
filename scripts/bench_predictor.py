"""How well the fastest candidate is picked without measuring it, on recorded results of others and on our own.

python scripts/bench_predictor.py --miopen DIR [--gpu gfx942] [--leave-one-out] [--cache DIR]
python scripts/bench_predictor.py --database results.sqlite

MIOpen: DIR holds find-db files, and `full_train` in it complete ones without the test set. Every problem that is 2-D,
of FP32, FP16, BF16 or INT8 and has two candidates of positive time counts, in all directions; the pick is among them.
Layers never straddle the split (see miopen_data.py). Hyperparameters were chosen with `--validate`, which trains
without the validation layers and reports on them. `--cache` keeps parsed files and boosters: a long run can be taken up
again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import miopen_data as data
import miopen_quality as told
import numpy as np
from miopen_boosters import MEMBERS, PLAIN, TIME, Bench, predict
from miopen_features import SPECS, Habits, matrix
from miopen_transfer import leave_out

from autotune.cost.objectives import united
from autotune.errors import AutotuneError, InvalidInput

GPUS = ("gfx942", "gfx90a-104", "gfx1030", "gfx906-64")
COVERAGE = 0.9


def one_gpu(bench: Bench, gpu: str) -> None:
    """The table of a GPU: its own training problems, members alone and together, baselines beside them."""
    train, test = bench.split(gpu)
    layers = [len(np.unique(part.layers)) for part in (train, test)]
    sizes = f"{len(train):,} problems of {layers[0]:,} layers to train, {len(test):,} of {layers[1]:,} to test"
    print(f"\n## {gpu}: {sizes}\n")
    habits = Habits.of(train)
    x, y = matrix(train, habits, SPECS[gpu])[0], matrix(test, habits, SPECS[gpu])[0]
    name = f"{gpu}-{bench.high}"
    scores = {m.name: predict(bench.ranker(name, m, x, train), y) for m in (PLAIN, *MEMBERS)}
    members = [scores[m.name] for m in MEMBERS]
    together = united(members, test.problem)
    kinds = ("direction", "dtype", "y", "x", "sh", "sw")
    rows = {
        "most-winning solver": told.most_winning(train, test),
        "most-winning per direction, dtype, filter, stride": told.most_winning(train, test, kinds),
        **scores,
        f"ensemble of {len(MEMBERS)}": together,
    }
    print(told.HEAD)
    for row, score in rows.items():
        print(told.quality(test, score).row(row), flush=True)
    found, share = told.second_opinion(test, together, members)
    print(found.row(f"ensemble, top 2 measured where a member disagrees ({share:.0%} of problems)"))
    print("\nworst picks of the ensemble:")
    for line in told.largest(test, told.picks(test, together)):
        print(f"- {line}")
    if not bench.validate:
        print("\n" + intervals(bench, gpu, test), flush=True)


def intervals(bench: Bench, gpu: str, test: data.Problems) -> str:
    """Split-conformal intervals of picks' times, calibrated on validation layers, unseen by these boosters."""
    every = bench.problems(gpu)
    train, held = every.between(data.VALIDATION, 1000), every.between(data.TEST, data.VALIDATION)
    habits, name = Habits.of(train), f"{gpu}-{data.VALIDATION}"
    x, columns = matrix(train, habits, SPECS[gpu])
    roofline = columns.index("log roofline µs")
    label = np.log(1e3 * train.ms) - np.log(2.0) * x[:, roofline]
    times = bench.booster(name, TIME, x, label, train.problem)
    ranker = bench.ranker(name, MEMBERS[0], x, train)
    errors = []
    for part in (held, test):
        y = matrix(part, habits, SPECS[gpu])[0]
        picked = told.picks(part, predict(ranker, y))
        expected = predict(times, y)[picked] + np.log(2.0) * y[picked, roofline]
        errors.append(np.log(1e3 * part.ms[picked]) - expected)
    low, high = told.conformal(errors[0], COVERAGE)
    held_by = float(np.mean((low <= errors[1]) & (errors[1] <= high)))
    return (
        f"{COVERAGE:.0%} intervals of the picks' times, from {np.exp(low):.2f} to {np.exp(high):.2f} of what is "
        f"expected, hold {held_by:.1%} of {len(test):,}"
    )


def own(path: str) -> None:
    """The same figures of a database of our own, per op."""
    from autotune.cost import evaluate, fit, train
    from autotune.cost.dataset import collect
    from autotune.store.sql import open_store

    with open_store(path, create=False) as store:
        dataset = collect(store.records())
    for op in dataset.ops:
        problem = train.enough(dataset.of(op), op)
        if problem:
            print(problem)
            continue
        found = evaluate.summarise(evaluate.evaluate(dataset, op, fit.Options()))
        print(f"\n## {op}, layer shapes unseen\n")
        for name, cells in evaluate.table({op: found}):
            print(f"{name:42}" + "".join(f"{cell:>24}" for cell in cells))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--miopen", type=Path, metavar="DIR", help="a folder of find-db files")
    parser.add_argument("--gpu", action="append", choices=sorted(data.GPUS), help=f"default: {', '.join(GPUS)}")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="keeps parsed files and boosters")
    parser.add_argument("--validate", action="store_true", help="report on the validation layers")
    parser.add_argument(
        "--leave-one-out", action="store_true", help="train on the other GPUs, then with few problems of it"
    )
    parser.add_argument("--shorter", type=int, default=1, metavar="N", help="an Nth of the trees, to try things out")
    parser.add_argument("--database", metavar="URL", help="a database of our own")
    args = parser.parse_args(argv)
    try:
        if args.miopen is None and args.database is None:
            raise InvalidInput("there is nothing to look at: give --miopen or --database")
        if args.database is not None:
            own(args.database)
        if args.miopen is not None:
            bench = Bench(args.miopen, args.cache, args.validate, max(1, args.shorter))
            for gpu in args.gpu or GPUS:
                (leave_out if args.leave_one_out else one_gpu)(bench, gpu)
    except AutotuneError as error:
        print(f"bench_predictor: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
