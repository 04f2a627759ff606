"""`@noun`: a frozen dataclass that costs a process next to nothing to define.

A fresh process is to answer its first lookup within 30 ms. Importing `dataclasses` takes 9 of them (it imports
`inspect`, which imports the parser and the disassembler), and each class it makes 1 more. The nouns on the
lookup path are therefore made here: `__init__` is generated, the rest is inherited from `Noun`. They are
dataclasses in every other respect: `dataclasses.fields`, `replace` and `is_dataclass` work, and real dataclasses may
inherit from them; what that takes is made when it is first asked for.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import field as field
    from typing import Any, ClassVar, TypeVar, dataclass_transform

    T = TypeVar("T")


class Missing:
    """Stands for a default that there is not."""


class Item:
    """One field of a noun: its name, its type as written, its default, and whether it is compared and shown."""

    __slots__ = ("compare", "default", "default_factory", "name", "repr", "type")

    def __init__(
        self, default: Any = Missing, default_factory: Any = Missing, repr: bool = True, compare: bool = True
    ) -> None:
        self.default, self.default_factory, self.repr, self.compare = default, default_factory, repr, compare
        self.name = self.type = ""

    @property
    def required(self) -> bool:
        return self.default is Missing and self.default_factory is Missing


if not TYPE_CHECKING:

    def field(**options):
        """Like `dataclasses.field`: `default` or `default_factory`, `repr`, `compare`."""
        return Item(**options)


def fields(noun_class: type) -> tuple[Item, ...]:
    """The fields of a noun, or of a real dataclass that inherits from one, in order."""
    own = noun_class.__dict__
    if "_items" in own:
        return own["_items"]  # type: ignore[no-any-return]  # set below
    if "__dataclass_fields__" in own:
        import dataclasses

        made = tuple(_from_dataclass(item) for item in dataclasses.fields(noun_class))
        noun_class._items = made  # type: ignore[attr-defined]  # read above the next time
        return made
    return fields(noun_class.__mro__[1]) if len(noun_class.__mro__) > 1 else ()


def _from_dataclass(real: Any) -> Item:
    import dataclasses

    def known(value: Any) -> Any:
        return Missing if value is dataclasses.MISSING else value

    item = Item(known(real.default), known(real.default_factory), real.repr, real.compare)
    item.name, item.type = real.name, str(real.type)
    return item


class _AsDataclass:
    """`__dataclass_fields__` or `__dataclass_params__`, taken from a real dataclass of the same fields."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, noun_class: type) -> Any:
        items = fields(noun_class)
        if noun_class is Noun:  # has no fields and is no dataclass
            raise AttributeError(self._name)
        import dataclasses

        namespace: dict[str, Any] = {"__annotations__": {item.name: item.type for item in items}, "__doc__": ""}
        for item in items:
            options: dict[str, Any] = {"repr": item.repr, "compare": item.compare}
            if item.default is not Missing:
                options["default"] = item.default
            if item.default_factory is not Missing:
                options["default_factory"] = item.default_factory
            namespace[item.name] = dataclasses.field(**options)
        twin: Any = dataclasses.dataclass(frozen=True, eq=False, repr=False)(type(noun_class.__name__, (), namespace))
        return getattr(twin, self._name)


class Noun:
    """Frozen; compared and hashed by the fields with `compare`, shown by those with `repr`."""

    _items: ClassVar[tuple[Item, ...]] = ()

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, Any]]
    else:
        __dataclass_fields__ = _AsDataclass("__dataclass_fields__")
        __dataclass_params__ = _AsDataclass("__dataclass_params__")

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, item.name) for item in fields(type(self)) if item.compare)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return type(self) is type(other) and isinstance(other, Noun) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        shown = (f"{item.name}={getattr(self, item.name)!r}" for item in fields(type(self)) if item.repr)
        return f"{type(self).__qualname__}({', '.join(shown)})"

    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: object) -> None:
            from dataclasses import FrozenInstanceError

            raise FrozenInstanceError(f"cannot assign to field {name!r}")

        def __delattr__(self, name: str) -> None:
            from dataclasses import FrozenInstanceError

            raise FrozenInstanceError(f"cannot delete field {name!r}")


def _noun(cls: type) -> type:
    inherited = [item for base in cls.__mro__[1:2] for item in fields(base)]
    own = []
    for name, written in _annotations(cls).items():
        if "ClassVar" in str(written):
            continue
        given = cls.__dict__.get(name, Missing)
        item = given if isinstance(given, Item) else Item(given)
        item.name, item.type = name, str(written)
        if item.default is not Missing:
            setattr(cls, name, item.default)
        elif isinstance(given, Item):
            delattr(cls, name)
        own.append(item)
    items = (*inherited, *own)
    cls._items = items  # type: ignore[attr-defined]  # what makes it a noun
    cls.__init__ = _initializer(items, hasattr(cls, "__post_init__"))  # type: ignore[misc]  # generated
    setattr(cls, "__match_args__", tuple(item.name for item in items))  # noqa: B010 - no annotated attribute of type
    return cls


def _annotations(cls: type) -> dict[str, str]:
    """The class's own, as written: `from __future__ import annotations` holds where nouns are made."""
    return getattr(cls, "__annotations__", {}) if "__annotations__" in vars(cls) else {}


def _initializer(items: tuple[Item, ...], has_post_init: bool) -> Callable[..., None]:
    """`__init__` as `dataclass` would write it: fields in order, defaults by reference, factories called."""
    scope: dict[str, Any] = {"_set": object.__setattr__, "_Missing": Missing}
    arguments, body = [], []
    for item in items:
        name = item.name
        if item.required:
            arguments.append(name)
        elif item.default_factory is not Missing:
            scope[f"_make_{name}"] = item.default_factory
            arguments.append(f"{name}=_Missing")
            body.append(f" if {name} is _Missing: {name} = _make_{name}()")
        else:
            scope[f"_default_{name}"] = item.default
            arguments.append(f"{name}=_default_{name}")
        body.append(f" _set(self, {name!r}, {name})")
    if has_post_init:
        body.append(" self.__post_init__()")
    exec(f"def __init__({', '.join(['self', *arguments])}):\n" + "\n".join(body or [" pass"]), scope)
    made: Callable[..., None] = scope["__init__"]
    return made


if TYPE_CHECKING:

    @dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
    def noun(cls: type[T]) -> type[T]:
        """Makes a class with annotated fields a frozen dataclass. The class inherits from `Noun`."""
        return cls
else:
    noun = _noun
