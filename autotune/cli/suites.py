"""`autotune suites`: the model suites and their layers."""

from __future__ import annotations

import argparse
from typing import Any

from autotune import suites
from autotune.cli.common import add_command, add_json, print_json, print_table


def add(commands: Any) -> None:
    parser = add_command(
        commands, "suites", run, "Lists the model suites, or the layers of one.", "autotune suites gpt2"
    )
    parser.add_argument("name", nargs="?", help="a suite's name or a TOML file of your own")
    parser.epilog = f"{parser.epilog}\n\na file of your own looks like this:\n\n{suites.FORMAT}"
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    if args.name is None:
        every = [suites.load(name) for name in suites.names()]
        if args.json:
            print_json([{"name": s.name, "title": s.title, "workloads": len(s.workloads)} for s in every])
        else:
            print_table("", ("suite", "workloads", "model"), [(s.name, len(s.workloads), s.title) for s in every])
        return 0
    suite = suites.load(args.name)
    if args.json:
        layers = [{"name": x.name, "count": x.count, "workload": x.workload.spec} for x in suite.layers]
        print_json({"name": suite.name, "title": suite.title, "source": suite.source, "layers": layers})
    else:
        rows = [(x.count, x.workload.spec, x.name) for x in suite.layers]
        print_table(f"{suite.title}\n{suite.source}", ("count", "workload", "layer"), rows)
    return 0
