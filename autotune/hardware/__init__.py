"""Hardware contract: what this machine is. `detect` for its CPU, `devices` for that and its GPUs.

A profile says what the silicon is and what this process may use of it (see `types.HardwareProfile`). Detection
reads, measures nothing, needs only the standard library and never raises: it is on the path of the first
lookup. Measured figures (`probe`) are features, not identity, and come with `devices`.
Thread-safe: two first calls at once both read, and find the same.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from autotune.hardware import cpu
from autotune.types import HardwareProfile

_detected: HardwareProfile | None = None


def detect(
    root: str = "/", environ: Mapping[str, str] = os.environ, affinity: Collection[int] | None = None
) -> HardwareProfile:
    """The CPU's profile under `root`, without measured figures; this machine's own is read once per process.

    `affinity`: the CPUs this process may run on, by default what the kernel says (for the real root only).
    """
    global _detected
    if root != "/" or environ is not os.environ or affinity is not None:
        return cpu.profile(root, environ, affinity)
    if _detected is None:
        _detected = cpu.profile()
    return _detected


def forget() -> None:
    """Makes the next `detect()` read again: the affinity or the limits have changed."""
    global _detected
    _detected = None


def devices(environ: Mapping[str, str] = os.environ) -> tuple[HardwareProfile, ...]:
    """The CPU, with its measured figures when it was probed before, and the GPUs that this process may use."""
    from autotune.hardware import gpu, probe

    return (probe.cached(detect()), *gpu.profiles(environ))
