"""What moving data between the host and a device costs: a latency, and bytes over a bandwidth, each way.

A property of the pair of host and device, measured by `autotune hw --probe` and kept in the cache folder; it describes
and is part of no key. What was never measured is assumed to be slower than PCI Express 3.0 is with ordinary (pageable)
memory, so that a device is not chosen for a transfer that nobody knows.
"""

from __future__ import annotations

import json
import math
import os

from autotune import settings
from autotune.noun import Noun, fields, noun
from autotune.types import HardwareProfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

VERSION = 1
SMALL_BYTES = 4
LARGE_BYTES = 64 << 20
ROUNDS = 8


@noun
class Link(Noun):
    """Between one host and one device. Pinned memory is read by the device itself; pageable memory is copied first."""

    latency_ns: float = 20_000.0
    to_device_gbs: float = 5.0
    to_host_gbs: float = 5.0
    pinned_latency_ns: float = 0.0  # 0: not known, taken to be as for pageable memory
    pinned_to_device_gbs: float = 0.0
    pinned_to_host_gbs: float = 0.0
    measured: bool = False

    def ns(self, size_bytes: int, to_device: bool, pinned: bool = False) -> float:
        """Time of one transfer; 0 of nothing."""
        if size_bytes <= 0:
            return 0.0
        pageable = self.to_device_gbs if to_device else self.to_host_gbs
        fast = self.pinned_to_device_gbs if to_device else self.pinned_to_host_gbs
        latency = self.pinned_latency_ns if pinned and self.pinned_latency_ns else self.latency_ns
        return latency + size_bytes / (fast if pinned and fast else pageable)  # bytes per ns are GB/s


ASSUMED = Link()


def route_ns(size_bytes: int, source: str, target: str, links: Mapping[str, Link], pinned: bool = False) -> float:
    """Time to move that many bytes from one device to another, by name; two devices meet on the host, "cpu".

    `links` are of the devices beside the CPU. 0 within a device.
    """
    if source == target:
        return 0.0
    down = 0.0 if source == "cpu" else links[source].ns(size_bytes, False, pinned)
    return down + (0.0 if target == "cpu" else links[target].ns(size_bytes, True, pinned))


def between(host: HardwareProfile, device: HardwareProfile) -> Link:
    """The figures kept for that pair, else the assumed ones. Measures nothing, never raises."""
    try:
        with open(_path(host, device), encoding="utf-8") as file:
            data = json.load(file)
        if data.pop("version") != VERSION:
            return ASSUMED
        values = {name: float(value) for name, value in data.items()}
        if not all(math.isfinite(value) and value >= 0 for value in values.values()):
            return ASSUMED
        link = Link(**values, measured=True)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return ASSUMED
    return link if min(link.latency_ns, link.to_device_gbs, link.to_host_gbs) > 0 else ASSUMED


def measure(host: HardwareProfile, device: HardwareProfile, copy: Callable[[int, bool, bool], int]) -> Link:
    """Measures with `copy` (bytes, to the device, pinned → ns, completed), keeps the figures and returns them.

    Latency is the least time of a tiny copy; bandwidth that of a large one less the latency: the least of some rounds,
    because other programs can only lengthen it.
    """
    values: dict[str, float] = {}
    for pinned, prefix in ((False, ""), (True, "pinned_")):
        tiny = {way: min(copy(SMALL_BYTES, way, pinned) for _ in range(ROUNDS)) for way in (True, False)}
        large = {way: min(copy(LARGE_BYTES, way, pinned) for _ in range(ROUNDS)) for way in (True, False)}
        values[f"{prefix}latency_ns"] = float(max(tiny.values()))
        for way, name in ((True, "to_device_gbs"), (False, "to_host_gbs")):
            values[f"{prefix}{name}"] = LARGE_BYTES / max(1, large[way] - tiny[way])
    _save(host, device, values)
    return Link(**values, measured=True)


def described(link: Link) -> dict[str, Any]:
    """As JSON, for `autotune hw --json`."""
    return {item.name: getattr(link, item.name) for item in fields(Link)}


def _path(host: HardwareProfile, device: HardwareProfile) -> str:
    return os.path.join(settings.cache_dir(), "hardware", f"{host.key}-{device.key}.json")


def _save(host: HardwareProfile, device: HardwareProfile, values: dict[str, float]) -> None:
    path = _path(host, device)
    partial = f"{path}.{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(partial, "w", encoding="utf-8") as file:
            json.dump({"version": VERSION, **values}, file, indent=1)
        os.replace(partial, path)  # atomic: a reader sees the old file or the new one
    except OSError:
        pass  # a read-only cache folder only costs the time to measure again
