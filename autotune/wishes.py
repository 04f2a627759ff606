"""Wishes on their way from lookups to the database, and what granting one is worth.

A lookup that missed must not wait for a database, so it appends one line to a file beside it: `note`. Commands that
open the store `collect` these lines into its `wishes` table. Standard library only, and nothing slow at import.
"""

from __future__ import annotations

import os

from autotune import registry, settings
from autotune.dbschema import sqlite_path
from autotune.errors import AutotuneError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from autotune.store import Store, Wish
    from autotune.types import HardwareProfile, Workload

MOST_NOTES = 10_000
"""Lines a process appends at most, and about as many as a file may hold: a queue, not a log."""

MOST_BYTES = 4 << 20

PRIOR_SPEEDUP = 1.3
"""Expected of an op of which nothing was decided on that machine."""

FALLBACK_GFLOPS, FALLBACK_GBS = 100.0, 20.0
"""Of a machine whose figures were not measured."""

_noted: set[tuple[str, str]] = set()


def spool() -> str:
    """The file beside the user's database; for a database on a server, beside the file there would be without one."""
    path = sqlite_path(settings.database()) or settings.database({**os.environ, "AUTOTUNE_DB": ""})
    return f"{path}.wishes"


def note(spec: str, hardware_key: str) -> None:
    """Remembers that a workload was looked up and not known: once per process, without waiting, and without raising."""
    if (spec, hardware_key) in _noted or len(_noted) >= MOST_NOTES:
        return
    _noted.add((spec, hardware_key))
    try:
        path = spool()
        os.makedirs(os.path.dirname(path), exist_ok=True)
        line = f"{hardware_key}\t{spec}\n".encode()
        for _ in range(3):
            if _append(path, line):
                return
    except (OSError, AutotuneError, ValueError):
        pass


def _append(path: str, line: bytes) -> bool:
    """Adds a line to the file; False when it was being taken away, and another one is to be begun."""
    import fcntl

    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        found = os.fstat(descriptor)
        if not found.st_nlink:
            return False
        if found.st_size < MOST_BYTES:
            os.write(descriptor, line)  # one write: lines do not mix
        return True
    except BlockingIOError:  # `collect` reads it
        return False
    finally:
        os.close(descriptor)


def collect(store: Store) -> int:
    """Moves noted wishes into the store's queue; returns how many lines were taken over.

    The file is renamed first: what is noted meanwhile begins a new one, and a renamed one that was left behind is
    taken over the next time. One process does so at a time, and waits for a line that is being written. Only a crash
    between commit and removal counts lines twice, which makes their workloads a little more wanted. Lines that say
    nothing are passed over.
    """
    import fcntl

    path, moved = spool(), 0
    taken = f"{path}.taken"
    if not os.path.exists(path) and not os.path.exists(taken):
        return 0
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for _ in range(2):  # what an interrupted run left, then what was noted since
            if not os.path.exists(taken):
                try:
                    os.rename(path, taken)
                except OSError:
                    return moved
            with open(taken, encoding="utf-8", errors="replace") as lines:
                fcntl.flock(lines, fcntl.LOCK_EX)
                found = [wish for line in lines if (wish := _parse(line)) is not None]
                store.wish(_united(found))
                os.unlink(taken)
            moved += len(found)
    return moved


def _parse(line: str) -> Wish | None:
    from autotune.store import Wish

    hardware_key, _, spec = line.rstrip("\n").partition("\t")
    try:
        return Wish(registry.parse_workload(spec), hardware_key)
    except AutotuneError:
        return None


def _united(found: Iterable[Wish]) -> list[Wish]:
    """One wish per workload and machine, as often asked as all of them together."""
    from autotune.store import Wish

    asked: dict[tuple[str, str], Wish] = {}
    for wish in found:
        key = (wish.workload.key, wish.hardware_key)
        before = asked.get(key)
        asked[key] = wish if before is None else Wish(wish.workload, wish.hardware_key, before.asked + 1, wish.weight)
    return list(asked.values())


def by_gain(store: Store, wishes: Iterable[Wish], profile: HardwareProfile) -> list[tuple[float, Wish]]:
    """Wishes and the seconds that granting each is expected to save, the largest first.

    gain = asked · weight · t · (1 - 1/s): t is the default's time by the roofline; s is the geometric mean of what
    tuning has gained for that op on that machine.
    """
    gains = store.gains(profile.key)
    found = []
    for wish in wishes:
        seconds = roofline_ns(wish.workload, profile) / 1e9
        gain = 1 - 1 / max(gains.get(wish.workload.op, PRIOR_SPEEDUP), 1.0)
        found.append((wish.asked * wish.weight * seconds * gain, wish))
    found.sort(key=lambda item: (-item[0], item[1].workload.key))
    return found


def roofline_ns(workload: Workload, profile: HardwareProfile) -> float:
    """max(flops / peak, bytes / bandwidth) with the profile's measured figures, or usual ones of a small machine."""
    peak = float(max(profile.peak_gflops.values(), default=FALLBACK_GFLOPS))  # GFLOP/s are flops per ns
    return max(workload.flops / peak, workload.bytes / (profile.bandwidth_gbs or FALLBACK_GBS))
