"""`autotune db`: make, upgrade and read the operator-tuning database."""

from __future__ import annotations

import argparse
from typing import Any

from autotune import registry, settings
from autotune.cli import db_care, db_compare, db_gains, db_move
from autotune.cli.common import (
    add_command,
    add_database,
    add_json,
    duration,
    need,
    open_database,
    print_json,
    print_table,
    size,
)
from autotune.errors import InvalidInput
from autotune.types import TuningRecord


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "db",
        lambda args: args.run_db(args),
        "Makes, upgrades and reads the tuning database.",
        "autotune db stats",
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    upgrade = add_command(
        verbs, "upgrade", _upgrade, "Brings a database to this version's schema.", "autotune db upgrade"
    )
    stats = add_command(verbs, "stats", _stats, "Counts what the database holds.", "autotune db stats --json")
    show = add_command(
        verbs,
        "show",
        _show,
        "Lists every measurement of a workload.",
        "autotune db show 'linear m=16 n=768 k=768 bias=1'",
    )
    show.add_argument("workload", help="a workload's spec string")
    show.add_argument("--limit", type=int, default=30, metavar="N", help="the fastest N (default 30)")
    best = add_command(verbs, "best", _best, "Lists the winner of each workload.", "autotune db best --op linear")
    best.add_argument("--op", help="only this op")
    for verb in (upgrade, stats, show, best):
        add_database(verb)
        verb.set_defaults(run_db=verb.get_default("run"), run=parser.get_default("run"))
    for verb in (stats, show, best):
        add_json(verb)
    for more in (db_gains, db_compare, db_care, db_move):
        more.add(verbs)


def _upgrade(args: argparse.Namespace) -> int:
    need("sqlalchemy", "tune")
    from autotune.store.sql import upgrade_store

    before, after = upgrade_store(args.db or settings.database())
    print(f"schema {after}, as before" if before == after else f"schema {before or 'none'} → {after}")
    return 0


def _stats(args: argparse.Namespace) -> int:
    with open_database(args.db) as store:
        stats = store.stats()
    if args.json:
        print_json({name: getattr(stats, name) for name in stats.__dataclass_fields__})
        return 0
    print(f"{stats.measurements:,} measurements of {stats.configs:,} configs for {stats.workloads:,} workloads")
    where = f"{stats.hardware} machine(s), {stats.environments} environment(s)"
    print(f"{where}, schema {stats.schema_revision}, {size(stats.size_bytes)}")
    for title, counts in (("status", stats.by_status), ("op", stats.by_op), ("algorithm", stats.by_algorithm)):
        print_table("", (title, "measurements"), sorted(counts.items(), key=lambda item: -item[1]))
    return 0


def _show(args: argparse.Namespace) -> int:
    workload = registry.parse_workload(args.workload)
    if args.limit < 1:
        raise InvalidInput("--limit must be at least 1")
    with open_database(args.db) as store:
        records = sorted(store.records(workload.key), key=_fastest_first)
    records = records[: args.limit]
    if args.json:
        for record in records:
            print_json(_record_json(record))
        return 0
    if not records:
        print(f"nothing was measured for {workload.spec}")
        return 1
    rows = [
        (
            f"{m.speedup:.2f}x" if m.speedup else "–",
            duration(m.median_ns),
            r.stage.value,
            m.status.value + ("*" if m.contended else ""),
            f"{m.max_error:.1e}" if m.max_error is not None else "–",
            str(r.config),
            m.message[:80],
        )
        for r in records
        for m in (r.measurement,)
    ]
    print_table(workload.spec, ("speed-up", "time", "stage", "status", "error", "config", ""), rows)
    if any(record.measurement.contended for record in records):
        print("* something else was using the machine")
    return 0


def _fastest_first(record: TuningRecord) -> tuple[float, float, str]:
    """By speed-up, then by time, which is all there is of what was imported."""
    measured = record.measurement
    return -(measured.speedup or 0.0), measured.median_ns or float("inf"), record.config.key


def _record_json(record: TuningRecord) -> dict[str, Any]:
    m = record.measurement
    return {
        "workload": record.workload.spec,
        "algorithm": record.config.algorithm,
        "params": dict(record.config.params),
        "hardware": record.hardware.name,
        "stage": record.stage.value,
        "status": m.status.value,
        "message": m.message,
        "median_ns": m.median_ns,
        "baseline_median_ns": m.baseline_median_ns,
        "speedup": m.speedup,
        "max_error": m.max_error,
        "workspace_bytes": m.workspace_bytes,
        "contended": m.contended,
        "source": record.source,
        "kernel_revision": record.kernel_revision,
        "measured_at": record.measured_at.isoformat(),
    }


def _best(args: argparse.Namespace) -> int:
    if args.op:
        registry.op(args.op)  # an unknown one is said
    with open_database(args.db) as store:
        from autotune.report.served import served

        winners = [(s.workload, s.hardware, s.environment, s.choice) for s in served(store, args.op)]
    if args.json:
        for workload, profile, software, choice in winners:
            print_json(
                {
                    "workload": workload.spec,
                    "hardware": profile.name,
                    "hardware_key": profile.key,
                    "environment": software.framework,
                    "algorithm": choice.config.algorithm,
                    "params": dict(choice.config.params),
                    "expected_ns": choice.expected_ns,
                    "speedup": choice.speedup,
                    "max_error": choice.max_error,
                }
            )
        return 0
    rows = [(w.spec, f"{c.speedup:.2f}x", duration(c.expected_ns), str(c.config), p.name) for w, p, _, c in winners]
    print_table("", ("workload", "speed-up", "time", "config", "machine"), rows)
    return 0
