"""`autotune algorithms`: which algorithms there are for a workload, and why the others do not apply."""

from __future__ import annotations

import argparse
from typing import Any

from autotune import hardware, registry
from autotune.cli.common import add_command, add_json, print_json, print_table
from autotune.search import candidates_for


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "algorithms",
        run,
        "Shows the algorithms that can compute a workload on this machine, their tunables, and why others cannot.",
        "autotune algorithms 'linear m=4 n=4096 k=1024'",
    )
    parser.add_argument("workload", help="a workload's spec string")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    workload = registry.parse_workload(args.workload)
    found = candidates_for(workload, hardware.detect())
    if args.json:
        spaces = {name: {p: list(v) for p, v in s.parameters.items()} for name, s in found.spaces.items()}
        print_json(
            {
                "workload": workload.spec,
                "default": str(found.default),
                "spaces": spaces,
                "refused": dict(found.refusals),
            }
        )
        return 0
    rows: list[tuple[str, str, str]] = []
    for name, space in found.spaces.items():
        tunables = ", ".join(f"{p} ({len(v)})" for p, v in space.parameters.items()) or "nothing to tune"
        rows.append((name, f"{space.size:,}", tunables))
    rows += [(name, "–", reason) for name, reason in found.refusals.items()]
    print_table(
        f"{workload.spec}   default: {found.default}", ("algorithm", "configs", "tunables (values), or why not"), rows
    )
    return 0
