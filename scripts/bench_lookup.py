"""Latency of lookup: warm, first in a process, and what `import autotune` loads.

python scripts/bench_lookup.py
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

import autotune
from autotune import environment, hardware, registry
from autotune.store.sql import open_store
from autotune.types import BenchmarkSpec, Config, Measurement, Stage, Status, TuningRecord

# as users run it: with the bytecode of the last run at hand
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
FIRST = (
    "import autotune; answer = autotune.lookup(autotune.Linear(m=1, n=4096, k=1024)); assert answer.origin == 'EXACT'"
)


def fill(path: str, workloads: int) -> None:
    """A database with that many decided workloads, this machine's identity, invented times."""
    ok = Measurement(Status.OK, times_ns=(900,) * 20, baseline_ns=(1000,) * 20, max_error=1e-7)
    profile, software = hardware.detect(), environment.current()
    with open_store(path) as store:
        store.add(
            TuningRecord(
                autotune.Linear(m=1, n=4096, k=1024 + index),
                Config("torch", {"threads": 1, "weight": "as_given"}),
                profile,
                software,
                BenchmarkSpec(),
                ok,
                kernel_revision=registry.algorithm("torch").revision(),
                stage=Stage.FINAL,
            )
            for index in range(workloads)
        )


def warm_ns(calls: int = 200_000) -> float:
    op = autotune.Linear(m=1, n=4096, k=1024)
    autotune.lookup(op)
    lookup, best = autotune.lookup, float("inf")
    for _ in range(5):
        begin = time.perf_counter_ns()
        for _ in range(calls):
            lookup(op)
        best = min(best, (time.perf_counter_ns() - begin) / calls)
    return best


def fresh_op_ns(calls: int = 20_000) -> float:
    """A warm lookup with a workload object made anew for each call."""
    begin = time.perf_counter_ns()
    for _ in range(calls):
        autotune.lookup(autotune.Linear(m=1, n=4096, k=1024))
    return (time.perf_counter_ns() - begin) / calls


def process_ms(code: str, runs: int) -> list[float]:
    times = []
    for _ in range(runs):
        begin = time.perf_counter_ns()
        subprocess.run([sys.executable, "-c", code], check=True, env=ENVIRONMENT)
        times.append((time.perf_counter_ns() - begin) / 1e6)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=30, help="fresh processes of each kind, interleaved (default 30)")
    parser.add_argument("--workloads", type=int, default=2000, help="decided workloads in the database (default 2000)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tuning.sqlite")
        fill(path, args.workloads)
        os.environ["AUTOTUNE_DB"] = ENVIRONMENT["AUTOTUNE_DB"] = path
        autotune.refresh()
        print(f"warm exact lookup, workload at hand     {warm_ns() / 1e3:8.2f} µs   (goal 2)")
        print(f"warm exact lookup, workload made anew   {fresh_op_ns() / 1e3:8.2f} µs")
        differences, bare, first = [], [], []
        for _ in range(args.runs):
            (nothing,), (answer,) = process_ms("pass", 1), process_ms(FIRST, 1)
            bare.append(nothing)
            first.append(answer)
            differences.append(answer - nothing)
        print(f"interpreter alone                       {statistics.median(bare):8.1f} ms")
        print(f"fresh process to its first exact answer {statistics.median(first):8.1f} ms")
        print(f"  beyond the interpreter (paired)       {statistics.median(differences):8.1f} ms   (goal 30)")
    shown = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import autotune"], capture_output=True, text=True, check=True
    )
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in shown.stderr.splitlines()[1:]}
    foreign = sorted(loaded - set(sys.stdlib_module_names) - {"autotune"} - site_hooks())
    print(f"third-party modules of `import autotune`: {', '.join(foreign) or 'none'}")


def site_hooks() -> set[str]:
    """Modules that the interpreter loads by itself, such as those of editable installs."""
    shown = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "pass"], capture_output=True, text=True, check=True
    )
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in shown.stderr.splitlines()[1:]}


if __name__ == "__main__":
    main()
