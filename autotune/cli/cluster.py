"""`autotune cluster`: the nodes of a cluster and what they are doing."""

from __future__ import annotations

import argparse
import time
from typing import Any

from autotune.cli.common import add_command, add_json, duration, need, print_json, print_table


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "cluster",
        run,
        "Lists the nodes of a Ray cluster, their profiles, and what a sweep does on them at the moment.",
        "autotune cluster --address auto",
    )
    parser.add_argument("--address", default="auto", help="auto (default), host:port, or local:N")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    need("ray", "cluster")
    from autotune.cluster.on_ray import status

    nodes = status(args.address)
    if args.json:
        for node in nodes:
            print_json(node)
        return 0
    rows = [
        (
            node["name"],
            f"{node['cpus']:g}",
            node["hardware"]["name"] if "hardware" in node else "–",
            node.get("workload") or ("idle" if "hardware" in node else "no sweep"),
            node.get("trials", "–"),
            duration((time.time() - node["since"]) * 1e9) if "since" in node else "–",
        )
        for node in nodes
    ]
    print_table("", ("node", "CPUs", "profile", "tunes", "trials", "for"), rows)
    return 0
