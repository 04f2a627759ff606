"""`autotune sweep`: tune workloads and keep every result."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from autotune import environment, hardware, registry, suites
from autotune.cli.common import add_command, add_database, add_json, duration, need, print_json, print_table, seconds
from autotune.cli.progress import observer
from autotune.errors import InvalidInput
from autotune.types import Workload


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "sweep",
        run,
        "Tunes the layers of a model suite, of a model of yours, or single workloads, on this machine. Results are "
        "kept as they come: stopped in any way and run again, it goes on where it was.",
        "autotune sweep --suite bert-base --budget 5m\n  autotune sweep --model my_package.my_module:make_model\n"
        "  autotune sweep --workload 'linear m=4 n=4096 k=1024'",
    )
    parser.add_argument(
        "--suite", action="append", default=[], metavar="NAME", help="a suite's name or TOML file; may be repeated"
    )
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="MODULE:FUNCTION",
        help="a function that returns (torch model, example inputs), whose layers are traced; may be repeated",
    )
    parser.add_argument(
        "--workload", action="append", default=[], metavar="SPEC", help="a spec string; may be repeated"
    )
    parser.add_argument("--budget", metavar="TIME", help="time for all of it, such as 90s, 5m or 1h")
    parser.add_argument("--trials", type=int, default=None, metavar="N", help="configs screened per workload, at most")
    parser.add_argument("--again", action="store_true", help="decide finished workloads anew, on fresh measurements")
    parser.add_argument(
        "--tolerate-contention",
        type=float,
        metavar="SHARE",
        help="how much of the time others may want the CPUs before a result is set aside, 0 to 1 (default 0.1)",
    )
    add_database(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    workloads = _workloads(args)
    budget = None if args.budget is None else seconds(args.budget)
    if args.trials is not None and args.trials < 1:
        raise InvalidInput("--trials must be at least 1")
    if args.tolerate_contention is not None and not 0 <= args.tolerate_contention <= 1:
        raise InvalidInput("--tolerate-contention must be between 0 and 1")
    for package in ("sqlalchemy", "optuna", "torch"):
        need(package, "tune")
    from autotune import refresh, settings
    from autotune.measure.local import LocalRunner
    from autotune.store.sql import open_store
    from autotune.sweep import Limits, Sweep
    from autotune.types import BenchmarkSpec

    tolerated = args.tolerate_contention
    spec = BenchmarkSpec() if tolerated is None else BenchmarkSpec(tolerated_contention=tolerated)
    limits = Limits() if args.trials is None else Limits(trials=args.trials)
    with LocalRunner() as runner:
        runner.start()  # its imports overlap with ours
        profile = hardware.detect()
        with open_store(args.db or settings.database()) as store, observer(args.json) as observe:
            software = environment.current()
            sweep = Sweep(store, runner, profile, software, spec, limits, again=args.again, observe=observe)
            report = sweep.run(workloads, budget)
    refresh()
    code = 1 if any(job.state == "failed" for job in report.jobs) else 0
    share = report.useful_s / report.wall_s if report.wall_s else 0.0
    if args.json:
        print_json({"wall_s": report.wall_s, "useful_s": report.useful_s, "jobs": len(report.jobs)})
        return code
    rows = [
        (
            job.workload.spec,
            str(job.winner.config) if job.winner else "default" if job.state in ("tuned", "known") else job.state,
            f"{job.winner.speedup:.2f}x" if job.winner else "1.00x" if job.default_ns else "–",
            duration(job.winner.expected_ns if job.winner else job.default_ns),
            job.reason or f"{job.trials} tried, {job.failures} failed",
        )
        for job in report.jobs
    ]
    print_table("", ("workload", "winner", "speed-up", "time", "trials"), rows)
    if share:
        print(f"{report.wall_s:.0f} s, {share:.0%} of it building, checking and timing candidates")
    return code


def _workloads(args: argparse.Namespace) -> list[Workload]:
    found = [workload for name in args.suite for workload in suites.load(name).workloads]
    found += [workload for name in args.model for workload in _traced(name, args.json)]
    found += [registry.parse_workload(spec) for spec in args.workload]
    if not found:
        names = ",".join(suites.names())
        raise InvalidInput(
            f"say what to tune: --suite {{{names}}}, --model module:function or --workload 'linear m=1 …'"
        )
    if not sys.platform.startswith("linux") and not sys.platform.startswith("darwin"):
        raise InvalidInput("sweeps run on Linux and macOS")
    return found


def _traced(name: str, quiet: bool) -> list[Workload]:
    """The distinct workloads of the user's model; how often each runs is printed unless JSON is asked for."""
    need("torch", "tune")
    from autotune import trace

    layers = trace.trace(*trace.load(name))
    if not quiet:
        rows = [(layer.name, layer.count, layer.workload.spec) for layer in layers]
        print_table(f"{name} runs", ("layer", "times", "workload"), rows)
    return [layer.workload for layer in layers]
