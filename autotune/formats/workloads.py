"""Kinds of workload that are known from other tools' results only: described in full, computed by nothing here."""

from __future__ import annotations

import re

from autotune.dtypes import ITEMSIZE_BYTES
from autotune.errors import InvalidInput
from autotune.noun import noun
from autotune.workload import Pair, Workload

DIRECTIONS = ("forward", "backward_data", "backward_weights")
LAYOUTS = ("nchw", "channels_last")

_NAME = re.compile(r"[\w.,:+-]{1,200}")


@noun
class MiopenConv(Workload):
    """A 2-D convolution in any direction as MIOpen's databases know it, sizes as in the forward pass.

    The result's sizes are fields, because a few of MIOpen's problems do not follow the usual formula.
    """

    op = "miopen_conv"
    minimum = {"n": 1, "c": 1, "k": 1, "stride": 1, "dilation": 1, "groups": 1}  # noqa: RUF012 - read-only
    choices = {"direction": DIRECTIONS, "layout": LAYOUTS}  # noqa: RUF012 - read-only

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    out_h: int
    out_w: int
    direction: str
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    dtype: str = "f32"
    layout: str = "nchw"
    bias: bool = False

    @property
    def flops(self) -> int:
        return 2 * self.n * self.k * self.out_h * self.out_w * (self.c // self.groups) * self.r * self.s

    @property
    def bytes(self) -> int:
        weight = self.k * (self.c // self.groups) * self.r * self.s
        image, result = self.n * self.c * self.h * self.w, self.n * self.k * self.out_h * self.out_w
        return (image + weight + result) * ITEMSIZE_BYTES[self.dtype]


@noun
class RecordedKernel(Workload):
    """A kernel of somebody else's on one problem: `kernel` and `problem` are names, letters and digits without spaces.

    What it computes, hence its operations and bytes, is not known: both are 0.
    """

    op = "recorded_kernel"

    kernel: str
    problem: str = ""

    def __post_init__(self) -> None:
        for name, needed in (("kernel", True), ("problem", False)):
            value = getattr(self, name)
            if not isinstance(value, str) or ((value or needed) and not _NAME.fullmatch(value)):
                raise InvalidInput(f"{name}={value!r} is not a name of letters, digits and . , : + - _")
        identity = (self.op, self.kernel, self.problem)
        object.__setattr__(self, "_identity", identity)
        object.__setattr__(self, "_hash", hash(identity))

    @property
    def flops(self) -> int:
        return 0

    @property
    def bytes(self) -> int:
        return 0

    @property
    def is_empty(self) -> bool:
        return False
