"""Whether something else was using the machine while we measured."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class _Reading:
    wall_s: float
    stalled_s: float | None  # pressure stall information: some task waited for a CPU
    busy_s: float | None  # all CPUs, user + system + steal, from /proc/stat
    own_s: float


def _read() -> _Reading:
    own = os.times()
    return _Reading(time.monotonic(), _stalled_s(), _busy_s(), own.user + own.system)


def _stalled_s() -> float | None:
    try:
        with open("/proc/pressure/cpu", encoding="ascii") as file:
            line = file.readline()
        return int(line.rpartition("total=")[2]) / 1e6
    except (OSError, ValueError):
        return None


def _busy_s() -> float | None:
    try:
        with open("/proc/stat", encoding="ascii") as file:
            words = file.readline().split()
        ticks = [int(word) for word in words[1:9]]
        user, nice, system, steal = ticks[0], ticks[1], ticks[2], ticks[7]
        return (user + nice + system + steal) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


class ContentionWatch:
    """Started before the timing, asked after it.

    Uses the kernel's pressure stall time where there is one (exact to the microsecond), else the busy time of
    all CPUs less our own, which counts in hundredths of a second and so is only trusted over longer windows.
    """

    def __init__(self) -> None:
        self._begin = _read()

    def contended(self, tolerated: float) -> bool:
        """Whether others took, or something waited for, more than that share of the time since the start."""
        now, begin = _read(), self._begin
        wall = max(now.wall_s - begin.wall_s, 1e-9)
        if now.stalled_s is not None and begin.stalled_s is not None:
            return (now.stalled_s - begin.stalled_s) / wall > tolerated
        if now.busy_s is not None and begin.busy_s is not None and wall > 0.1:
            others = (now.busy_s - begin.busy_s) - (now.own_s - begin.own_s)
            return others / wall > tolerated
        return False
