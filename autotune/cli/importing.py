"""`autotune import`: results of other tools into a database of their own."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from autotune import registry
from autotune.cli.common import add_command, need
from autotune.errors import InvalidInput
from autotune.formats import BadLine, Origin
from autotune.types import Status, TuningRecord

SHOWN = 20
"""Bad lines that are told one by one, unless all are asked for."""


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "import",
        _import,
        "Reads results of another tool into a database: the good lines in one transaction, each bad one reported with "
        "its number. What is imported is marked by its source, decides nothing, and is best kept apart. Formats: "
        + "; ".join(f"{name} ({registry.format(name).what})" for name in registry.BUILT_IN["formats"])
        + ". Files may be compressed (.xz, .bz2, .gz).",
        "autotune import miopen-find-db gfx942130.HIP.fdb.txt --db miopen.sqlite",
    )
    parser.add_argument("format", metavar="FORMAT", help="what kind of file it is")
    parser.add_argument("file", metavar="FILE", help="the file to read")
    parser.add_argument("--db", metavar="URL", required=True, help="database file or URL, made when it does not exist")
    parser.add_argument("--device", default="", metavar="NAME", help="the GPU, where the file does not tell")
    parser.add_argument("--kernel", default="", metavar="NAME", help="the kernel, where the file does not tell")
    parser.add_argument("--problem", default="", metavar="SIZE", help="its problem size, where the file does not tell")
    parser.add_argument("--all-bad", action="store_true", help=f"report every bad line, not only the first {SHOWN}")


def _import(args: argparse.Namespace) -> int:
    chosen = registry.format(args.format)
    need("sqlalchemy", "tune")
    from autotune.formats.files import read_text
    from autotune.store.sql import open_store

    path = os.path.abspath(args.file)
    origin = Origin(
        os.path.basename(path), os.path.basename(os.path.dirname(path)), args.device, args.kernel, args.problem
    )
    records: list[TuningRecord] = []
    bad: list[BadLine] = []
    text = read_text(args.file)
    try:
        for one in chosen.read(text, origin):
            if isinstance(one, BadLine):
                bad.append(one)
            else:
                records.append(one)
    except InvalidInput as error:
        raise InvalidInput(f"{args.file} cannot be imported: {error}") from None
    added = 0
    if records:
        with open_store(args.db) as store:
            added = store.add(records)
    for line in bad if args.all_bad else bad[:SHOWN]:
        print(f"{origin.file}:{line.number}: {line.reason}", file=sys.stderr)
    if len(bad) > SHOWN and not args.all_bad:
        print(f"… and {len(bad) - SHOWN:,} more; --all-bad shows them", file=sys.stderr)
    failed = sum(record.measurement.status is not Status.OK for record in records)
    workloads = len({record.workload for record in records})
    print(
        f"{len(records):,} results of {workloads:,} workloads ({failed:,} of them failures), {added:,} of them new; "
        f"{len(bad):,} bad lines left out"
    )
    return 1 if bad or not records else 0
