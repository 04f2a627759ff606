"""`autotune lookup`: what the database knows of a workload on this machine."""

from __future__ import annotations

import argparse
import os
from typing import Any

from autotune.cli.common import add_command, add_database, add_json, duration, print_json
from autotune.errors import InvalidInput
from autotune.types import Placed


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
    parser.add_argument(
        "--inputs-on",
        metavar="DEVICE",
        help="the device that has the inputs, such as cpu or cuda:0: choose among all devices of this machine",
    )
    add_database(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    if args.db:
        os.environ["AUTOTUNE_DB"] = args.db
    if args.max_error is not None and not args.max_error >= 0:
        raise InvalidInput(f"--max-error must be 0 or more, not {args.max_error}")
    from autotune import lookup

    answer = lookup(args.workload, max_error=args.max_error, explain=args.explain, inputs_on=args.inputs_on)
    if args.json:
        print_json(
            {
                "workload": answer.workload.spec,
                "origin": answer.origin.value,
                "algorithm": answer.config.algorithm,
                "params": dict(answer.config.params),
                "placement": answer.config.placement,
                "device": answer.device,
                "placements": [_placed_json(one) for one in answer.placements],
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
    for one in answer.placements:
        there = f"{duration(one.expected_ns)} there" if one.expected_ns is not None else "time not known"
        moving = f", {duration(one.transfer_ns)} to move" if one.transfer_ns else ""
        assumed = "" if one.measured else " (assumed: autotune hw --probe measures it)"
        print(f"  device    {one.device}: {there}{moving}{assumed}, {one.origin.value} {one.config}")
    if answer.advice:
        print(f"  advice    {answer.advice}")
    if answer.source:
        print(f"  source    {answer.source}")
    return 0


def _placed_json(one: Placed) -> dict[str, Any]:
    return {
        "device": one.device,
        "origin": one.origin.value,
        "algorithm": one.config.algorithm,
        "params": dict(one.config.params),
        "expected_ns": one.expected_ns,
        "transfer_ns": one.transfer_ns,
        "transfer_measured": one.measured,
        "total_ns": one.total_ns,
        "reason": one.reason,
    }
