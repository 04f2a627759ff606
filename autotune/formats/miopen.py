"""MIOpen's find-db: measured times of the best solvers of convolution problems, as text.

    line    = key "=" item *( ";" item )          split at the first "="; empty lines are passed over
    item    = solver ":" time "," workspace "," algorithm                                  grammar 2.0
            | algorithm ":" solver "," time "," workspace "," unused "," unused            grammar 1.0

An item is of grammar 1.0 exactly when what stands before its first ":" is the name of an algorithm and direction. Times
are milliseconds, workspaces bytes. The grammar is that of MIOpen's db_record.cpp and perf_field.hpp; keys are read by
`miopen_key`.

Lists are truncated by their writers: 1.0 holds the best solver of each algorithm, 2.0 as shipped mostly the four
fastest. How slow a solver is that is not listed is unknown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from autotune.errors import InvalidInput
from autotune.formats import BadLine

ALGORITHM = re.compile(r"miopenConvolution(?:Fwd|BwdData|BwdWeights)Algo(?:GEMM|Direct|FFT|Winograd|ImplicitGEMM)")
_TIME = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_COUNT = re.compile(r"0|[1-9]\d*")


@dataclass(frozen=True, slots=True)
class Solution:
    """A solver and its time. `time`: milliseconds as the file spells them, so that a file can be written again byte
    by byte. `unused`: the last two fields of grammar 1.0, empty for 2.0."""

    solver: str
    time: str
    workspace_bytes: int
    algorithm: str
    unused: tuple[str, ...] = ()

    @property
    def time_ms(self) -> float:
        return float(self.time)

    def __str__(self) -> str:
        if self.unused:
            fields = (self.solver, self.time, str(self.workspace_bytes), *self.unused)
            return f"{self.algorithm}:{','.join(fields)}"
        return f"{self.solver}:{self.time},{self.workspace_bytes},{self.algorithm}"


@dataclass(frozen=True, slots=True)
class Found:
    """A line: a problem's key and its solutions, in the order of the file. `number`: of the line, from 1."""

    number: int
    key: str
    solutions: tuple[Solution, ...]

    def __str__(self) -> str:
        return f"{self.key}={';'.join(map(str, self.solutions))}"


def read(text: str) -> Iterator[Found | BadLine]:
    """The lines of a find-db in the order of the file, good and bad. Of equal keys the first counts, as in MIOpen.

    A bad item makes a bad line of its own; the line's other items are kept.
    """
    seen: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        if not line.strip():
            continue
        key, equals, rest = line.partition("=")
        if not equals or not key:
            yield BadLine(number, "there is no key before a =")
            continue
        if key in seen:
            yield BadLine(number, f"its key was on line {seen[key]} already, which counts")
            continue
        seen[key] = number
        good = []
        for item in rest.split(";"):
            try:
                good.append(_solution(item))
            except InvalidInput as error:
                yield BadLine(number, str(error))
        if good:
            yield Found(number, key, tuple(good))


def write(found: Iterable[Found]) -> str:
    """The text of a find-db: what was read without bad lines is written as it was."""
    return "".join(f"{one}\n" for one in found)


def _solution(item: str) -> Solution:
    """Raises `InvalidInput` with what is wrong."""
    name, colon, rest = item.partition(":")
    fields = rest.split(",")
    if not colon or not name:
        raise InvalidInput(f"{item[:60]!r} has no solver before a :")
    if ALGORITHM.fullmatch(name):
        if len(fields) != 5:
            raise InvalidInput(f"{item[:60]!r} has {len(fields)} fields after the algorithm, not 5")
        solver, time, workspace, *unused = fields
        made = Solution(solver, time, _workspace(workspace, solver), name, tuple(unused))
    else:
        if len(fields) != 3:
            raise InvalidInput(f"{item[:60]!r} has {len(fields)} fields after the solver, not 3")
        time, workspace, algorithm = fields
        if not ALGORITHM.fullmatch(algorithm):
            raise InvalidInput(f"{name}: {algorithm[:60]!r} is no algorithm of a convolution")
        made = Solution(name, time, _workspace(workspace, name), algorithm)
    if not _TIME.fullmatch(made.time):
        raise InvalidInput(f"{made.solver}: the time {made.time[:30]!r} is no positive number")
    if not 0.0 < made.time_ms < math.inf:
        raise InvalidInput(f"{made.solver}: the time {made.time[:30]} is not one that anything can take")
    return made


def _workspace(text: str, solver: str) -> int:
    if not _COUNT.fullmatch(text) or len(text) > 19:
        raise InvalidInput(f"{solver}: the workspace {text[:30]!r} is no number of bytes")
    return int(text)
