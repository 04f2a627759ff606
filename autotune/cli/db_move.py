"""`autotune db copy | merge | snapshot`: move databases, unite them, freeze one for lookups."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from autotune.cli.common import add_command, need


def add(verbs: Any) -> None:
    copy = add_command(
        verbs,
        "copy",
        _copy,
        "Adds everything in one database to another, file or server, which is made when it does not exist. Stopped and "
        "run again, it goes on; nothing is doubled.",
        "autotune db copy tuning.sqlite postgresql://me@server/tuning",
    )
    copy.add_argument("source", metavar="FROM", help="database file or URL")
    copy.add_argument("target", metavar="TO", help="database file or URL")
    merge = add_command(
        verbs,
        "merge",
        _merge,
        "Unites databases, of several clusters say, in the last one named. What two of them hold is kept once.",
        "autotune db merge east.sqlite west.sqlite all.sqlite",
    )
    merge.add_argument("sources", metavar="FROM", nargs="+", help="database files or URLs")
    merge.add_argument("target", metavar="INTO", help="database file or URL")
    snapshot = add_command(
        verbs,
        "snapshot",
        _snapshot,
        "Freezes what lookups need into a read-only file, which appears complete or not at all. Equal contents give "
        "equal bytes, so that every machine of a fleet answers the same.",
        "autotune db snapshot postgresql://me@server/tuning tuning.sqlite",
    )
    snapshot.add_argument("source", metavar="FROM", help="database file or URL")
    snapshot.add_argument("file", metavar="FILE", help="the file to write")
    snapshot.add_argument("--full", action="store_true", help="with every measurement, for people and for training")


def _copy(args: argparse.Namespace) -> int:
    return _unite([args.source], args.target)


def _merge(args: argparse.Namespace) -> int:
    return _unite(args.sources, args.target)


def _unite(sources: list[str], target: str) -> int:
    need("sqlalchemy", "tune")
    from autotune.store.engine import describe, parse
    from autotune.store.transfer import Moved, copy

    def progress(moved: Moved) -> None:
        if sys.stderr.isatty():
            print(f"\r{moved.measurements:,} measurements", end="", file=sys.stderr, flush=True)

    for source in sources:
        moved = copy(source, target, progress)
        if sys.stderr.isatty():
            print("\r", end="", file=sys.stderr)
        print(f"{describe(parse(source))}: {moved.measurements:,} measurements, {moved.added:,} of them new")
    return 0


def _snapshot(args: argparse.Namespace) -> int:
    need("sqlalchemy", "tune")
    from autotune.store.transfer import snapshot

    decided = snapshot(args.source, args.file, args.full)
    print(f"{args.file}: {decided:,} decided configs")
    return 0
