"""Short measurements of what the CPU can reach: multiply-add peak per dtype, and memory bandwidth.

Made once per profile (about a second on all allowed CPUs, half of it compiling) and kept as JSON in the cache
folder. The figures are features for people and for the cost model, never part of a key. The method is
described in kernels/cpp/probe.cpp.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field, replace
from typing import Any

from autotune import paths, settings
from autotune.errors import Unavailable
from autotune.types import HardwareProfile

_VERSION = 1  # of method and file; figures of another one are measured again
_ROUND_S = 0.002
_ROUNDS = 100
_MOST_S = 0.3  # per figure; reached where other programs keep the threads waiting
_MOST_BUFFER_BYTES = 1 << 30
_LEAST_BUFFER_BYTES = 1 << 26
_ASSUMED_CACHE_BYTES = 32 << 20  # where the machine does not tell


@dataclass(frozen=True)
class Figures:
    """What was measured, all allowed CPUs together; empty and zero with the `reason` where nothing could be."""

    peak_gflops: dict[str, float] = field(default_factory=dict)  # a multiply-add counts as two
    read_gbs: float = 0.0  # 1e9 bytes per second
    triad_gbs: float = 0.0  # three streams counted
    reason: str = ""


def cached(profile: HardwareProfile) -> HardwareProfile:
    """The profile with the figures measured before, or as it is. Measures nothing, never raises."""
    return _with(profile, load(profile))


def measure(profile: HardwareProfile, force: bool = False) -> HardwareProfile:
    """The profile of this machine with its figures, measured now unless they were before.

    `force` measures again and keeps the better of each figure: other programs can only lower them. Without a
    compiler the profile comes back as it is; `figures` tells the reason. Never raises.
    """
    return _with(profile, figures(profile, force))


def figures(profile: HardwareProfile, force: bool = False) -> Figures:
    """Like `measure`, for the figures alone."""
    known = load(profile)
    if known is not None and not force:
        return known
    try:
        found = _run(profile)
    except (Unavailable, OSError) as error:
        return Figures(reason=str(error))
    if known is not None:
        found = _better(known, found)
    _save(profile, found)
    return found


def _better(one: Figures, other: Figures) -> Figures:
    peaks = {name: max(value, one.peak_gflops.get(name, 0.0)) for name, value in other.peak_gflops.items()}
    return Figures(peaks, max(one.read_gbs, other.read_gbs), max(one.triad_gbs, other.triad_gbs))


def load(profile: HardwareProfile) -> Figures | None:
    """The figures kept for this profile; None where there are none, or the file is damaged or of another version."""
    try:
        with open(_path(profile), encoding="utf-8") as file:
            data = json.load(file)
        if data["version"] != _VERSION or data["profile"] != profile.key:
            return None
        peaks = {str(name): _positive(value) for name, value in data["peak_gflops"].items()}
        return Figures(peaks, _positive(data["read_gbs"]), _positive(data["triad_gbs"]))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _positive(value: Any) -> float:
    number = float(value)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{value!r} is no measured figure")
    return number


def _with(profile: HardwareProfile, found: Figures | None) -> HardwareProfile:
    if found is None or found.reason:
        return profile
    return replace(profile, peak_gflops=found.peak_gflops, bandwidth_gbs=found.read_gbs)


def _path(profile: HardwareProfile) -> str:
    return os.path.join(settings.cache_dir(), "hardware", f"{profile.key}.json")


def _save(profile: HardwareProfile, found: Figures) -> None:
    data = {
        "version": _VERSION,
        "profile": profile.key,
        "name": profile.name,
        "peak_gflops": found.peak_gflops,
        "read_gbs": found.read_gbs,
        "triad_gbs": found.triad_gbs,
    }
    path = _path(profile)
    partial = f"{path}.{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(partial, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=1)
        os.replace(partial, path)  # atomic: a reader sees the old file or the new one
    except OSError:
        pass  # a read-only cache folder only costs the time to measure again


def _buffer_bytes(profile: HardwareProfile) -> int:
    """Four times all last-level caches, but no more than 1 GiB or an eighth of the memory."""
    last = max(profile.caches, key=lambda cache: cache.level, default=None)
    instances = -(-profile.logical_cores // last.shared_by) if last else 1
    wanted = 4 * (last.size_bytes * instances if last else _ASSUMED_CACHE_BYTES)
    most = min(_MOST_BUFFER_BYTES, profile.memory_bytes // 8 or _MOST_BUFFER_BYTES)
    return min(max(wanted, _LEAST_BUFFER_BYTES), most)


def _run(profile: HardwareProfile) -> Figures:
    """Raises `Unavailable` without a working compiler, or when the system refuses the threads or the memory."""
    import ctypes

    from autotune.hardware import detect
    from autotune.kernels import compiler

    if profile.key != detect().key:
        raise Unavailable("only the machine that this runs on can be probed")
    library = ctypes.CDLL(
        compiler.shared_library(paths.package_file("kernels", "cpp", "probe.cpp"), {}, extra_flags=("-pthread",))
    )
    flops, bandwidth = library.autotune_probe_flops, library.autotune_probe_bandwidth
    flops.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_double, ctypes.c_double)
    flops.restype = ctypes.c_double
    bandwidth.argtypes = (ctypes.c_int64, ctypes.c_int, ctypes.c_int, ctypes.c_double, ctypes.POINTER(ctypes.c_double))
    threads = profile.allowed_cpus
    peaks = {name: flops(bits, threads, _ROUNDS, _ROUND_S, _MOST_S) / 1e9 for name, bits in (("f32", 32), ("f64", 64))}
    size = _buffer_bytes(profile)
    read, triad = 0.0, 0.0
    for count in {threads, max(1, threads // 2)}:  # half of them may reach more: they share cores, or memory is full
        speeds = (ctypes.c_double * 2)()
        if bandwidth(size, count, _ROUNDS, _MOST_S, speeds) == 0:
            read, triad = max(read, speeds[0] / 1e9), max(triad, speeds[1] / 1e9)
    if min(*peaks.values(), read, triad) <= 0:
        raise Unavailable(f"the system refused {threads} threads or {size >> 20} MiB to the hardware probe")
    return Figures(peaks, read, triad)
