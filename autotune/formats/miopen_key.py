"""The key of a convolution problem in MIOpen's databases, read and written.

    2-D   C-H-W-YxX-K-Ho-Wo-N-PHxPW-SHxSW-DHxDW-bias-layout-dtype-dir[_g<groups>][_ci<type>][_cw<type>][_co<type>]
    3-D   C-D-H-W-ZxYxX-K-Do-Ho-Wo-N-PDxPHxPW-SDxSHxSW-DDxDHxDW-bias-layout-dtype-dir[…]

`layout` is one token where image, weight and result agree on NCHW or NCDHW, else three; `dir` is F, B (gradient of the
image) or W (of the weight). MIOpen's ProblemDescription::Serialize writes for B and W the sizes of the result first and
those of the image second. `Problem` holds them as the forward pass has them, whatever the direction.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from autotune.errors import InvalidInput

DIRECTIONS = {"F": "forward", "B": "backward_data", "W": "backward_weights"}

_LAYOUT = r"(?P<layout>[A-Z]{4,5}\w*(?:-[A-Z]{4,5}\w*-[A-Z]{4,5}\w*)?)"
_END = rf"(?P<bias>\d+)-{_LAYOUT}-(?P<dtype>[A-Z0-9]+)-(?P<direction>[FBW])(?P<rest>(?:_[a-z]\w*?)*)"


def _pattern(axes: int) -> re.Pattern[str]:
    size = "-".join([r"\d+"] * axes)
    by = "x".join([r"\d+"] * axes)
    return re.compile(
        rf"(?P<c>\d+)-(?P<image>{size})-(?P<filter>{by})-(?P<k>\d+)-(?P<result>{size})-(?P<n>\d+)"
        rf"-(?P<pad>{by})-(?P<stride>{by})-(?P<dilation>{by})-{_END}"
    )


_PATTERNS = (_pattern(2), _pattern(3))
_GROUPS = re.compile(r"_g(\d+)")


@dataclass(frozen=True, slots=True)
class Problem:
    """A convolution problem, sizes as in the forward pass. Axes are (depth,) height, width: two or three each.

    `casts`: what follows the groups in a key, as written.
    """

    n: int
    c: int
    image: tuple[int, ...]
    k: int
    filter: tuple[int, ...]
    result: tuple[int, ...]
    pad: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    bias: int
    layout: str
    dtype: str
    direction: str  # F, B or W
    casts: str = ""

    @property
    def axes(self) -> int:
        return len(self.image)

    @property
    def key(self) -> str:
        """As MIOpen writes it."""
        one, two = (self.c, self.image), (self.k, self.result)
        if self.direction != "F":
            one, two = two, one
        sizes = [_by("-", (one[0], *one[1])), _by("x", self.filter), _by("-", (two[0], *two[1])), str(self.n)]
        steps = [_by("x", self.pad), _by("x", self.stride), _by("x", self.dilation)]
        groups = f"_g{self.groups}" if self.groups != 1 else ""
        end = f"{self.bias}-{self.layout}-{self.dtype}-{self.direction}{groups}{self.casts}"
        return "-".join((*sizes, *steps, end))

    @property
    def layer(self) -> tuple[int | tuple[int, ...], ...]:
        """What makes a layer, whatever the batch, dtype, layout and direction."""
        return (self.c, self.k, self.image, self.filter, self.stride, self.pad, self.dilation, self.groups)

    @property
    def flops(self) -> int:
        """Floating-point operations by the definition, a multiply-add counted as two; alike in all directions."""
        total = 2 * self.n * self.k * self.c // self.groups
        for size in (*self.result, *self.filter):
            total *= size
        return total


def parse(key: str) -> Problem:
    """The problem of a key. Raises `InvalidInput` with what is wrong."""
    for pattern in _PATTERNS:
        found = pattern.fullmatch(key)
        if found is not None:
            break
    else:
        raise InvalidInput(f"the key {key[:100]!r} is not that of a 2-D or 3-D convolution")
    get = found.group
    groups, rest = 1, get("rest")
    stated = _GROUPS.match(rest)
    if stated is not None:
        groups, rest = int(stated.group(1)), rest[stated.end() :]
    one = (int(get("c")), _numbers(get("image"), "-"))
    two = (int(get("k")), _numbers(get("result"), "-"))
    if get("direction") != "F":
        one, two = two, one
    made = Problem(
        int(get("n")), *one, two[0], _numbers(get("filter"), "x"), two[1], _numbers(get("pad"), "x"),
        _numbers(get("stride"), "x"), _numbers(get("dilation"), "x"), groups, int(get("bias")), get("layout"),
        get("dtype"), get("direction"), rest,
    )  # fmt: skip
    if not groups or made.c % groups or made.k % groups:
        raise InvalidInput(f"{key[:100]}: {groups} groups do not divide {made.c} and {made.k} channels")
    return made


def _numbers(text: str, separator: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(separator)))


def _by(separator: str, numbers: tuple[int, ...]) -> str:
    return separator.join(map(str, numbers))
