"""`autotune enqueue`: wish for workloads to be tuned, and see what is wished for."""

from __future__ import annotations

import argparse
from typing import Any

from autotune import hardware, registry, settings, suites
from autotune.cli.common import add_command, add_database, add_json, duration, need, print_json, print_table
from autotune.errors import InvalidInput


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "enqueue",
        run,
        "Queues workloads for tuning, or lists the queue when none are named. Lookups with on_miss='queue' do the same "
        "for what they do not know; `autotune sweep --wishes` takes the most promising ones.",
        "autotune enqueue 'linear m=4 n=4096 k=1024'\n  autotune enqueue --suite gpt2\n  autotune enqueue",
    )
    parser.add_argument("workload", nargs="*", metavar="SPEC", help="a workload's spec string")
    parser.add_argument("--suite", action="append", default=[], metavar="NAME", help="a suite's name or TOML file")
    parser.add_argument("--any-machine", action="store_true", help="for whichever machine comes first, not this kind")
    add_database(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    need("sqlalchemy", "tune")
    from autotune import wishes
    from autotune.store import Wish
    from autotune.store.sql import open_store

    profile = hardware.detect()
    key = "" if args.any_machine else profile.key
    asked = [Wish(registry.parse_workload(spec), key) for spec in args.workload]
    for name in args.suite:
        asked += [Wish(layer.workload, key, weight=float(layer.count)) for layer in suites.load(name).layers]
    empty = [wish.workload.spec for wish in asked if wish.workload.is_empty]
    if empty:
        raise InvalidInput(f"there is nothing to compute in {empty[0]!r}")
    with open_store(args.db or settings.database()) as store:
        wishes.collect(store)
        store.wish(asked)
        ranked = wishes.by_gain(store, store.wishes(), profile)
    if args.json:
        for gain, wish in ranked:
            print_json(
                {
                    "workload": wish.workload.spec,
                    "hardware_key": wish.hardware_key,
                    "asked": wish.asked,
                    "weight": wish.weight,
                    "expected_gain_s": gain,
                }
            )
        return 0
    rows = [
        (wish.workload.spec, wish.asked, f"{wish.weight:g}", duration(gain * 1e9), _where(wish.hardware_key, key))
        for gain, wish in ranked
    ]
    print_table("", ("workload", "asked", "times in its model", "expected gain", "machine"), rows)
    return 0


def _where(wished: str, here: str) -> str:
    return "any" if not wished else "this kind" if wished == here else wished[:8]
