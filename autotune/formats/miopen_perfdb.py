"""MIOpen's perf-db: which parameters each solver was tuned to, per problem. It holds no times, hence gives no records.

Three forms say the same: SQLite (tables `config` and `perf_db`), a table of both joined with tabs between columns, and
text, `key=solver:params;solver:params`, whose key is `COLUMNS` joined by x. As in find-db keys, the first sizes are
those of the result where the direction is B or W.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from autotune.errors import InvalidInput, Unavailable
from autotune.formats import BadLine

COLUMNS = (
    "spatial_dim", "in_channels", "in_h", "in_w", "in_d", "fil_h", "fil_w", "fil_d", "out_channels", "batchsize",
    "pad_h", "pad_w", "pad_d", "conv_stride_h", "conv_stride_w", "conv_stride_d", "dilation_h", "dilation_w",
    "dilation_d", "bias", "group_count", "layout", "data_type", "direction",
)  # fmt: skip
_TEXTS = ("layout", "data_type", "direction")
_NUMBERS = len(COLUMNS) - len(_TEXTS)


@dataclass(frozen=True, slots=True)
class Tuned:
    """A solver's parameters for a problem. `problem`: values in the order of `COLUMNS`; `params`: the solver's own."""

    number: int
    problem: tuple[int | str, ...]
    solver: str
    params: tuple[str, ...]

    @property
    def key(self) -> str:
        """As the text form has it."""
        return "x".join(map(str, self.problem))


def read(text: str) -> Iterator[Tuned | BadLine]:
    """Settings from the text form, or from a table with a line of headings."""
    lines = text.splitlines()
    if lines and "\t" in lines[0]:
        yield from _table(lines)
        return
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        key, equals, rest = line.partition("=")
        for item in rest.split(";"):
            solver, colon, params = item.partition(":")
            if not equals or not colon or not solver:
                yield BadLine(number, f"{(item or line)[:60]!r} is not key=solver:parameters")
                continue
            yield _tuned(number, key.split("x"), solver, params)


def read_sqlite(path: str) -> Iterator[Tuned | BadLine]:
    """Settings from the SQLite form; numbers are those of rows. Raises `Unavailable` where it is none."""
    query = f"SELECT {', '.join(f'c.{name}' for name in COLUMNS)}, p.solver, p.params FROM perf_db p JOIN config c "
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            for number, row in enumerate(connection.execute(f"{query} ON c.id = p.config ORDER BY p.id"), 1):
                *key, solver, params = map(str, row)
                yield _tuned(number, key, solver, params)
    except sqlite3.Error as error:
        raise Unavailable(f"{path} cannot be read as a perf-db: {error}") from None


def _table(lines: Sequence[str]) -> Iterator[Tuned | BadLine]:
    heads = lines[0].split("\t")
    missing = [name for name in (*COLUMNS, "solver", "params") if name not in heads]
    if missing:
        raise InvalidInput(f"the table has no column {missing[0]}")
    places = [heads.index(name) for name in (*COLUMNS, "solver", "params")]
    for number, line in enumerate(lines[1:], 2):
        cells = line.split("\t")
        if len(cells) != len(heads):
            yield BadLine(number, f"it has {len(cells)} columns, the first line {len(heads)}")
            continue
        *key, solver, params = (cells[place] for place in places)
        yield _tuned(number, key, solver, params)


def _tuned(number: int, key: Sequence[str], solver: str, params: str) -> Tuned | BadLine:
    if len(key) != len(COLUMNS):
        return BadLine(number, f"its key has {len(key)} parts, not {len(COLUMNS)}")
    try:
        numbers = [int(part) for part in key[:_NUMBERS]]
    except ValueError:
        wrong = next(part for part in key[:_NUMBERS] if not part.lstrip("-").isdigit())
        return BadLine(number, f"{wrong[:30]!r} in its key is no number")
    if key[-1] not in ("F", "B", "W"):
        return BadLine(number, f"the direction {key[-1][:30]!r} is not F, B or W")
    return Tuned(number, (*numbers, *key[_NUMBERS:]), solver, tuple(params.split(",")))
