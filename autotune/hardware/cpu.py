"""The CPU's profile from /proc and /sys under a root folder, so that fake trees test it.

Everything may be missing (a container without /sys, a sandbox without /proc): what cannot be found out is left
at its neutral value, and nothing raises. Of /proc/cpuinfo only the first processor's block is read where that
is enough: the file has a megabyte on a large machine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping, Sequence

from autotune.hardware import cpu_names, limits
from autotune.hardware.sysfs import cpu_list, number, read, read_until
from autotune.types import Cache, HardwareProfile

_X86_FLAGS = (
    "sse4_2 avx avx2 fma f16c avx_vnni avx_vnni_int8 avx_ifma avx512f avx512bw avx512vl avx512dq avx512cd avx512ifma "
    "avx512vbmi avx512_vbmi2 avx512_vnni avx512_bf16 avx512_fp16 avx512_bitalg avx512_vpopcntdq amx_tile amx_int8 "
    "amx_bf16 amx_fp16 gfni abm bmi1 bmi2 movbe popcnt"
)
_ARM_FLAGS = (
    "asimd asimdhp asimddp asimdfhm asimdrdm fphp fcma i8mm bf16 sve sve2 svei8mm svebf16 sme sme2 atomics lrcpc "
    "neon vfpv4"
)
ISA_FLAGS = frozenset(f"{_X86_FLAGS} {_ARM_FLAGS}".split())
"""Vector and matrix units, and whatever else a compiler emits for -march=native: an object that holds such an
instruction must not be taken for runnable on a machine where the flag is masked."""

_HYBRID_MAX_CORES = 64
"""Larger machines are not hybrid; asking each core would take longer than the rest of the detection."""

_SLOWER = (("cpu_capacity", 0.6), ("cpufreq/cpuinfo_max_freq", 0.8))
"""Below this share of the fastest core's figure a core is an efficiency core. Favoured cores of one kind differ
by up to a tenth in frequency, and the big cores of one phone chip by up to a third in capacity."""


def profile(
    root: str = "/", environ: Mapping[str, str] = os.environ, affinity: Collection[int] | None = None
) -> HardwareProfile:
    """The CPU described under `root`, with what this process may use of it; never raises."""
    prefix = root.rstrip("/")
    if prefix == "" and not sys.platform.startswith("linux"):
        return _portable(environ)
    cpu_dir = f"{prefix}/sys/devices/system/cpu"
    first = _block(read_until(f"{prefix}/proc/cpuinfo", b"\n\n"))
    online = cpu_list(read(f"{cpu_dir}/online")) or cpu_list(read(f"{cpu_dir}/present"))
    cores = _cores(cpu_dir, online)
    if not cores or not any(name in first for name in ("flags", "Features")):  # old kernels put Features last
        blocks = _blocks(prefix)
        first = {**_merged(blocks), **first}
        if not online:
            online = tuple(range(sum("processor" in block for block in blocks))) or tuple(range(_count(prefix)))
        cores = cores or _cores_of_blocks(blocks, len(online))
    performance, efficiency, fastest = _classes(prefix, cores)
    allowed = limits.measure(root, environ, affinity, len(online))
    blocks = _blocks(prefix) if efficiency and "CPU implementer" in first else [first]
    silicon = cpu_names.describe(first, blocks, os.uname().machine if prefix == "" else "")
    flags = first.get("flags") or first.get("Features") or ""
    return HardwareProfile(
        kind="cpu",
        name=silicon.name,
        vendor=silicon.vendor,
        arch=silicon.arch,
        model=silicon.model,
        isa=tuple(ISA_FLAGS.intersection(flags.split())),
        physical_cores=max(1, len(cores)),
        logical_cores=max(1, len(online)),
        performance_cores=performance,
        efficiency_cores=efficiency,
        caches=_caches(f"{cpu_dir}/cpu{fastest}/cache"),
        numa_nodes=_numa_nodes(prefix),
        memory_bytes=min(filter(None, (_memory_bytes(prefix), allowed.memory_bytes)), default=0),
        allowed_cpus=allowed.allowed_cpus,
    )


def _block(text: str) -> dict[str, str]:
    """The "name : value" lines of one processor; of a repeated name, the first."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), value.strip())
    return found


def _blocks(prefix: str) -> list[dict[str, str]]:
    return [_block(part) for part in read_until(f"{prefix}/proc/cpuinfo").split("\n\n") if part.strip()]


def _merged(blocks: Sequence[Mapping[str, str]]) -> dict[str, str]:
    merged: dict[str, str] = {}
    for block in reversed(blocks):
        merged.update(block)
    return merged


def _count(prefix: str) -> int:
    return (os.cpu_count() or 1) if prefix == "" else 1


