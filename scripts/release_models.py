"""Trains the models that are shipped, one per op in one file, on the shipped database, and writes their card.

Training is deterministic: the same database gives the same bytes, which `--check` proves by training once more.
The card's figures are those of `autotune evaluate`: each workload is judged by a model that has not seen its shape.

    python scripts/release_models.py
    python scripts/release_models.py --check
    python scripts/release_models.py --db tuning.sqlite --out /tmp/models
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Container, Mapping

from autotune import __version__, environment, paths
from autotune.cli.common import size
from autotune.cost import model
from autotune.cost.dataset import Dataset, collect
from autotune.cost.evaluate import Summary, card, evaluate, summarise
from autotune.cost.fit import Options
from autotune.cost.train import train_op
from autotune.errors import AutotuneError, InvalidInput
from autotune.store.sql import open_store

LIMITS = """
## Limits

- It answers for the machines and software above only, and for ops, dtypes, layouts and activations that it has seen;
  otherwise the default is served, with the reason.
- It was trained on layers of the shipped suites: shapes far from all of them, by more than the layers are from each
  other, get the default.
- Its intervals are those of the machines it was measured on while nothing else ran there.
- Answers that are slower than the default do happen, at the rate in the table. Where that matters, tune:
  `autotune sweep`.
"""


MOST_SLOW = 0.01
"""Share of answers that may be more than 2 % slower than the default; a model above it is not shipped."""


def judge(dataset: Dataset) -> tuple[dict[str, Summary], dict[str, str]]:
    """Figures of each op that can be evaluated; and the ops that are not shipped, with the reason."""
    summaries, problems = {}, {}
    for op in dataset.ops:
        try:
            summaries[op] = summarise(evaluate(dataset, op, Options()), Options().seed)
        except InvalidInput as error:
            problems[op] = str(error)
            continue
        slow = summaries[op].slow
        if slow > MOST_SLOW:
            problems[op] = (
                f"no model of {op} is shipped: {slow:.1%} of its answers would be slower than the default by more than "
                f"2 %, and {MOST_SLOW:.0%} is the most"
            )
    return summaries, problems


def train(dataset: Dataset, left_out: Container[str], path: str) -> int:
    """Writes the model; returns its size in bytes."""
    trained = [train_op(op, dataset, Options()).model for op in dataset.ops if op not in left_out]
    if not trained:
        raise InvalidInput("no op's model is good enough to be shipped")
    versions = {name: environment.version(name) for name in ("numpy", "torch")}
    head = {"autotune": __version__, "versions": versions, "environments": dataset.environments, "notes": []}
    return model.write(path, trained, head)


def describe(dataset: Dataset, summaries: Mapping[str, Summary], problems: Mapping[str, str], db: str) -> str:
    machines = sorted({f"{group.hardware.name}, {group.hardware.allowed_cpus} CPUs" for group in dataset.groups})
    head = [
        "The models of `model.atm`, trained by `python scripts/release_models.py`.",
        f"Trained on: {os.path.basename(db)}, {sum(len(group.labels) for group in dataset.groups):,} results.",
        f"Machines: {'; '.join(machines)}. Software: {'; '.join(sorted(set(dataset.environments.values())))}.",
        *problems.values(),
    ]
    return card(summaries, "The shipped cost models", head) + LIMITS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", default=paths.shipped_database(), help="default: the shipped database")
    parser.add_argument("--out", default=paths.data_dir("models"), help="folder (default: models/)")
    parser.add_argument("--check", action="store_true", help="train anew and compare with the file that is there")
    args = parser.parse_args()
    target = os.path.join(args.out, "model.atm")
    try:
        with open_store(args.db, create=False) as store:
            dataset = collect(store.records())
        if args.check:
            with tempfile.TemporaryDirectory() as folder:
                anew = os.path.join(folder, "model.atm")
                train(dataset, judge(dataset)[1], anew)
                with open(anew, "rb") as one, open(target, "rb") as other:
                    same = one.read() == other.read()
            print(f"{target} {'is' if same else 'is NOT'} what training on {args.db} makes")
            return 0 if same else 1
        summaries, problems = judge(dataset)
        count = train(dataset, problems, target)
        with open(os.path.join(args.out, "README.md"), "w", encoding="utf-8") as file:
            file.write(describe(dataset, summaries, problems, args.db))
    except (AutotuneError, OSError) as error:
        print(f"release_models.py: {error}", file=sys.stderr)
        return 2
    print(f"{target}: {size(count)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
