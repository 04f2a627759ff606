#!/usr/bin/env python3
"""How well a sweep scales, and what its own work costs: simulated machines, everything else real.

Real: Ray with one node, a process for each worker, and its messages; the sweep's loop; the store, SQLite or
PostgreSQL. Invented: the measurements, which sleep for a given time, so that many machines fit on one. Efficiency
is the time that all workers together were measuring, over workers x wall time, from the first job given to the last
one ended. CPU per trial counts the driver with its store, the workers, Ray's own processes and a throw-away server;
what all of them take while nothing is tuned is measured first and told apart.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time

import psutil

from autotune.cluster import on_ray, simulated
from autotune.errors import AutotuneError
from autotune.ops.linear import Linear
from autotune.store import Store
from autotune.store.embedded import PostgresServer
from autotune.store.sql import open_store
from autotune.sweep import Sweep

EXAMPLE = """examples:
  python scripts/bench_cluster.py --workers 32 --jobs 256 --measure 1
  python scripts/bench_cluster.py --postgres
"""


IDLE_S = 10.0


def cpu_seconds() -> dict[tuple[str, int], float]:
    """CPU time so far of every process that belongs to this run, by what it is and process id."""
    spent: dict[tuple[str, int], float] = {}
    for process in psutil.process_iter(["cmdline", "ppid"]):
        words = " ".join(process.info["cmdline"] or ())
        kind = "driver" if process.pid == os.getpid() else ""
        for mark, name in (("SimulatedWorker", "workers"), ("postgres", "server"), ("ray", "Ray")):
            kind = kind or (name if mark in words else "")
        if kind:
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                spent[kind, process.pid] = times.user + times.system
    return spent


def by_kind(before: dict[tuple[str, int], float], after: dict[tuple[str, int], float]) -> dict[str, float]:
    """CPU seconds spent in between, by what a process is."""
    spent: dict[str, float] = {}
    for (kind, pid), seconds in after.items():
        spent[kind] = spent.get(kind, 0.0) + seconds - before.get((kind, pid), 0.0)
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=32, help="simulated machines (%(default)s)")
    parser.add_argument("--jobs", type=int, default=256, help="workloads (%(default)s)")
    parser.add_argument("--measure", type=float, default=1.0, help="seconds a measurement takes (%(default)s)")
    parser.add_argument("--postgres", nargs="?", const="", metavar="URL", help="a server, or a throw-away one")
    options = parser.parse_args()
    if min(options.workers, options.jobs) < 1 or options.measure <= 0:
        parser.error("counts must be at least 1 and times positive")
    os.environ[simulated.SECONDS] = str(options.measure)
    try:
        with contextlib.ExitStack() as stack:
            if options.postgres is None:
                where = os.path.join(stack.enter_context(tempfile.TemporaryDirectory()), "tuning.sqlite")
            else:
                where = options.postgres or stack.enter_context(PostgresServer()).url()
            cluster = on_ray.local_cluster(1, cpus=options.workers)
            stack.callback(cluster.shutdown)
            worker = "autotune.cluster.simulated:SimulatedWorker"
            executor = stack.enter_context(on_ray.RayExecutor(cluster.address, worker, options.workers))
            bench(executor, stack.enter_context(open_store(where)), options)
    except AutotuneError as error:
        raise SystemExit(str(error)) from None


def bench(executor: on_ray.RayExecutor, store: Store, options: argparse.Namespace) -> None:
    workers = len(executor.nodes())
    before = cpu_seconds()
    executor.poll(IDLE_S)
    idle = by_kind(before, cpu_seconds())
    before, begin = cpu_seconds(), time.monotonic()
    report = Sweep(store, executor).run([Linear(m, 16, 16) for m in range(1, options.jobs + 1)])
    wall, after = time.monotonic() - begin, cpu_seconds()
    measurements = store.stats().measurements
    measuring = measurements * options.measure
    spent = by_kind(before, after)
    resting = {kind: seconds / IDLE_S * wall for kind, seconds in idle.items()}
    amount = f"{len(report.jobs)} jobs, {measurements} measurements of {options.measure:g} s"
    print(f"{workers} workers, {amount}: {wall:.1f} s")
    print(f"efficiency      {measuring / (workers * wall):7.1%}")
    for kind in sorted(spent):
        own = max(0.0, spent[kind] - resting.get(kind, 0.0))
        print(f"CPU per trial   {own / measurements * 1e3:7.2f} ms  {kind}")
    work = sum(max(0.0, spent[kind] - resting.get(kind, 0.0)) for kind in spent)
    print(f"CPU per trial   {work / measurements * 1e3:7.2f} ms  together")
    print(f"CPU while idle  {sum(idle.values()) / IDLE_S:7.1%}     of a core, {workers} workers and Ray")
    if any(job.state != "tuned" for job in report.jobs):
        raise SystemExit("not every job was tuned")


if __name__ == "__main__":
    main()
