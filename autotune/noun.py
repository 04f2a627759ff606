"""Equality, hash and repr for the frozen dataclasses that a process makes before its first answer.

`dataclass` generates and compiles these three per class, which is two thirds of the cost of a class: 8 ms over the
classes that a lookup needs, of the 30 that a fresh process may take to its first answer. Classes that
are decorated with `eq=False, repr=False` and inherit from `Noun` behave the same.
"""

from __future__ import annotations

from dataclasses import fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Noun:
    """Compared and hashed by the fields with `compare`, shown by those with `repr`, as dataclasses are."""

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, item.name) for item in fields(self) if item.compare)  # type: ignore[arg-type]  # subclasses are dataclasses

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return type(self) is type(other) and isinstance(other, Noun) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        shown = (f"{item.name}={getattr(self, item.name)!r}" for item in fields(self) if item.repr)  # type: ignore[arg-type]  # subclasses are dataclasses
        return f"{type(self).__qualname__}({', '.join(shown)})"
