"""What `train` and `evaluate` share: reading a dataset, and the packages they need."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from autotune.cli.common import need
from autotune.errors import InvalidInput

if TYPE_CHECKING:
    from autotune.cost.dataset import Dataset
    from autotune.types import TuningRecord


def add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--db", action="append", default=[], metavar="URL",
        help="database file or URL to learn from; may be repeated (default: $AUTOTUNE_DB, else the user's)",
    )  # fmt: skip
    parser.add_argument("--op", action="append", default=[], metavar="OP", help="only this op; may be repeated")
    parser.add_argument("--any-revision", action="store_true", help="also learn from kernels of other revisions")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of splits and boosters (default 0)")
    parser.add_argument(
        "--objective",
        choices=("squared", "regret"),
        default=None,
        help="of the boosters (default: squared)",
    )


def read(args: argparse.Namespace) -> Dataset:
    """The dataset of the databases asked for. Raises `InvalidInput` when there is nothing in them."""
    for package, extra in (("sqlalchemy", "tune"), ("numpy", "tune"), ("xgboost", "serve"), ("sklearn", "serve")):
        need(package, extra)
    from autotune import settings
    from autotune.cost.dataset import collect

    dataset = collect(_records(args.db or [settings.database()]), args.any_revision)
    if args.op:
        dataset.groups = [group for group in dataset.groups if group.workload.op in args.op]
    if not dataset.groups:
        left = ", ".join(f"{count} left out: {why}" for why, count in dataset.left_out.most_common())
        from autotune.cost.train import LEAST_ROWS, LEAST_SHAPES

        raise InvalidInput(
            f"not enough data: no results to learn from{f' ({left})' if left else ''}, and it takes {LEAST_SHAPES} "
            f"layer shapes and {LEAST_ROWS} results of an op; run autotune sweep first"
        )
    return dataset


def _records(urls: Sequence[str]) -> Iterator[TuningRecord]:
    from autotune.store.sql import open_store

    for url in urls:
        with open_store(url, create=False) as store:
            yield from store.records()


def options(args: argparse.Namespace) -> Any:
    from autotune.cost.fit import Options

    return Options(seed=args.seed) if args.objective is None else Options(seed=args.seed, objective=args.objective)
