"""`autotune lookup`: what the database knows of a workload on this machine."""

from __future__ import annotations

import argparse
import os
from typing import Any

from autotune.cli.common import add_command, add_database, add_json, duration, print_json
from autotune.errors import InvalidInput


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "lookup",
        run,
        "Prints the best known config of a workload on this machine.",
        "autotune lookup 'linear m=1 n=4096 k=1024' --json",
    )
    parser.add_argument("workload", help="a workload's spec string")
    parser.add_argument(
        "--max-error", type=float, metavar="E", help="largest relative error accepted (default: rounding of the dtype)"
    )
    parser.add_argument("--explain", action="store_true", help="say which features speak for a predicted config")
    add_database(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    if args.db:
        os.environ["AUTOTUNE_DB"] = args.db
    if args.max_error is not None and not args.max_error >= 0:
        raise InvalidInput(f"--max-error must be 0 or more, not {args.max_error}")
    from autotune import lookup

    answer = lookup(args.workload, max_error=args.max_error, explain=args.explain)
    if args.json:
        print_json(
            {
                "workload": answer.workload.spec,
                "origin": answer.origin.value,
                "algorithm": answer.config.algorithm,
                "params": dict(answer.config.params),
                "placement": answer.config.placement,
                "expected_ns": answer.expected_ns,
                "speedup": answer.speedup,
                "interval": answer.interval,
                "max_error": answer.max_error,
                "p_faster": answer.p_faster,
                "nearest": answer.nearest,
                "factors": dict(answer.factors),
                "reason": answer.reason,
                "advice": answer.advice,
                "source": answer.source,
            }
        )
        return 0
    print(f"{answer.workload.spec}")
    print(f"  config    {answer.config}")
    print(f"  origin    {answer.origin.value}: {answer.reason}")
    if answer.expected_ns is not None and answer.speedup is not None and answer.interval is not None:
        low, high = answer.interval
        print(
            f"  expected  {duration(answer.expected_ns)}, {answer.speedup:.2f}x the default ({low:.2f} to {high:.2f})"
        )
    if answer.max_error is not None:
        print(f"  error     {answer.max_error:.1e} of an element, at most")
    for name, share in answer.factors:
        print(f"  because   {name}: {-100 * share:+.0f} % of speed")
    if answer.advice:
        print(f"  advice    {answer.advice}")
    if answer.source:
        print(f"  source    {answer.source}")
    return 0
