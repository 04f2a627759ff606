"""What several subcommands share: adding a parser, durations, tables, numbers for people."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from autotune import settings
from autotune.errors import InvalidInput, Unavailable

if TYPE_CHECKING:
    from autotune.store.sql import SqlStore


def add_command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], help_text: str, example: str
) -> argparse.ArgumentParser:
    """A subparser whose help ends with an example."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help_text,
        description=help_text,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def add_database(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--db", metavar="URL", help="database file or URL (default: $AUTOTUNE_DB, else the user's)")


def open_database(where: str | None) -> SqlStore:
    """The existing database that was named, else the user's."""
    need("sqlalchemy", "tune")
    from autotune.store.sql import open_store

    return open_store(where or settings.database(), create=False)


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON for programs")


def seconds(text: str) -> float:
    """90, 90s, 5m or 1h in seconds. Raises `InvalidInput`."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
    try:
        value = float(number) * units[unit]
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise InvalidInput(f"{text!r} is no duration; write it like 90s, 5m or 1h")
    return value


def duration(ns: float | None) -> str:
    """A time for people: 302 µs, 1.72 ms."""
    if ns is None:
        return "–"
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.3g} ns"


def size(count: int) -> str:
    """Bytes for people: 512 KiB, 16 MiB."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.4g} {unit}"
        value /= 1024
    raise AssertionError


def print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, allow_nan=False))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table: through rich on a terminal, with plain aligned columns elsewhere (files, pipes, the light core)."""
    cells = [[str(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        try:
            from rich.console import Console
            from rich.table import Table
        except ImportError:
            pass
        else:
            table = Table(*columns, title=title)
            for row in cells:
                table.add_row(*row)
            Console().print(table)
            return
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    if title:
        print(title)
    for row in ([*columns], *cells):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def need(package: str, extra: str) -> None:
    """Raises `Unavailable` with the command that installs it when a package of an extra is missing."""
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise Unavailable(f"this needs {package}: pip install 'autotune[{extra}]'")
