"""One overview of a tuning database, for people: counts, winners, times, coverage, the queue, and a search.

python scripts/inspect_db.py
python scripts/inspect_db.py --db tuning.sqlite --limit 5
python scripts/inspect_db.py --workload 'linear m=16 n=768 k=768 bias=1'
python scripts/inspect_db.py --json
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from typing import Any

from sqlalchemy import select

from autotune import registry, suites
from autotune.cli.common import duration, open_database, print_table, size
from autotune.errors import AutotuneError, InvalidInput
from autotune.report.coverage import coverage
from autotune.report.history import history
from autotune.report.served import served
from autotune.stats import geometric_mean
from autotune.store.schema import measurements
from autotune.store.sql import SqlStore

BLOCKS = " ▁▂▃▄▅▆▇█"


def bars(values: list[float]) -> str:
    """Values as block characters, the largest a full one."""
    top = max(values, default=0.0) or 1.0
    return "".join(BLOCKS[math.ceil(max(value, 0.0) / top * (len(BLOCKS) - 1))] for value in values)


def times(store: SqlStore) -> dict[int, int]:
    """How many successful measurements took 2^n to 2^(n+1) ns, by n."""
    m = measurements.c
    found: Counter[int] = Counter()
    for row in store.stream(select(m.median_ns).where(m.status == "OK", m.median_ns > 0))[1]:
        found[math.floor(math.log2(row.median_ns))] += 1
    return dict(sorted(found.items()))


def overview(store: SqlStore, limit: int) -> dict[str, Any]:
    """Everything that is shown, as JSON has it."""
    stats, found = store.stats(), list(served(store))
    gains = sorted((s for s in found if not s.is_default), key=lambda s: -s.choice.speedup)
    by: dict[tuple[str, str], list[float]] = {}
    for s in found:
        by.setdefault((s.workload.op, s.hardware.name), []).append(s.choice.speedup)
    return {
        "counts": {name: getattr(stats, name) for name in stats.__dataclass_fields__},
        "gains": [
            {"op": op, "hardware": machine, "workloads": len(speedups), "speedup": geometric_mean(speedups)}
            for (op, machine), speedups in by.items()
        ],
        "best": [
            {
                "workload": s.workload.spec,
                "hardware": s.hardware.name,
                "speedup": s.choice.speedup,
                "config": str(s.choice.config),
            }
            for s in gains[:limit]
        ],
        "times_log2_ns": times(store),
        "coverage": [
            {
                "suite": c.suite,
                "hardware": c.hardware.name,
                "tuned": c.tuned,
                "workloads": c.workloads,
                "speedup": c.speedup,
            }
            for c in coverage(found, store.hardware(), suites.names())
        ],
        "wishes": len(store.wishes()),
    }


def show(told: dict[str, Any]) -> None:
    counts, spread = told["counts"], told["times_log2_ns"]
    failed = sum(n for status, n in counts["by_status"].items() if status != "OK")
    print(
        f"{counts['measurements']:,} measurements ({failed:,} failed) of {counts['configs']:,} configs for "
        f"{counts['workloads']:,} workloads, {size(counts['size_bytes'])}; {told['wishes']} wishes wait"
    )
    if spread:
        low, high = min(spread), max(spread)
        drawn = bars([float(spread.get(n, 0)) for n in range(low, high + 1)])
        print(f"times  {duration(2.0**low)} {drawn} {duration(2.0 ** (high + 1))}")
    rows = [(g["op"], g["workloads"], f"{g['speedup']:.2f}x", g["hardware"]) for g in told["gains"]]
    print_table("\ngains", ("op", "workloads", "geometric mean", "machine"), rows)
    best = [(b["workload"], f"{b['speedup']:.2f}x", b["config"], b["hardware"]) for b in told["best"]]
    print_table("\nlargest gains", ("workload", "speed-up", "config", "machine"), best)
    tuned = [
        (c["suite"], f"{c['tuned']}/{c['workloads']}", f"{c['speedup']:.2f}x", c["hardware"]) for c in told["coverage"]
    ]
    print_table("\ncoverage", ("suite", "tuned", "speed-up", "machine"), tuned)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", metavar="URL", help="database file or URL (default: $AUTOTUNE_DB, else the user's)")
    parser.add_argument("--limit", type=int, default=10, metavar="N", help="how many of the largest gains (default 10)")
    parser.add_argument("--workload", metavar="SPEC", help="show how the search for this workload went, too")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    args = parser.parse_args(argv)
    try:
        if args.limit < 1:
            raise InvalidInput("--limit must be at least 1")
        workload = registry.parse_workload(args.workload) if args.workload else None
        with open_database(args.db) as store:
            told = overview(store, args.limit)
            searches = history(store, workload) if workload else {}
    except AutotuneError as error:
        print(f"inspect_db: {error}", file=sys.stderr)
        return 2
    lines = {trials[0].record.hardware.name: [t.best for t in trials] for trials in searches.values()}
    if args.json:
        print(json.dumps({**told, "search": lines} if workload else told, ensure_ascii=False))
        return 0
    show(told)
    for name, best in lines.items():
        print(f"\nsearch on {name}: {bars(best)} {best[-1]:.2f}x after {len(best)} measurements")
    return 0


if __name__ == "__main__":
    sys.exit(main())
