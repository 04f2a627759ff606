"""GPU architectures as Triton's compiler names its targets."""

from __future__ import annotations

from autotune.errors import InvalidInput
from autotune.hardware.gpu_limits import LIMITS, limits_of
from autotune.noun import Noun, noun


@noun
class Target(Noun):
    """`backend`: "cuda" or "hip". `chip`: 90 or "gfx942"."""

    backend: str
    chip: int | str
    warp_size: int


def target_of(arch: str) -> Target:
    """The target of "sm_90", "gfx942" …; raises `InvalidInput` for an architecture without a table of limits."""
    limits = limits_of(arch)
    if limits is None:
        raise InvalidInput(f"unknown architecture {arch!r}; there are {', '.join(LIMITS)}")
    if arch.startswith("sm_"):
        return Target("cuda", int(arch.removeprefix("sm_")), limits.warp_size)
    return Target("hip", arch, limits.warp_size)