def _cores(cpu_dir: str, online: Sequence[int]) -> list[tuple[int, ...]]:
    """The online logical CPUs grouped by physical core; empty where the kernel does not tell."""
    topology = f"{cpu_dir}/cpu{online[0]}/topology" if online else ""
    if not topology or not (read(f"{topology}/core_cpus_list") or read(f"{topology}/thread_siblings_list")):
        return []
    if read(f"{cpu_dir}/smt/active") == "0":
        return [(cpu,) for cpu in online]
    known, seen = set(online), set[int]()
    cores = []
    for cpu in online:
        if cpu in seen:
            continue
        topology = f"{cpu_dir}/cpu{cpu}/topology"
        listed = cpu_list(read(f"{topology}/core_cpus_list") or read(f"{topology}/thread_siblings_list"))
        siblings = tuple(sorted(known.intersection(listed) | {cpu}))
        seen.update(siblings)
        cores.append(siblings)
    return cores


def _cores_of_blocks(blocks: Sequence[Mapping[str, str]], logical: int) -> list[tuple[int, ...]]:
    """The same from /proc/cpuinfo; every logical CPU its own core where that does not tell either."""
    cores: dict[tuple[str, str], list[int]] = {}
    for position, block in enumerate(block for block in blocks if "processor" in block):
        if "core id" not in block:
            break
        cores.setdefault((block.get("physical id", ""), block["core id"]), []).append(position)
    if sum(map(len, cores.values())) != logical:
        return [(cpu,) for cpu in range(logical)]
    return [tuple(core) for core in cores.values()]


def _classes(prefix: str, cores: Sequence[Sequence[int]]) -> tuple[int, int, int]:
    """(performance cores, efficiency cores, a CPU of the fastest kind); 0 and 0 where all cores are alike."""
    first = cores[0][0] if cores else 0
    big = set(cpu_list(read(f"{prefix}/sys/devices/cpu_core/cpus")))
    little = set(cpu_list(read(f"{prefix}/sys/devices/cpu_atom/cpus")))
    fast = [core[0] for core in cores if core[0] in big]
    slow = [core[0] for core in cores if core[0] in little]
    if fast and slow:
        return len(fast), len(slow), fast[0]
    if not 1 < len(cores) <= _HYBRID_MAX_CORES:
        return 0, 0, first
    for file, share in _SLOWER:
        figures = []
        for core in cores:
            figure = number(f"{prefix}/sys/devices/system/cpu/cpu{core[0]}/{file}")
            if figure is None:
                break
            figures.append(figure)
        if len(figures) == len(cores):
            top = max(figures)
            efficient = sum(figure < share * top for figure in figures)
            if efficient:
                return len(cores) - efficient, efficient, cores[figures.index(top)][0]
    return 0, 0, first


def _caches(folder: str) -> tuple[Cache, ...]:
    """Data and unified caches of one CPU, innermost first."""
    found = []
    for index in range(10):
        level = number(f"{folder}/index{index}/level")
        if level is None:
            break
        if read(f"{folder}/index{index}/type") not in ("Data", "Unified"):
            continue
        size = _size_bytes(read(f"{folder}/index{index}/size"))
        if size:
            shared = cpu_list(read(f"{folder}/index{index}/shared_cpu_list"))
            found.append(Cache(level, size, max(1, len(shared))))
    return tuple(sorted(found, key=lambda item: item.level))


def _size_bytes(text: str) -> int:
    """Bytes of "32K", "36M" or a plain number; 0 for anything else."""
    digits = text.rstrip("KMGB ")
    if not (digits.isascii() and digits.isdigit()):
        return 0
    return int(digits) << {"K": 10, "M": 20, "G": 30}.get(text[len(digits) :].strip()[:1], 0)


def _numa_nodes(prefix: str) -> int:
    """Nodes that have CPUs: GPUs and memory expanders may add nodes without."""
    folder = f"{prefix}/sys/devices/system/node"
    return max(1, len(cpu_list(read(f"{folder}/has_cpu")) or cpu_list(read(f"{folder}/online"))))


def _memory_bytes(prefix: str) -> int:
    for line in read(f"{prefix}/proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            words = line.split()
            return int(words[1]) << 10 if len(words) > 1 and words[1].isdigit() else 0
    return 0


def _portable(environ: Mapping[str, str]) -> HardwareProfile:
    """macOS, Windows and others: what the standard library knows."""
    import platform

    machine = platform.machine().lower()
    arch = {"arm64": "aarch64", "amd64": "x86_64"}.get(machine, machine)
    logical = os.cpu_count() or 1
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        memory = 0
    return HardwareProfile(
        kind="cpu",
        name=platform.processor() or machine or "unknown CPU",
        vendor="Apple" if sys.platform == "darwin" and arch == "aarch64" else "",
        arch=arch,
        model=f"{sys.platform} {machine}",
        isa=("asimd",) if arch == "aarch64" else (),
        physical_cores=logical,
        logical_cores=logical,
        memory_bytes=max(0, memory),
        allowed_cpus=limits.measure("/", environ, online=logical).allowed_cpus,
    )
