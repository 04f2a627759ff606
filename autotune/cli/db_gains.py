"""`autotune db top` and `db coverage`: what tuning gained, and what is tuned."""

from __future__ import annotations

import argparse
from typing import Any

from autotune import registry, suites
from autotune.cli.common import add_command, add_database, add_json, duration, open_database, print_json, print_table
from autotune.errors import InvalidInput


def add(verbs: Any) -> None:
    top = add_command(
        verbs, "top", _top, "Lists the layers and suites that gain most.", "autotune db top --op linear --limit 10"
    )
    top.add_argument("--op", help="only this op")
    top.add_argument("--hardware", metavar="KEY", help="only this machine")
    top.add_argument("--limit", type=int, default=20, metavar="N", help="how many layers (default 20)")
    covered = add_command(
        verbs,
        "coverage",
        _coverage,
        "Shows which suites are tuned on which machines, and what is missing.",
        "autotune db coverage --suite bert-base --missing",
    )
    covered.add_argument("--suite", action="append", metavar="NAME", help="a suite's name or TOML file (default: all)")
    covered.add_argument("--missing", action="store_true", help="list the workloads that are missing")
    for verb in (top, covered):
        add_database(verb)
        add_json(verb)


def _top(args: argparse.Namespace) -> int:
    if args.op:
        registry.op(args.op)  # an unknown one is said
    if args.limit < 1:
        raise InvalidInput("--limit must be at least 1")
    with open_database(args.db) as store:
        from autotune.report.coverage import coverage
        from autotune.report.served import served

        found = list(served(store, args.op, args.hardware))
        machines = [p for p in store.hardware() if args.hardware in (None, p.key)]
    gains = sorted((s for s in found if not s.is_default), key=lambda s: -s.choice.speedup)[: args.limit]
    models = [c for c in coverage(found, machines, suites.names()) if c.tuned]
    models.sort(key=lambda c: -c.speedup)
    if args.json:
        print_json(
            {
                "layers": [
                    {
                        "workload": s.workload.spec,
                        "hardware": s.hardware.name,
                        "algorithm": s.choice.config.algorithm,
                        "params": dict(s.choice.config.params),
                        "speedup": s.choice.speedup,
                        "saved_ns": s.saved_ns,
                        "expected_ns": s.choice.expected_ns,
                    }
                    for s in gains
                ],
                "suites": [_suite_json(c) for c in models],
            }
        )
        return 0
    layers = [
        (
            s.workload.spec,
            f"{s.choice.speedup:.2f}x",
            duration(s.saved_ns),
            duration(s.choice.expected_ns),
            str(s.choice.config),
            s.hardware.name,
        )
        for s in gains
    ]
    print_table("", ("layer", "speed-up", "saves", "time", "config", "machine"), layers)
    rows = [(c.suite, f"{c.speedup:.2f}x", f"{c.tuned}/{c.workloads}", c.hardware.name) for c in models]
    if rows:
        print()
        print_table("", ("suite", "speed-up of its tuned layers", "tuned", "machine"), rows)
    return 0


def _coverage(args: argparse.Namespace) -> int:
    with open_database(args.db) as store:
        from autotune.report.coverage import coverage
        from autotune.report.served import served

        found = coverage(served(store), store.hardware(), args.suite or suites.names())
    if args.json:
        for item in found:
            print_json({**_suite_json(item), "missing": [w.spec for w in item.missing]})
        return 0
    rows = [
        (
            c.suite,
            f"{c.tuned}/{c.workloads}",
            f"{c.speedup:.2f}x" if c.tuned else "–",
            duration(c.served_ns) if c.tuned else "–",
            c.hardware.name,
            c.hardware.key[:8],
        )
        for c in found
    ]
    print_table("", ("suite", "tuned", "speed-up", "time of a pass", "machine", "key"), rows)
    if args.missing:
        for item in found:
            for workload in item.missing:
                print(f"{item.suite} on {item.hardware.name} lacks {workload.spec}")
    return 0


def _suite_json(item: Any) -> dict[str, Any]:
    return {
        "suite": item.suite,
        "hardware": item.hardware.name,
        "hardware_key": item.hardware.key,
        "workloads": item.workloads,
        "tuned": item.tuned,
        "speedup": item.speedup,
        "default_ns": item.default_ns,
        "served_ns": item.served_ns,
    }
