"""One short run on a machine with a GPU and no network: checks every kernel, sweeps for some minutes, writes results.

    python scripts/gpu_sweep.py --minutes 8 --out results
    python scripts/gpu_sweep.py --dry-run --out results     # the same on this machine's CPU, to try the script

1. What is here: devices, driver, versions; transfers between host and GPU.
2. Every algorithm for the device is checked against the f64 reference on small and odd shapes, a few configs each.
3. The suites are swept within the time that is left, GEMM, convolution and attention in turn.
4. `tuning.sqlite` has every result, `summary.json` and `summary.txt` what came out. `autotune db merge` takes the
   database home.

A stage that fails is told and the next one begins; the exit code is 1 when a kernel was wrong or nothing could be
measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from autotune import devices, environment, hardware, registry, stats, suites
from autotune.cluster.local import LocalExecutor, Part
from autotune.devices import Found
from autotune.errors import AutotuneError
from autotune.hardware import transfer
from autotune.job import Limits
from autotune.measure import Runner, Task
from autotune.measure.local import LocalRunner
from autotune.search import candidates_for
from autotune.store.sql import open_store
from autotune.sweep import Event, Sweep
from autotune.types import BenchmarkSpec, Config, Stage, Status, Workload

CHECKED = (
    "gemm m=64 n=64 k=64", "gemm m=33 n=65 k=17", "gemm m=1 n=130 k=257", "gemm m=64 n=64 k=64 dtype=f16",
    "gemm m=33 n=65 k=17 dtype=bf16", "linear m=4 n=96 k=128 bias=1 activation=gelu", "linear m=17 n=33 k=65 dtype=f16",
    "conv2d n=1 c=16 h=14 w=14 k=32 r=3 s=3 padding=1", "conv2d n=2 c=5 h=9 w=7 k=6 r=3 s=3 stride=2 padding=1",
    "conv2d n=1 c=32 h=8 w=8 k=16 r=1 s=1 dtype=f16",
    "attention batch=1 heads=4 kv_heads=2 q_len=1 kv_len=65 head_dim=64",
    "attention batch=2 heads=4 kv_heads=4 q_len=33 kv_len=33 head_dim=64 causal=1 dtype=f16",
    "embedding_bag rows=1000 dim=64 bags=33 pooling=7", "embedding_bag rows=100 dim=30 bags=5 pooling=3 mode=sum",
)  # fmt: skip
SUITES = ("common-gemms", "resnet50", "llama-3-8b-decode", "llama-3-8b-prefill")
DRY_RUN = ("gemm m=8 n=64 k=64", "linear m=4 n=64 k=32")
CONFIGS_PER_ALGORITHM = 3
CHECK_SHARE = 0.25
"""Of the time, at most, for checking."""

QUICK = BenchmarkSpec(screen_pairs=3, screen_budget_s=0.2, build_timeout_s=60.0, run_timeout_s=60.0)


@dataclass
class Summary:
    """What came out, for people and programs."""

    device: str = ""
    name: str = ""
    software: dict[str, Any] = field(default_factory=dict)
    transfers: dict[str, Any] = field(default_factory=dict)
    checks: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    tuned: list[dict[str, Any]] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return bool(self.wrong) or not self.checks[Status.OK.value]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.0, help="for all of it (8)")
    parser.add_argument("--out", type=Path, default=Path("gpu-sweep"), help="folder for what is written")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--suite", action="append", default=[], help="in place of the usual ones; may be repeated")
    parser.add_argument("--workload", action="append", default=[], help="beside the suites; may be repeated")
    parser.add_argument("--trials", type=int, default=40, help="configs screened per workload, at most (40)")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, two small workloads")
    args = parser.parse_args()
    if args.dry_run:
        args.device = "cpu"
    try:
        return run(args)
    except AutotuneError as error:
        print(f"gpu_sweep: {error}", file=sys.stderr)
        return 2


def run(args: argparse.Namespace) -> int:
    begin = time.monotonic()
    deadline = begin + 60 * args.minutes
    args.out.mkdir(parents=True, exist_ok=True)
    summary = Summary(device=args.device)
    found = _found(args.device)
    _look_around(found, summary)
    with LocalRunner() as runner:
        _check(found, runner, begin + CHECK_SHARE * (deadline - begin), summary)
    _write(args.out, summary)  # should the rest be cut short
    workloads = _workloads(args)
    if workloads and time.monotonic() < deadline:
        _sweep(found, workloads, args, deadline, summary)
    _write(args.out, summary)
    print(_text(summary))
    return 1 if summary.failed else 0


def _found(name: str) -> Found:
    """The device; raises `Unavailable` or `InvalidInput` where there is none of that name."""
    import torch  # noqa: F401 - without NVML, torch is what knows the GPUs

    for found in devices.here():
        if found.name == name:
            return found
    devices.opened(name)  # says why it cannot be used
    raise SystemExit(f"gpu_sweep: {name} can be used but tells nothing of itself")


def _look_around(found: Found, summary: Summary) -> None:
    summary.name = found.hardware.name
    summary.software = environment.current(found.hardware.kind).to_json()
    if found.name != "cpu":
        try:
            device = devices.opened(found.name)
            link = transfer.measure(hardware.detect(), found.hardware, device.copy_ns)
            summary.transfers = transfer.described(link)
        except Exception as error:
            summary.troubles.append(f"transfers: {error}")


def _check(found: Found, runner: Runner, deadline: float, summary: Summary) -> None:
    """Seeds and a few random configs of every algorithm that takes the workload, smallest first."""
    spec = QUICK.for_kind(found.hardware.kind)
    for text in CHECKED:
        if time.monotonic() > deadline:
            summary.troubles.append(f"checking stopped before {text}: its time was up")
            return
        workload = registry.parse_workload(text)
        task = Task(workload, found.hardware, spec, 1, found.name)
        try:
            for config in _few(workload, found):
                measured = runner.measure(task, config, Stage.SCREEN)
                summary.checks[measured.status.value] += 1
                if measured.status in (Status.WRONG_RESULT, Status.RUN_FAILED):
                    summary.wrong.append(f"{text}: {config}: {measured.status.value} {measured.message}")
        except AutotuneError as error:
            summary.troubles.append(f"{text}: {error}")


def _few(workload: Workload, found: Found) -> list[Config]:
    candidates = candidates_for(workload, found.hardware)
    chosen = [candidates.default]
    for name, space in candidates.spaces.items():
        random = Random(workload.key)
        drawn = [*space.seeds[:1], *(space.sample(random) for _ in range(CONFIGS_PER_ALGORITHM))]
        chosen += [candidates.config(name, params) for params in drawn if params is not None]
    return list(dict.fromkeys(chosen))


def _workloads(args: argparse.Namespace) -> list[Workload]:
    """Suites in turn, one workload of each after the other, so that a short run has some of all."""
    given = [registry.parse_workload(text) for text in args.workload]
    if args.dry_run:
        return given or [registry.parse_workload(text) for text in DRY_RUN]
    names = args.suite or (() if given else SUITES)
    rows = [list(suites.load(name).workloads) for name in names]
    mixed = [row[i] for i in range(max(map(len, rows), default=0)) for row in rows if i < len(row)]
    return list(dict.fromkeys([*given, *mixed]))


def _sweep(
    found: Found, workloads: list[Workload], args: argparse.Namespace, deadline: float, summary: Summary
) -> None:
    def observe(event: Event) -> None:
        if event.lost:
            summary.troubles.append(f"{event.workload}: {event.lost}")
        if event.result is not None:
            print(f"[{event.index + 1}/{event.jobs}] {event.workload}: {event.result.state}", flush=True)

    software = environment.current(found.hardware.kind)
    more = () if found.name == "cpu" else (Part(found.name, found.hardware, software),)
    with (
        open_store(args.out / "tuning.sqlite") as store,
        LocalExecutor(LocalRunner(), hardware.detect(), environment.current(), more=more) as executor,
    ):
        limits = replace(Limits(), trials=args.trials)
        sweep = Sweep(store, executor, BenchmarkSpec(), limits, observe=observe, wanted=frozenset({found.hardware.key}))
        report = sweep.run(workloads, max(1.0, deadline - time.monotonic()))
    for job in report.jobs:
        summary.tuned.append(
            {
                "workload": job.workload.spec,
                "state": job.state,
                "reason": job.reason,
                "default_ns": job.default_ns,
                "winner": str(job.winner.config) if job.winner else "",
                "speedup": job.winner.speedup if job.winner else 1.0,
                "trials": job.trials,
                "failures": job.failures,
            }
        )


def _text(summary: Summary) -> str:
    tuned = [job for job in summary.tuned if job["state"] in ("tuned", "known")]
    lines = [f"{summary.device}: {summary.name}", f"checked: {dict(summary.checks)}"]
    lines += [f"WRONG {told}" for told in summary.wrong]
    lines += [f"trouble: {told}" for told in summary.troubles]
    for job in summary.tuned:
        lines.append(f"{job['speedup']:.2f}x {job['workload']} {job['winner'] or job['state']}")
    if tuned:
        mean = stats.geometric_mean(job["speedup"] for job in tuned)
        lines.append(f"{len(tuned)} of {len(summary.tuned)} workloads tuned, {mean:.2f}x the default on average")
    return "\n".join(lines)


def _write(folder: Path, summary: Summary) -> None:
    (folder / "summary.txt").write_text(_text(summary) + "\n", encoding="utf-8")
    (folder / "summary.json").write_text(json.dumps(vars(summary), indent=1), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
