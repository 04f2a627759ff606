"""`autotune hw`: this machine's hardware profile and software environment."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from autotune import devices, environment, hardware
from autotune.cli.common import add_command, add_json, print_json, size
from autotune.devices import Found
from autotune.hardware import transfer
from autotune.hardware.transfer import Link
from autotune.types import HardwareProfile


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "hw",
        run,
        "Prints what this machine is, what we may use of it, and its measured peak and bandwidth.",
        "autotune hw --json",
    )
    parser.add_argument(
        "--no-probe", action="store_true", help="do not measure peak and bandwidth if never done (1-2 s)"
    )
    parser.add_argument(
        "--probe", action="store_true", help="measure peak and bandwidth again, and transfers between CPU and GPUs"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from autotune.hardware import probe

    profiles = list(hardware.devices())
    if not args.no_probe:
        profiles[0] = probe.measure(profiles[0], force=args.probe)
    links = {found.name: _link(found, args.probe) for found in devices.here() if found.name != "cpu"}
    if args.json:
        software = environment.current()
        print_json(
            {
                "devices": [{"key": p.key, **p.to_json()} for p in profiles],
                "transfers": {name: transfer.described(link) for name, link in links.items()},
                "environment": {"key": software.key, **software.to_json()},
            }
        )
        return 0
    for profile in profiles:
        _print_profile(profile)
    for name, link in links.items():
        _print_link(name, link)
    _print_limits()
    print("environment")
    software = environment.current()
    facts = (*software.to_json().items(), *environment.describe().items())
    for name, value in facts:
        shown = ", ".join(value) if isinstance(value, list) else value
        if shown:
            _line(name.replace("_", " "), shown)
    _line("key", software.key)
    return 0


def _print_profile(profile: HardwareProfile) -> None:
    print(f"{profile.kind}")
    _line("name", profile.name)
    _line("silicon", f"{profile.vendor} {profile.arch}, {profile.model}")
    _line("isa", " ".join(profile.isa) or "none that kernels use")
    hybrid = f", {profile.performance_cores} P + {profile.efficiency_cores} E" if profile.efficiency_cores else ""
    _line("cores", f"{profile.physical_cores} physical, {profile.logical_cores} logical{hybrid}")
    _line("may use", f"{profile.allowed_cpus} CPUs")
    _line(
        "caches",
        ", ".join(f"L{c.level} {size(c.size_bytes)} per {c.shared_by} CPUs" for c in profile.caches) or "unknown",
    )
    _line("memory", f"{size(profile.memory_bytes)}, {profile.numa_nodes} NUMA node(s)")
    peaks = ", ".join(f"{dtype} {value:.0f} GFLOP/s" for dtype, value in profile.peak_gflops.items())
    _line("peak", peaks or "not measured")
    _line("bandwidth", f"{profile.bandwidth_gbs:.1f} GB/s" if profile.bandwidth_gbs else "not measured")
    _line("key", profile.key)


def _link(found: Found, probe: bool) -> Link:
    """Measured where that is asked for; a device that cannot be used is said, and the rest goes on."""
    host = hardware.detect()
    if probe:
        try:
            device = devices.opened(found.name)
            return transfer.measure(host, found.hardware, device.copy_ns)
        except Exception as error:
            print(f"autotune: transfers to {found.name} cannot be measured: {error}", file=sys.stderr)
    return transfer.between(host, found.hardware)


def _print_link(name: str, link: Link) -> None:
    print(f"transfers to and from {name}")
    if not link.measured:
        _line("measured", "never, assumed below: autotune hw --probe")
    _line("latency", f"{link.latency_ns / 1e3:.1f} µs")
    _line("to the device", f"{link.to_device_gbs:.1f} GB/s, {link.pinned_to_device_gbs:.1f} from pinned memory")
    _line("to the host", f"{link.to_host_gbs:.1f} GB/s, {link.pinned_to_host_gbs:.1f} to pinned memory")


def _print_limits() -> None:
    from autotune.hardware import limits

    print("limits")
    found = limits.measure()
    for name, count in found.cpus().items():
        _line(name.replace("_", " "), f"{count} CPUs" + (", decides" if name == found.decided_by else ""))


def _line(name: str, value: object) -> None:
    print(f"  {name:<24} {value}")
