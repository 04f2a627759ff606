"""Two machines in one database: winners in common, and how much copying A's winners to B loses.

    python scripts/compare_hardware.py --list
    python scripts/compare_hardware.py --a 75d8 --b 03aa
    python scripts/compare_hardware.py --a 75d8 --b 03aa --op conv2d --json

A machine is named by the beginning of its key, which `--list` and `autotune hw` print. What A's winner takes on B is
known where B decided that config too.
"""

from __future__ import annotations

import argparse
import json
import sys

from autotune.cli.common import open_database, print_table
from autotune.errors import AutotuneError, InvalidInput
from autotune.report.compare import Comparison, compare
from autotune.report.served import served
from autotune.stats import geometric_mean
from autotune.types import HardwareProfile


def pick(machines: tuple[HardwareProfile, ...], prefix: str | None) -> HardwareProfile:
    """The one machine whose key begins so."""
    found = [m for m in machines if prefix and m.key.startswith(prefix)]
    if len(found) != 1:
        keys = ", ".join(f"{m.key[:8]} ({m.name})" for m in machines)
        raise InvalidInput(f"{prefix or 'nothing'} does not name one machine; there are {keys or 'none'}")
    return found[0]


def summary(found: list[Comparison]) -> dict[str, float]:
    losses = [c.loss for c in found if c.loss is not None]
    return {
        "workloads": len(found),
        "common": sum(c.is_common for c in found),
        "known": len(losses),
        "loss_geomean": geometric_mean(losses),
        "loss_worst": max(losses, default=1.0),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--a", metavar="KEY", help="machine whose winners are copied")
    parser.add_argument("--b", metavar="KEY", help="machine that they are copied to")
    parser.add_argument("--op", help="only this op")
    parser.add_argument("--list", action="store_true", help="list the machines and stop")
    parser.add_argument("--db", metavar="URL", help="database file or URL (default: $AUTOTUNE_DB, else the user's)")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    args = parser.parse_args(argv)
    try:
        with open_database(args.db) as store:
            machines = store.hardware()
            if args.list:
                print_table("", ("key", "machine", "CPUs"), [(m.key, m.name, m.allowed_cpus) for m in machines])
                return 0
            a, b = pick(machines, args.a), pick(machines, args.b)
            found = compare(served(store, args.op), a.key, b.key)
        if not found:
            raise InvalidInput(f"no workload was tuned on both {a.name} and {b.name}")
    except AutotuneError as error:
        print(f"compare_hardware: {error}", file=sys.stderr)
        return 2
    told = summary(found)
    if args.json:
        layers = [{"workload": c.a.workload.spec, "common": c.is_common, "loss": c.loss} for c in found]
        print(json.dumps({**told, "layers": layers}))
        return 0
    rows = [
        (c.a.workload.spec, c.a.choice.config, c.b.choice.config, f"{c.loss:.2f}x" if c.loss else "not decided there")
        for c in found
    ]
    print_table("", ("workload", f"A: {a.name}", f"B: {b.name}", "A's winner on B takes"), rows)
    print(
        f"{told['common']} of {told['workloads']} winners in common;"
        f" copying takes {told['loss_geomean']:.2f}x the time"
        f" (geometric mean of {told['known']}), at worst {told['loss_worst']:.2f}x"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
