"""How many CPUs and how much memory this process may use: affinity, cgroup v1 and v2, Slurm. The smallest counts.

A fractional quota is rounded down (at least 1): that many threads can run all the time. With one thread more,
the kernel stops all of them for the rest of each 100 ms period once the quota is used up, and a kernel whose
threads wait for one another then stalls for tens of milliseconds. A short trial sees only the burst before
that, so the tuner would choose thread counts that are fast in the trial and slow in service.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping

from autotune import settings
from autotune.hardware.sysfs import cpu_list, number, read
from autotune.noun import Noun, noun

_UNLIMITED_BYTES = 1 << 60  # cgroup v1 writes "no limit" as 2^63 less a page


@noun
class Limits(Noun):
    """Each source's figure, in CPUs or bytes; None where that source sets no limit."""

    online: int  # logical CPUs of the machine
    affinity: int | None = None
    cpuset: int | None = None
    quota: float | None = None  # CPU seconds per second, the least of all enclosing cgroups
    slurm: int | None = None
    memory_bytes: int | None = None

    def cpus(self) -> dict[str, int]:
        """Whole CPUs that each source allows, by its name for people; sources without a limit are left out."""
        quota = None if self.quota is None else max(1, int(self.quota))
        figures = {
            "online CPUs": self.online,
            "affinity": self.affinity,
            "cgroup cpuset": self.cpuset,
            "cgroup quota": quota,
            "SLURM_CPUS_PER_TASK": self.slurm,
        }
        return {name: max(1, figure) for name, figure in figures.items() if figure is not None}

    @property
    def allowed_cpus(self) -> int:
        return min(self.cpus().values())

    @property
    def decided_by(self) -> str:
        """The source of `allowed_cpus`; of several with the same figure, the first of `cpus()`."""
        figures = self.cpus()
        return min(figures, key=lambda name: figures[name])


def measure(
    root: str = "/",
    environ: Mapping[str, str] = os.environ,
    affinity: Collection[int] | None = None,
    online: int | None = None,
) -> Limits:
    """The limits found under `root`. Never raises; what cannot be read is no limit.

    `affinity`: the CPUs this process may run on; by default the kernel is asked, for the real root only.
    `online`: the machine's logical CPUs, when the caller has counted them.
    """
    prefix = root.rstrip("/")
    if affinity is None and prefix == "" and hasattr(os, "sched_getaffinity"):
        affinity = os.sched_getaffinity(0)
    if online is None:
        online = len(cpu_list(read(f"{prefix}/sys/devices/system/cpu/online"))) or os.cpu_count() or 1
    quota: list[float] = []
    memory: list[int] = []
    cpuset = 0
    for kind, folder in _groups(prefix):
        if kind in ("v2", "cpu"):
            share = _quota_v2(folder) if kind == "v2" else _quota_v1(folder)
            if share is not None:
                quota.append(share)
        if kind in ("v2", "memory"):
            limit = number(f"{folder}/memory.max" if kind == "v2" else f"{folder}/memory.limit_in_bytes")
            if limit is not None and 0 < limit < _UNLIMITED_BYTES:
                memory.append(limit)
        if kind in ("v2", "cpuset") and not cpuset:  # the innermost group that has one is within all outer ones
            cpuset = _cpuset(folder)
    return Limits(
        online=online,
        affinity=len(affinity) if affinity else None,
        cpuset=cpuset or None,
        quota=min(quota) if quota else None,
        slurm=settings.slurm_cpus(environ),
        memory_bytes=min(memory) if memory else None,
    )


def _groups(prefix: str) -> Iterator[tuple[str, str]]:
    """("v2" or the v1 controller, folder) of this process's cgroups and all that enclose them, innermost first.

    In a container the path is often relative to a root that is not the one mounted: folders that do not exist
    read as empty, and walking up ends at the mount, which then is the container's own group.
    """
    mount = f"{prefix}/sys/fs/cgroup"
    paths = {"": "/", "cpu": "/", "cpuset": "/", "memory": "/"}
    names = {"cpu": "cpu", "cpuset": "cpuset", "memory": "memory"}
    for line in read(f"{prefix}/proc/self/cgroup", 1 << 14).splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        for controller in controllers.split(","):
            if controller in paths:
                paths[controller] = path if path.startswith("/") and "/.." not in path else "/"
                names[controller] = controllers
    if os.path.exists(f"{mount}/cgroup.controllers"):
        yield from (("v2", folder) for folder in _upwards(mount, paths[""]))
        return
    if os.path.exists(f"{mount}/unified"):
        yield from (("v2", folder) for folder in _upwards(f"{mount}/unified", paths[""]))
    else:
        yield "v2", mount  # a bare tree without cgroup.controllers, as some sandboxes show
    for controller, listed in names.items():
        base = f"{mount}/{listed}"
        if not os.path.exists(base):
            base = f"{mount}/{controller}"
        if os.path.exists(base):
            yield from ((controller, folder) for folder in _upwards(base, paths[controller]))


def _upwards(mount: str, path: str) -> Iterator[str]:
    parts = [part for part in path.split("/") if part]
    for count in range(len(parts), -1, -1):
        yield "/".join((mount, *parts[:count]))


def _quota_v2(folder: str) -> float | None:
    """`cpu.max`: "200000 100000" is 2 CPUs, "max 100000" no limit; the period may be left out."""
    words = read(f"{folder}/cpu.max").split()
    if not words or not words[0].isdigit():
        return None
    period = int(words[1]) if len(words) > 1 and words[1].isdigit() else 100_000
    return int(words[0]) / period if period and int(words[0]) else None


def _quota_v1(folder: str) -> float | None:
    """`cpu.cfs_quota_us` over `cpu.cfs_period_us`; a quota of -1 is no limit."""
    quota = number(f"{folder}/cpu.cfs_quota_us")
    return quota / (number(f"{folder}/cpu.cfs_period_us") or 100_000) if quota else None


def _cpuset(folder: str) -> int:
    """CPUs in the group's cpuset, 0 where it has none."""
    for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
        cpus = cpu_list(read(f"{folder}/{name}"))
        if cpus:
            return len(cpus)
    return 0
