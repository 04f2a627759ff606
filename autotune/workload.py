"""Workload: one op with its shapes, dtype and layout; the base of every op's dimensions."""

from __future__ import annotations

from enum import Enum
from functools import cached_property

from autotune.canonical import content_key
from autotune.dtypes import ITEMSIZE_BYTES
from autotune.errors import InvalidInput
from autotune.noun import Noun, fields, noun

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, TypeAlias

    Pair: TypeAlias = int | tuple[int, int]  # one number for both: (vertical, horizontal)
    Sides: TypeAlias = int | str | tuple[int, int] | tuple[int, int, int, int]  # likewise: (top, bottom, left, right)
else:
    Pair = Sides = object  # to be imported by name; only annotations use them

INT64_MAX = 2**63 - 1


def as_int(name: str, value: Any, low: int) -> int:
    """`value` as an int of at least `low` that fits 64 bits; raises `InvalidInput`."""
    if isinstance(value, bool):
        raise InvalidInput(f"{name} must be a whole number, not {value!r}")
    try:
        number = value.__index__()
    except (AttributeError, TypeError):  # no number; a class, or an array of several
        raise InvalidInput(f"{name} must be a whole number, not {value!r}") from None
    if not low <= number <= INT64_MAX:
        raise InvalidInput(f"{name}={number} is out of range: {low} to 2^63-1")
    return int(number)


def _as_pair(name: str, value: Any, low: int) -> tuple[int, int]:
    """(vertical, horizontal) from one number for both, or two."""
    if isinstance(value, (tuple, list)):
        if len(value) != 2:
            raise InvalidInput(f"{name} takes one number, or two (vertical, horizontal), not {value!r}")
        return as_int(name, value[0], low), as_int(name, value[1], low)
    number = as_int(name, value, low)
    return number, number


def _as_sides(name: str, value: Any, low: int) -> tuple[int, int, int, int]:
    """(top, bottom, left, right) from one number for all, two (vertical, horizontal), or four."""
    if isinstance(value, (tuple, list)) and len(value) == 4:
        top, bottom, left, right = (as_int(name, side, low) for side in value)
        return top, bottom, left, right
    if isinstance(value, (tuple, list)) and len(value) != 2:
        raise InvalidInput(f"{name} takes one number, two, or four (top, bottom, left, right), not {value!r}")
    vertical, horizontal = _as_pair(name, value, low)
    return vertical, vertical, horizontal, horizontal


def _as_bool(name: str, value: Any) -> bool:
    try:
        known = value in (True, False)
    except Exception:  # an array or tensor of several
        known = False
    if not known:
        raise InvalidInput(f"{name} must be true or false, not {value!r}")
    return bool(value)


class _Traits:
    """What a workload class says of itself; not fields, so they stand outside the dataclass."""

    op: str
    minimum: Mapping[str, int] = {}
    choices: Mapping[str, tuple[str, ...]] = {}


def _spelled(value: Any) -> str:
    """A field's value in a spec string: 1 for true, 2,1 for a pair, one number where all are equal."""
    if isinstance(value, tuple):
        return str(value[0]) if len(set(value)) == 1 else ",".join(map(str, value))
    return str(int(value) if isinstance(value, bool) else value)


@noun
class Workload(Noun, _Traits):
    """One op with its shapes, dtype and layout. Each op has a subclass: a `noun`, or a frozen dataclass.

    A subclass sets `op`. Fields are `int` (dimensions, ≥ 0 unless `minimum` says more), `Pair`, `Sides`, `bool`
    or `str` (one of `choices`). A field with a default that still has it is left out of the key and of the spec
    string, `dtype` excepted, so that adding a field later changes no existing key.
    """

    def __post_init__(self) -> None:
        values = []
        for item in fields(type(self)):
            value = getattr(self, item.name)
            kind = str(item.type)
            if kind == "int":
                value = as_int(item.name, value, self.minimum.get(item.name, 0))
            elif kind == "bool":
                value = _as_bool(item.name, value)
            elif kind == "Pair":
                value = _as_pair(item.name, value, self.minimum.get(item.name, 0))
            elif kind == "Sides":
                value = _as_sides(item.name, value, self.minimum.get(item.name, 0))
            else:
                allowed = ITEMSIZE_BYTES if item.name == "dtype" else self.choices[item.name]
                value = value.value if isinstance(value, Enum) else value
                if not isinstance(value, str) or value not in allowed:
                    raise InvalidInput(f"{item.name}={value!r} is not one of {', '.join(allowed)}")
            object.__setattr__(self, item.name, value)
            values.append(value)
        self.validate()
        identity = (self.op, *values)
        object.__setattr__(self, "_identity", identity)
        object.__setattr__(self, "_hash", hash(identity))

    def validate(self) -> None:
        """Cross-field checks of the op; raises `InvalidInput`."""

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined,no-any-return]  # set in __post_init__; hot in lookup

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Workload) and self._identity == other._identity)  # type: ignore[attr-defined]  # set in __post_init__

    def dims(self) -> dict[str, int | bool | str | tuple[int, ...]]:
        """The fields that are in the key: those without a default, `dtype`, and those that differ from it."""
        return {
            item.name: getattr(self, item.name)
            for item in fields(type(self))
            if item.required or item.name == "dtype" or getattr(self, item.name) != item.default
        }

    @cached_property
    def key(self) -> str:
        """The workload's identity: 32 hex digits."""
        return content_key({"op": self.op, **self.dims()})

    @property
    def spec(self) -> str:
        """The spec string, e.g. `linear m=1 n=4096 k=1024 dtype=f32`; `registry.parse_workload` reads it back."""
        words = (f"{name}={_spelled(value)}" for name, value in self.dims().items())
        return " ".join((self.op, *words))

    def __str__(self) -> str:
        return self.spec

    @property
    def flops(self) -> int:
        """Floating-point operations, a multiply-add counted as two."""
        raise NotImplementedError("each op states its flops")

    @property
    def bytes(self) -> int:
        """Compulsory memory traffic in bytes: each operand read once, the result written once."""
        raise NotImplementedError("each op states its bytes")

    @property
    def operand_bytes(self) -> int:
        """Memory that operands and result take: `bytes`, unless a call reads only a part of an operand."""
        return self.bytes

    @property
    def input_bytes(self) -> int:
        """What one call takes besides constants: what has to be moved when the inputs are on another device.

        `bytes`, an upper bound, where the op does not say.
        """
        return self.bytes

    @property
    def output_bytes(self) -> int:
        """Size of the result; 0 where the op does not say, as `input_bytes` counts it then."""
        return 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compute, hence nothing to tune."""
        return self.flops == 0

    @classmethod
    def from_dims(cls, dims: Mapping[str, Any]) -> Workload:
        """The workload with these fields; raises `InvalidInput` for unknown or missing ones."""
        known = {item.name: item for item in fields(cls)}
        unknown = [name for name in dims if name not in known]
        missing = [name for name, item in known.items() if item.required and name not in dims]
        if unknown:
            raise InvalidInput(f"{cls.op} has no field {unknown[0]!r}; its fields are {', '.join(known)}")
        if missing:
            raise InvalidInput(f"{cls.op} needs {' '.join(f'{name}=…' for name in missing)}")
        return cls(**dims)
