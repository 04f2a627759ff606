"""`autotune sweep`: tune workloads and keep every result."""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from autotune import environment, hardware, registry, suites
from autotune.cli.common import add_command, add_database, add_json, duration, need, print_json, print_table, seconds
from autotune.cli.progress import observer
from autotune.errors import InvalidInput
from autotune.hardware import probe
from autotune.types import BenchmarkSpec, HardwareProfile, Workload

if TYPE_CHECKING:
    from autotune.cluster import Executor, Node
    from autotune.job import Limits
    from autotune.store import Store, Wish
    from autotune.sweep import SweepReport

WISH_LEASE_S = 3600.0
"""A sweep that has not granted a wish by then is taken for dead."""


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
    parser.add_argument(
        "--wishes",
        type=int,
        nargs="?",
        const=20,
        metavar="N",
        help="the N workloads of the queue (20) that promise the largest gain; see `autotune enqueue`",
    )
    parser.add_argument(
        "--budget",
        metavar="TIME",
        help="time for all of it, such as 90s, 5m or 1h; it goes where the models would gain most",
    )
    parser.add_argument("--trials", type=int, default=None, metavar="N", help="configs screened per workload, at most")
    parser.add_argument("--again", action="store_true", help="decide finished workloads anew, on fresh measurements")
    parser.add_argument(
        "--tolerate-contention",
        type=float,
        metavar="SHARE",
        help="how much of the time others may want the CPUs before a result is set aside, 0 to 1 (default 0.1)",
    )
    parser.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help="tune on the nodes of a Ray cluster: auto, host:port, or local:N to try it on this machine",
    )
    parser.add_argument(
        "--hardware",
        action="append",
        default=[],
        metavar="NAME",
        help="only on machines and devices whose profile's name or key begins so, or cpu, or gpu; may be repeated",
    )
    add_database(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    counts = _workloads(args)
    budget = None if args.budget is None else seconds(args.budget)
    if args.trials is not None and args.trials < 1:
        raise InvalidInput("--trials must be at least 1")
    if args.wishes is not None and args.wishes < 1:
        raise InvalidInput("--wishes must be at least 1")
    if args.tolerate_contention is not None and not 0 <= args.tolerate_contention <= 1:
        raise InvalidInput("--tolerate-contention must be between 0 and 1")
    for package in ("sqlalchemy", "optuna", "torch"):
        need(package, "tune")
    from autotune import refresh, settings
    from autotune.store.patient import PatientStore
    from autotune.store.sql import open_store
    from autotune.sweep import Sweep

    database = args.db or settings.database()
    with contextlib.ExitStack() as stack:
        executor = stack.enter_context(_executor(args))
        say = stack.enter_context(_warnings(args.json))
        store = stack.enter_context(PatientStore(lambda: open_store(database), say=say))
        wanted = _wanted(executor.nodes(), args.hardware)
        taken = _take_wishes(store, wanted, args.wishes)
        for wish in taken:
            counts[wish.workload] = counts.get(wish.workload, 0) + max(1, round(wish.asked * wish.weight))
        if not counts:
            print("nobody wishes for anything: see `autotune enqueue`")
            return 0
        observe = stack.enter_context(observer(args.json))
        keys = frozenset(node.hardware.key for node in wanted)
        sweep = Sweep(store, executor, _spec(args), _limits(args), args.again, observe, keys)
        report = sweep.run(counts, budget, counts)
        decided = {job.workload for job in report.jobs if job.state in ("tuned", "known") and not job.reason}
        for wish in taken:
            if wish.workload in decided:
                store.grant(wish)
    refresh()
    _print_report(report, args.json)
    return 1 if any(job.state == "failed" for job in report.jobs) else 0


def _executor(args: argparse.Namespace) -> Executor:
    if args.cluster is not None:
        need("ray", "cluster")
        from autotune.cluster.on_ray import RayExecutor

        return RayExecutor(args.cluster)
    from autotune import devices
    from autotune.cluster.local import LocalExecutor, Part
    from autotune.measure.local import LocalRunner

    runner = LocalRunner()
    runner.start()  # its imports overlap with ours
    alike: dict[str, Part] = {}  # of GPUs of one kind the first measures for all
    for found in devices.here():
        if found.name != "cpu":
            software = environment.current(found.hardware.kind)
            alike.setdefault(found.hardware.key, Part(found.name, found.hardware, software))
    here = probe.cached(hardware.detect())
    return LocalExecutor(runner, here, environment.current(), more=tuple(alike.values()))


@contextlib.contextmanager
def _warnings(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Says a sentence on stderr; programs that read JSON get none."""
    yield lambda sentence: None if quiet else print(f"autotune: {sentence}", file=sys.stderr, flush=True)


def _wanted(nodes: tuple[Node, ...], names: list[str]) -> list[Node]:
    """The nodes whose profile has one of these names or keys (or begins with it); all without names."""
    there = {f"{node.hardware.name} ({node.hardware.key[:8]})" for node in nodes}
    chosen = []
    for name in names or [""]:
        found = [n for n in nodes if _is_called(n.hardware, name)]
        if not found:
            raise InvalidInput(
                f"no machine of profile {name!r} is there; there are {', '.join(sorted(there)) or 'none'}"
            )
        chosen += found
    return chosen


def _is_called(profile: HardwareProfile, name: str) -> bool:
    return name in ("", profile.kind) or profile.key.startswith(name) or profile.name.startswith(name)


def _take_wishes(store: Store, nodes: list[Node], count: int | None) -> list[Wish]:
    """Leases the wishes that promise most, so that no other sweep tunes the same."""
    if count is None:
        return []
    from autotune import wishes

    wishes.collect(store)
    keys = {node.hardware.key for node in nodes}
    for_us = [wish for wish in store.wishes() if not wish.hardware_key or wish.hardware_key in keys]
    taken: list[Wish] = []
    for _, wish in wishes.by_gain(store, for_us, nodes[0].hardware):
        if len(taken) < count and store.take(wish, f"{socket.gethostname()} {os.getpid()}", WISH_LEASE_S):
            taken.append(wish)
    return taken


def _spec(args: argparse.Namespace) -> BenchmarkSpec:
    tolerated = args.tolerate_contention
    return BenchmarkSpec() if tolerated is None else BenchmarkSpec(tolerated_contention=tolerated)


def _limits(args: argparse.Namespace) -> Limits:
    from autotune.job import Limits

    return Limits() if args.trials is None else Limits(trials=args.trials)


def _print_report(report: SweepReport, as_json: bool) -> None:
    if as_json:
        print_json({"wall_s": report.wall_s, "useful_s": report.useful_s, "jobs": len(report.jobs)})
        return
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
    if report.wall_s and report.useful_s:
        share = report.useful_s / report.wall_s
        print(f"{report.wall_s:.0f} s, {share:.0%} of it building, checking and timing candidates")


def _workloads(args: argparse.Namespace) -> dict[Workload, int]:
    """What to tune, and how often the models together run it."""
    found: dict[Workload, int] = {}
    layers = [(layer.workload, layer.count) for name in args.suite for layer in suites.load(name).layers]
    layers += [layer for name in args.model for layer in _traced(name, args.json)]
    layers += [(registry.parse_workload(spec), 1) for spec in args.workload]
    for workload, count in layers:
        found[workload] = found.get(workload, 0) + count
    if not found and args.wishes is None:
        names = ",".join(suites.names())
        raise InvalidInput(
            f"say what to tune: --suite {{{names}}}, --model module:function, --wishes or --workload 'linear m=1 …'"
        )
    if not sys.platform.startswith("linux") and not sys.platform.startswith("darwin"):
        raise InvalidInput("sweeps run on Linux and macOS")
    return found


def _traced(name: str, quiet: bool) -> list[tuple[Workload, int]]:
    """The distinct workloads of the user's model with how often each runs; printed, too, unless JSON is asked for."""
    need("torch", "tune")
    from autotune import trace

    layers = trace.trace(*trace.load(name))
    if not quiet:
        rows = [(layer.name, layer.count, layer.workload.spec) for layer in layers]
        print_table(f"{name} runs", ("layer", "times", "workload"), rows)
    return [(layer.workload, layer.count) for layer in layers]
