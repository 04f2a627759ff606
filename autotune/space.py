"""SearchSpace: an algorithm's tunable parameters and the constraints between them.

Values are named and typed, never indices into a list that the next release reorders. A parameter that
only sometimes matters is handled by constraints: `valid` says which combinations mean something.
"""

from __future__ import annotations

import itertools
import math

from autotune.errors import InvalidInput
from autotune.noun import Noun, noun

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from random import Random
    from typing import TypeAlias

    from autotune.types import ParamValue

    Params: TypeAlias = Mapping[str, ParamValue]
    Constraint: TypeAlias = Callable[[Params], bool]
else:
    Params = Constraint = object  # to be imported by name; only annotations use them


@noun
class SearchSpace(Noun):
    """`parameters`: name → the values it may take, in order of size or preference.

    `constraints`: each must hold for a combination to be valid. `seeds`: combinations worth measuring
    first, by the author's knowledge. Raises `InvalidInput` for a parameter without values or a seed
    outside the space.
    """

    parameters: Mapping[str, tuple[ParamValue, ...]]
    constraints: tuple[Constraint, ...] = ()
    seeds: tuple[Params, ...] = ()

    def __post_init__(self) -> None:
        for name, values in self.parameters.items():
            if not values:
                raise InvalidInput(f"parameter {name} has no values")
        for seed in self.seeds:
            if not self.contains(seed):
                raise InvalidInput(f"seed {dict(seed)} is outside the space")

    @property
    def size(self) -> int:
        """Combinations before constraints."""
        return math.prod(len(values) for values in self.parameters.values())

    def valid(self, params: Params) -> bool:
        return all(constraint(params) for constraint in self.constraints)

    def contains(self, params: Params) -> bool:
        """Whether these are exactly this space's parameters, with values of theirs, and valid."""
        return (
            set(params) == set(self.parameters)
            and all(_has(self.parameters[name], value) for name, value in params.items())
            and self.valid(params)
        )

    def __iter__(self) -> Iterator[dict[str, ParamValue]]:
        """Every valid combination, in a fixed order. For spaces small enough to walk."""
        names = tuple(self.parameters)
        for values in itertools.product(*self.parameters.values()):
            params = dict(zip(names, values, strict=True))
            if self.valid(params):
                yield params

    def sample(self, random: Random, attempts: int = 1000) -> dict[str, ParamValue] | None:
        """A uniform valid combination by rejection; None when `attempts` draws were all invalid."""
        for _ in range(attempts):
            params = {name: random.choice(values) for name, values in self.parameters.items()}
            if self.valid(params):
                return params
        return None


def _has(values: tuple[ParamValue, ...], value: ParamValue) -> bool:
    return any(type(v) is type(value) and v == value for v in values)  # 1 is not True
