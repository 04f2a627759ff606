"""A sweep's budget, shared by gain or evenly: what a pass of the model takes after either.

Both ways tune the suite from scratch into a database of their own, one after the other in `--rounds` rounds of
alternating order. Times are those of the decisions: the default's, once for both ways, over the speed-up of each.

    python scripts/bench_budget.py --suite resnet50 --budget 10m
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile

from autotune import decide, environment, hardware, registry, suites
from autotune.budget import by_gain, evenly
from autotune.cli.common import seconds
from autotune.cluster.local import LocalExecutor
from autotune.measure.local import LocalRunner
from autotune.store.sql import open_store
from autotune.suites import Suite
from autotune.sweep import Sweep
from autotune.types import Workload

WAYS = {"by gain": by_gain, "evenly": evenly}


def tune(suite: Suite, way: str, budget_s: float, path: str) -> dict[Workload, tuple[float, float]]:
    """(default's ns, speed-up) of each workload that was decided."""
    counts: dict[Workload, int] = {}
    for layer in suite.layers:
        counts[layer.workload] = counts.get(layer.workload, 0) + layer.count
    here, software = hardware.detect(), environment.current()
    with open_store(path) as store, LocalExecutor(LocalRunner(), here, software) as executor:
        Sweep(store, executor, allot=WAYS[way]).run(counts, budget_s, counts)
        found = {}
        for workload in counts:
            op = registry.op(workload.op)
            choices = store.choices(workload.key, here.key, software.key)
            best = decide.eligible(choices, op.default(workload), op.tolerance(workload))
            if best:
                found[workload] = (best[0].expected_ns * best[0].speedup, best[0].speedup)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="resnet50", help="a suite (default resnet50)")
    parser.add_argument("--budget", default="10m", help="of each sweep (default 10m)")
    parser.add_argument("--rounds", type=int, default=1, help="default 1")
    args = parser.parse_args()
    suite = suites.load(args.suite)
    runs: dict[str, list[dict[Workload, tuple[float, float]]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.rounds):
            for way in list(WAYS)[:: -1 if number % 2 else 1]:
                path = os.path.join(folder, f"{way}-{number}.sqlite")
                runs[way].append(tune(suite, way, seconds(args.budget), path))
    everything = [run for found in runs.values() for run in found]
    default = {}
    for workload in suite.workloads:
        times = [run[workload][0] for run in everything if workload in run]
        if times:
            default[workload] = statistics.median(times)
    counts = {workload: sum(la.count for la in suite.layers if la.workload == workload) for workload in default}
    untuned = sum(counts[w] * default[w] for w in default)
    print(f"{suite.name}, {args.budget} each: {len(default)} of {len(suite.workloads)} workloads decided by any")
    print(f"{'default':10} {untuned / 1e6:8.1f} ms a pass")
    for way, found in runs.items():
        for run in found:
            total = sum(counts[w] * default[w] / run.get(w, (0.0, 1.0))[1] for w in default)
            print(f"{way:10} {total / 1e6:8.1f} ms a pass, {untuned / total:.3f}x, {len(run)} workloads decided")


if __name__ == "__main__":
    main()
