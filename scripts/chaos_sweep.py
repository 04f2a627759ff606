#!/usr/bin/env python3
"""One sweep under fire: kills nodes, workers, driver and database, then proves that nothing is missing or twice.

A sweep of simulated measurements (see autotune/cluster/simulated.py) runs on a Ray cluster of real node processes and
a real PostgreSQL. At random moments, the same for a seed, something is killed with SIGKILL and comes back. In the
end the screened (workload, config) pairs and the finished jobs must be those of a sweep that nobody disturbed, and
every identity must be stored once.

    python scripts/chaos_sweep.py --kills 20 --seed 1
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from random import Random
from typing import Any

import psutil

from autotune.cluster import on_ray, simulated
from autotune.errors import AutotuneError
from autotune.ops.linear import Linear
from autotune.store import Store
from autotune.store.embedded import PostgresServer
from autotune.store.patient import PatientStore
from autotune.store.sql import open_store
from autotune.sweep import Sweep
from autotune.types import Stage

WORKER = "autotune.cluster.simulated:SimulatedWorker"
KINDS = ("node", "worker", "driver", "database")
NODES = 3


def drive(address: str, where: str, jobs: int) -> None:
    """What the driver process does: the whole sweep, until nothing is left to do."""
    with (
        on_ray.RayExecutor(address, WORKER) as executor,
        PatientStore(lambda: open_store(where), 120) as store,
    ):
        report = Sweep(store, executor).run(workloads(jobs))
    states = {job.state for job in report.jobs}
    if not states <= {"tuned", "known"}:
        raise SystemExit(f"jobs ended as {sorted(states)}")


def workloads(jobs: int) -> list[Linear]:
    return [Linear(m, 16, 16) for m in range(1, jobs + 1)]


class Battlefield:
    """What runs, and how to kill it."""

    def __init__(self, cluster: Any, server: PostgresServer, jobs: int) -> None:
        self.cluster, self.server, self.jobs = cluster, server, jobs
        self.nodes = [add_node(cluster) for _ in range(NODES)]
        self.said = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the drivers
        self.driver = self.start_driver()

    def start_driver(self) -> subprocess.Popen[bytes]:
        """Its own words and Ray's pages about dead nodes go to a file; `finish` shows its end when it fails."""
        arguments = ["--drive", self.cluster.address, self.server.url(), "--jobs", str(self.jobs)]
        return subprocess.Popen([sys.executable, __file__, *arguments], stdout=self.said, stderr=self.said)

    def kill(self, kind: str, random: Random) -> str:
        if kind == "node":
            node = self.nodes.pop(random.randrange(len(self.nodes)))
            self.cluster.remove_node(node, allow_graceful=False)
            self.nodes.append(add_node(self.cluster))
        elif kind == "worker":
            found = [
                p for p in psutil.process_iter(["cmdline"]) if "SimulatedWorker" in " ".join(p.info["cmdline"] or ())
            ]
            if not found:
                return "no worker was up"
            with contextlib.suppress(psutil.NoSuchProcess):
                random.choice(sorted(found, key=lambda p: p.pid)).kill()
        elif kind == "driver":
            self.driver.kill()
            self.driver.wait()
            self.driver = self.start_driver()
        else:
            self.server.stop("immediate")
            time.sleep(random.uniform(0.5, 3))
            self.server.start()
        return "killed"

    def finish(self, seconds: float) -> int:
        """Waits for the sweep, starting the driver again should it have been killed by a fall of something else."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            code = self.driver.poll()
            if code == 0:
                return 0
            if code is not None:
                self.driver = self.start_driver()
            time.sleep(0.2)
        self.driver.kill()
        self.said.seek(0)
        print(self.said.read().decode(errors="replace")[-2000:])
        return 1


def add_node(cluster: Any) -> Any:
    return cluster.add_node(
        num_cpus=1, include_dashboard=False, object_store_memory=80 << 20,
        resources={f"{simulated.RESOURCE}target": 1.0},
    )  # fmt: skip


def contents(store: Store) -> tuple[set[tuple[str, str]], set[str], int, int]:
    """Screened (workload, config) pairs, workloads finished, measurements, and distinct identities of these."""
    records = list(store.records())
    screened = {(r.workload.key, r.config.key) for r in records if r.stage is Stage.SCREEN}
    done = {r.workload.key for r in records if store.finished_jobs(r.workload.key, r.hardware.key, r.environment.key)}
    return screened, done, len(records), len({record.uid for record in records})


def undisturbed(jobs: int) -> tuple[set[tuple[str, str]], set[str], int, int]:
    """The same sweep on this machine alone, in an own file."""
    from autotune.cluster.local import LocalExecutor

    with tempfile.TemporaryDirectory() as folder, open_store(os.path.join(folder, "quiet.sqlite")) as store:
        runner = simulated.SimulatedRunner(0)
        with LocalExecutor(runner, simulated.PROFILE, simulated.ENVIRONMENT, simulated.candidates) as executor:
            Sweep(store, executor).run(workloads(jobs))
        return contents(store)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="how often something is killed (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="chooses what and when (%(default)s)")
    parser.add_argument("--jobs", type=int, default=60, help="workloads (%(default)s)")
    parser.add_argument("--pause", type=float, default=2.0, help="mean seconds between kills (%(default)s)")
    parser.add_argument("--drive", nargs=2, metavar=("ADDRESS", "URL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if min(options.kills, options.jobs) < 1 or options.pause <= 0:
        parser.error("counts must be at least 1 and times positive")
    os.environ.setdefault(simulated.SECONDS, "0.1")
    try:
        if options.drive:
            address, url = options.drive
            drive(address, url, options.jobs)
        else:
            fight(options)
    except AutotuneError as error:
        raise SystemExit(str(error)) from None


def fight(options: argparse.Namespace) -> None:
    random, killed = Random(options.seed), dict.fromkeys(KINDS, 0)
    expected = undisturbed(options.jobs)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(PostgresServer())
        cluster = on_ray.local_cluster(1, cpus=0)  # the head does no work: a sweep cannot outlive it
        stack.callback(cluster.shutdown)
        field = Battlefield(cluster, server, options.jobs)
        stack.callback(field.driver.kill)
        order = [KINDS[n % len(KINDS)] for n in range(options.kills)]
        random.shuffle(order)
        begin = time.monotonic()
        for kind in order:
            time.sleep(random.expovariate(1 / options.pause))
            if field.kill(kind, random) == "killed":
                killed[kind] += 1
            print(f"{time.monotonic() - begin:6.1f} s  {kind}", flush=True)
        code = field.finish(600)
        with open_store(server.url()) as store:
            found = contents(store)
    print(f"killed: {', '.join(f'{count} {kind}' for kind, count in killed.items())}")
    print(f"screened (workload, config) pairs: {len(found[0])}, undisturbed {len(expected[0])}")
    print(f"jobs finished: {len(found[1])}, undisturbed {len(expected[1])}")
    print(f"measurements stored: {found[2]}, distinct identities {found[3]}")
    if code or found[0] != expected[0] or found[1] != expected[1] or found[2] != found[3]:
        raise SystemExit("the database is not what an undisturbed sweep leaves")
    print("the keys are those of an undisturbed sweep, each stored once")


if __name__ == "__main__":
    main()
