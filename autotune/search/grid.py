"""A space as numbers: rows of value indices, their features, and moves between them.

A row holds the index of each parameter's value, one column per parameter of every branch (algorithm), with
`ABSENT` where the branch has no such parameter; column 0 is the branch. Small spaces are enumerated once. Large
ones never are: rows are then drawn by rejection, and found by moves from rows known to be valid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.canonical import canonical_json
from autotune.space import SearchSpace
from autotune.types import ParamValue

Rows: TypeAlias = NDArray[np.int16]
Floats: TypeAlias = NDArray[np.float64]

ENUMERATED = 1 << 17
"""Combinations, before constraints, up to which a space is enumerated."""

ABSENT = -1

INTERACTIONS = 12
"""Numeric parameters of a branch up to which sums and differences of their logarithms are features."""


@dataclass(frozen=True)
class Axis:
    """One parameter: its values, and what each is to a distance (`places`) and to a tree (`numbers`)."""

    name: str
    values: tuple[ParamValue, ...]
    places: Floats  # values × coordinates: ranks in [0, 1], or one-hot where values have no order
    numbers: Floats  # values × numbers: log2 of sizes, else the index

    @staticmethod
    def of(name: str, values: tuple[ParamValue, ...]) -> Axis:
        columns = _components(values)
        if columns:
            places = [_ranks(column) for column in columns]
            numbers = [_log2(column) for column in columns]
            if len(columns) > 1:
                numbers.append(np.asarray([sum(row) for row in zip(*numbers, strict=True)]))
            return Axis(name, values, np.stack(places, 1), np.stack(numbers, 1))
        return Axis(name, values, np.eye(len(values)) * math.sqrt(0.5), np.arange(len(values), dtype=float)[:, None])


class Grid:
    """The union of some spaces. `rows` is None where there are too many to enumerate."""

    def __init__(self, spaces: Mapping[str, SearchSpace], seed: int = 0) -> None:
        self.branches = tuple(spaces)
        self._spaces = tuple(spaces.values())
        self._random = np.random.default_rng(seed)
        self.axes: list[list[Axis]] = [[Axis.of(n, v) for n, v in s.parameters.items()] for s in self._spaces]
        self.starts: list[int] = []  # of each branch, its first column
        width = 1
        for axes in self.axes:
            self.starts.append(width)
            width += len(axes)
        self.width = width
        self.plain = 1
        """Numbers of `features` that are parameters, not pairs of them; set by `features`."""
        self._indices = [[{canonical_json(v): i for i, v in enumerate(axis.values)} for axis in b] for b in self.axes]
        self.size = sum(space.size for space in self._spaces)
        self.rows: Rows | None = self._enumerate() if self.size <= ENUMERATED else None

    def reseed(self, seed: int) -> None:
        """Starts the random draws anew, so that one grid can serve one search after another."""
        self._random = np.random.default_rng(seed)

    # Between rows and parameters

    def row(self, branch: str, params: Mapping[str, ParamValue]) -> tuple[int, ...] | None:
        """The row of these parameters; None where they are not of this space."""
        if branch not in self.branches:
            return None
        number = self.branches.index(branch)
        axes = self.axes[number]
        row = [ABSENT] * self.width
        row[0] = number
        for offset, (axis, indices) in enumerate(zip(axes, self._indices[number], strict=True)):
            found = indices.get(canonical_json(params[axis.name])) if axis.name in params else None
            if found is None:
                return None
            row[self.starts[number] + offset] = found
        return tuple(row) if len(params) == len(axes) else None

    def params(self, row: Sequence[int]) -> tuple[str, dict[str, ParamValue]]:
        number = int(row[0])
        start = self.starts[number]
        found = {axis.name: axis.values[int(row[start + i])] for i, axis in enumerate(self.axes[number])}
        return self.branches[number], found

    def valid(self, row: Sequence[int]) -> bool:
        _, params = self.params(row)
        return self._spaces[int(row[0])].valid(params)

    # Rows to choose from

    def _enumerate(self) -> Rows:
        parts: list[Rows] = []
        for number, (space, axes) in enumerate(zip(self._spaces, self.axes, strict=True)):
            counts = [len(axis.values) for axis in axes]
            block = np.full((space.size, self.width), ABSENT, dtype=np.int16)
            block[:, 0] = number
            if axes:
                start = self.starts[number]
                block[:, start : start + len(axes)] = np.indices(counts).reshape(len(axes), -1).T
            if space.constraints:
                block = block[[self.valid(row) for row in block.tolist()]]
            parts.append(block)
        return np.concatenate(parts) if parts else np.empty((0, self.width), np.int16)

    def sample(self, count: int, attempts: int = 30) -> Rows:
        """Up to `count` valid rows, uniform within each branch; fewer where most combinations are invalid."""
        if self.rows is not None:
            chosen = self._random.permutation(len(self.rows))[:count]
            return self.rows[chosen]
        found: list[list[int]] = []
        weights = np.asarray([math.log2(1 + space.size) for space in self._spaces])
        for number in self._random.choice(len(self._spaces), size=count * attempts, p=weights / weights.sum()):
            row = [ABSENT] * self.width
            row[0] = int(number)
            for offset, axis in enumerate(self.axes[number]):
                row[self.starts[number] + offset] = int(self._random.integers(len(axis.values)))
            if self.valid(row):
                found.append(row)
                if len(found) == count:
                    break
        return np.asarray(found, dtype=np.int16).reshape(-1, self.width)

    def neighbours(self, row: Sequence[int], changes: int = 1) -> Rows:
        """Valid rows that differ in one parameter, or with `changes` 2 in up to two (some of them only)."""
        if self.rows is not None:
            differing = (self.rows != np.asarray(row, np.int16)).sum(axis=1)
            near: Rows = self.rows[(differing > 0) & (differing <= changes)]
            return near
        number = int(row[0])
        start, axes = self.starts[number], self.axes[number]
        near_rows: set[tuple[int, ...]] = set()
        for offset, axis in enumerate(axes):
            values = range(len(axis.values))
            if len(axis.values) > 16:
                values = self._random.choice(len(axis.values), 16, replace=False)  # type: ignore[assignment]
            for value in values:
                moved = list(row)
                moved[start + offset] = int(value)
                near_rows.add(tuple(moved))
                if changes > 1 and len(axes) > 1:
                    other = int(self._random.integers(len(axes)))
                    moved[start + other] = int(self._random.integers(len(axes[other].values)))
                    near_rows.add(tuple(moved))
        near_rows.discard(tuple(int(v) for v in row))
        kept = [moved for moved in sorted(near_rows) if self.valid(moved)]
        return np.asarray(kept, dtype=np.int16).reshape(-1, self.width)

    # Features

    def features(self, rows: Rows) -> tuple[Floats, Floats]:
        """Coordinates for distances (absent: the middle) and numbers for trees (absent: NaN) of rows.

        The numbers are those of the parameters, `plain` of them, then sums and differences of pairs: a product of
        block and tile size, or their ratio, is often what matters.
        """
        places: list[Floats] = []
        numbers: list[Floats] = []
        pairs: list[Floats] = []
        branch = np.eye(len(self.branches))[rows[:, 0]]
        if len(self.branches) > 1:
            places.append(branch)
            numbers.append(branch)
        for number, axes in enumerate(self.axes):
            here = (rows[:, 0] == number)[:, None]
            sizes: list[Floats] = []
            for offset, axis in enumerate(axes):
                if len(axis.values) < 2:
                    continue
                column = rows[:, self.starts[number] + offset]
                places.append(np.where(here, axis.places[column], 0.5))
                values = np.where(here, axis.numbers[column], np.nan)
                numbers.append(values)
                if len(axis.values) > 2:
                    sizes += [values[:, :1]]
            if len(sizes) <= INTERACTIONS:
                for i, left in enumerate(sizes):
                    for right in sizes[i + 1 :]:
                        pairs += [left + right, left - right]
        if not places:
            return np.zeros((len(rows), 1)), np.zeros((len(rows), 1))
        self.plain = sum(block.shape[1] for block in numbers)
        return np.concatenate(places, 1), np.concatenate(numbers + pairs, 1)


def _components(values: Sequence[ParamValue]) -> list[list[float]]:
    """Values as columns of numbers: one for numbers, one per item for tuples of equal length; else none."""
    if all(isinstance(value, (bool, int, float)) for value in values):
        return [[float(value) for value in values]]  # type: ignore[arg-type]
    if all(isinstance(value, tuple) and value for value in values):
        tuples = [value for value in values if isinstance(value, tuple)]
        flat = all(isinstance(item, (bool, int, float)) for value in tuples for item in value)
        if flat and len({len(value) for value in tuples}) == 1:
            return [[float(item) for item in column] for column in zip(*tuples, strict=True)]
    return []


def _ranks(column: Iterable[float]) -> Floats:
    values = list(column)
    order = {value: rank for rank, value in enumerate(sorted(set(values)))}
    return np.asarray([order[value] / max(1, len(order) - 1) for value in values])


def _log2(column: Sequence[float]) -> Floats:
    """Logarithms where all are positive, since sizes double; else the numbers themselves."""
    numbers: Floats = np.asarray(column, dtype=np.float64)
    return np.log2(numbers) if numbers.min() > 0 else numbers
