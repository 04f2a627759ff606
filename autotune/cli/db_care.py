"""`autotune db export | vacuum | verify`: getting data out, and keeping a database sound."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from autotune.cli.common import (
    add_command,
    add_database,
    add_json,
    open_database,
    print_json,
    print_table,
    size,
)
from autotune.errors import InvalidInput

WHAT = ("measurements", "best", "failures")
FORMATS = ("csv", "json", "parquet")


def add(verbs: Any) -> None:
    export = add_command(
        verbs,
        "export",
        _export,
        "Writes measurements, winners or failures as CSV, JSON lines or Parquet.",
        "autotune db export --what best --format csv --out best.csv",
    )
    export.add_argument("--what", choices=WHAT, default="measurements", help="default: measurements")
    export.add_argument("--format", choices=FORMATS, help="default: the suffix of --out, else csv")
    export.add_argument("--out", metavar="FILE", help="file to write (default: standard output)")
    vacuum = add_command(
        verbs, "vacuum", _vacuum, "Gives back the space of deleted rows, and renews statistics.", "autotune db vacuum"
    )
    verify = add_command(
        verbs,
        "verify",
        _verify,
        "Checks a database: structure, keys, uids, decided entries, figures. Exit code 1 when something is wrong.",
        "autotune db verify",
    )
    for verb in (export, vacuum, verify):
        add_database(verb)
    add_json(verify)


def _export(args: argparse.Namespace) -> int:
    suffix = os.path.splitext(args.out or "")[1].lstrip(".")
    form = args.format or (suffix if suffix in FORMATS else "csv")
    if form == "parquet" and not args.out:
        raise InvalidInput("Parquet is not for a terminal: say --out FILE")
    with open_database(args.db) as store:
        from autotune.report.export import export

        if not args.out:
            export(store, args.what, form, sys.stdout)
            return 0
        partial = f"{args.out}.partial"
        try:
            binary = form == "parquet"
            with open(partial, "wb" if binary else "w", encoding=None if binary else "utf-8") as file:
                count = export(store, args.what, form, file)
            os.replace(partial, args.out)
        except OSError as error:
            raise InvalidInput(f"{args.out} cannot be written: {error.strerror}") from None
        finally:
            if os.path.exists(partial):
                os.unlink(partial)
    print(f"{args.out}: {count:,} rows")
    return 0


def _vacuum(args: argparse.Namespace) -> int:
    with open_database(args.db) as store:
        before = store.stats().size_bytes
        store.vacuum()
        after = store.stats().size_bytes
    print(f"{size(before)} → {size(after)}")
    return 0


def _verify(args: argparse.Namespace) -> int:
    with open_database(args.db) as store:
        from autotune.report.verify import verify

        found = verify(store)
    wrong = any(f.count and f.is_error for f in found)
    if args.json:
        findings = [{"check": f.check, "error": f.is_error, "count": f.count, "examples": f.examples} for f in found]
        print_json({"sound": not wrong, "findings": findings})
    else:
        rows = [
            ("ok" if not f.count else "WRONG" if f.is_error else "note", f.count, f.check, "; ".join(f.examples))
            for f in found
        ]
        print_table("", ("", "count", "check", "for example"), rows)
    return 1 if wrong else 0
