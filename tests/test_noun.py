"""`@noun` classes are frozen dataclasses in every respect but the cost of defining them."""

from __future__ import annotations

import copy
import dataclasses
import subprocess
import sys
from dataclasses import FrozenInstanceError, dataclass

import pytest

from autotune import Linear
from autotune.noun import Noun, field, noun
from autotune.types import Config, Workload


@noun
class Point(Noun):
    """A point."""

    x: int
    y: int = 2
    tags: list[str] = field(default_factory=list)
    hidden: int = field(default=0, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x")


def test_construction_by_position_name_and_default() -> None:
    assert Point(1) == Point(x=1, y=2, tags=[], hidden=7)
    assert Point(1).tags is not Point(1).tags
    with pytest.raises(TypeError):
        Point()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Point(1, z=2)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="x"):
        Point(-1)


def test_frozen() -> None:
    point = Point(1)
    with pytest.raises(FrozenInstanceError):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del point.x


def test_shown_compared_and_hashed_by_its_fields() -> None:
    assert repr(Point(1)) == "Point(x=1, y=2, tags=[])"
    assert Point(1) != Point(2)
    assert Point(1) != (1, 2, [], 0)
    assert hash(Config("a")) == hash(Config("a"))


def test_the_tools_for_dataclasses_work() -> None:
    assert dataclasses.is_dataclass(Point)
    assert [f.name for f in dataclasses.fields(Point)] == ["x", "y", "tags", "hidden"]
    assert dataclasses.replace(Point(1), y=5) == Point(1, 5)
    assert dataclasses.asdict(Point(1)) == {"x": 1, "y": 2, "tags": [], "hidden": 0}
    assert copy.deepcopy(Point(1)) == Point(1)
    assert not dataclasses.is_dataclass(Noun)
    match Point(1, 9):
        case Point(x, y):
            assert (x, y) == (1, 9)


def test_real_dataclasses_may_inherit_from_a_noun() -> None:
    @dataclass(frozen=True, eq=False)
    class Mine(Workload):
        """A workload of somebody else's."""

        op = "mine"
        n: int
        dtype: str = "f32"

    assert Mine(3).spec == "mine n=3 dtype=f32"
    assert Mine(3) == Mine(n=3)
    assert Mine.from_dims({"n": 3}) == Mine(3)
    assert dataclasses.replace(Mine(3), n=4).n == 4
    with pytest.raises(FrozenInstanceError):
        Mine(3).n = 4  # type: ignore[misc]


def test_a_noun_may_inherit_fields() -> None:
    @noun
    class Wider(Linear):
        """A linear layer with one more field."""

        groups: int = 1

    assert Wider(1, 2, 3, groups=4).groups == 4
    assert Wider(1, 2, 3).spec == Linear(1, 2, 3).spec


def test_defining_nouns_imports_nothing_slow() -> None:
    code = "import sys, autotune; autotune.Linear(m=1, n=2, k=3).key; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    assert not {"dataclasses", "inspect", "typing", "hashlib"} & set(done.stdout.split())
