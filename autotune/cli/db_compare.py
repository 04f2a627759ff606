"""`autotune db diff` and `db history`: two databases, and one search."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from autotune import registry
from autotune.cli.common import add_command, add_database, add_json, duration, open_database, print_json, print_table


def add(verbs: Any) -> None:
    diff = add_command(
        verbs,
        "diff",
        _diff,
        "Shows what differs between what two databases would serve: other winners, gains beyond noise, what only one "
        "knows. Exit code 1 when anything does.",
        "autotune db diff old.sqlite new.sqlite",
    )
    diff.add_argument("a", help="database file or URL")
    diff.add_argument("b", help="database file or URL")
    diff.add_argument("--all", action="store_true", help="list what is the same or tied as well")
    history = add_command(
        verbs,
        "history",
        _history,
        "Shows how the search for a workload went, trial by trial.",
        "autotune db history 'linear m=4 n=64 k=32'",
    )
    history.add_argument("workload", help="a workload's spec string")
    history.add_argument("--hardware", metavar="KEY", help="only this machine")
    add_database(history)
    for verb in (diff, history):
        add_json(verb)


def _diff(args: argparse.Namespace) -> int:
    with open_database(args.a) as a, open_database(args.b) as b:
        from autotune.report.diff import Change, differences
        from autotune.report.served import served

        found = differences(served(a), served(b))
    quiet = (Change.SAME, Change.TIED)
    shown = [d for d in found if args.all or d.change not in quiet]
    code = 1 if any(d.change not in quiet for d in found) else 0
    if args.json:
        for d in shown:
            sides = {
                name: side and {"config": str(side.choice.config), "speedup": side.choice.speedup}
                for name, side in (("a", d.a), ("b", d.b))
            }
            place = {"workload": d.either.workload.spec, "hardware": d.either.hardware.name}
            print_json({"change": d.change.value, **place, **sides})
        return code
    rows = [
        (
            d.change.value,
            d.either.workload.spec,
            *(f"{s.choice.speedup:.2f}x {s.choice.config}" if s else "–" for s in (d.a, d.b)),
        )
        for d in shown
    ]
    if rows:
        print_table("", ("change", "workload", "A", "B"), rows)
    counts = Counter(d.change.value for d in found)
    print(", ".join(f"{count} {change}" for change, count in counts.most_common()) or "neither has anything to serve")
    return code


def _history(args: argparse.Namespace) -> int:
    workload = registry.parse_workload(args.workload)
    with open_database(args.db) as store:
        from autotune.report.history import history

        found = history(store, workload, args.hardware)
    if args.json:
        for trials in found.values():
            for t in trials:
                m = t.record.measurement
                print_json(
                    {
                        "hardware_key": t.record.hardware.key,
                        "trial": t.number,
                        "stage": t.record.stage.value,
                        "status": m.status.value,
                        "speedup": m.speedup,
                        "median_ns": m.median_ns,
                        "best": t.best,
                        "config": str(t.record.config),
                        "measured_at": t.record.measured_at.isoformat(),
                    }
                )
        return 0
    if not found:
        print(f"nothing was measured for {workload.spec}")
        return 1
    for trials in found.values():
        first = trials[0].record
        rows = [
            (
                t.number,
                t.record.stage.value,
                t.record.measurement.status.value + ("*" if t.record.measurement.contended else ""),
                f"{t.record.measurement.speedup:.2f}x" if t.record.measurement.speedup else "–",
                f"{t.best:.2f}x",
                duration(t.record.measurement.median_ns),
                str(t.record.config),
            )
            for t in trials
        ]
        title = f"{workload.spec} on {first.hardware.name} with {first.environment.framework}"
        print_table(title, ("trial", "stage", "status", "speed-up", "best so far", "time", "config"), rows)
    return 0
