"""`autotune train`: a cost model from a database, or from another machine's model and a few results; and what to
measure for one."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from autotune import hardware, suites
from autotune.cli import cost
from autotune.cli.common import add_command, add_json, need, print_json, print_table, size
from autotune.errors import InvalidInput

if TYPE_CHECKING:
    from autotune.cost.model import OpModel
    from autotune.types import Workload


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "train",
        run,
        "Trains the cost model that answers lookups of workloads never measured. With --base, starts from another "
        "machine's model; with --probes, prints which measurements would teach it most instead.",
        "autotune train\n  autotune train --base other-machine.atm\n"
        "  autotune train --base other-machine.atm --probes 20 --suite resnet50",
    )
    cost.add_source(parser)
    parser.add_argument("--base", metavar="MODEL", help="a model trained on another machine, to start from")
    parser.add_argument("--probes", type=int, metavar="N", help="print the N measurements the model is least sure of")
    parser.add_argument(
        "--suite",
        action="append",
        default=[],
        metavar="NAME",
        help="with --probes: workloads to choose from (default: the model's)",
    )
    parser.add_argument(
        "--out", metavar="FILE", help="where the model goes (default: $AUTOTUNE_MODEL, else beside the database)"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    if args.probes is not None:
        return _probes(args)
    if args.suite:
        raise InvalidInput("--suite goes with --probes: training takes what the database holds")
    begin = time.monotonic()
    dataset = cost.read(args)
    from autotune import __version__, environment, refresh, settings
    from autotune.cost import model
    from autotune.cost.train import train_op

    base = model.read(args.base) if args.base else None
    trained: list[OpModel] = []
    notes: list[str] = []
    problems: list[str] = []
    for op in dataset.ops:
        try:
            made = train_op(op, dataset, cost.options(args), base.ops.get(op) if base else None)
        except InvalidInput as error:
            problems.append(str(error))
            continue
        trained.append(made.model)
        notes += made.notes
    if not trained:
        raise InvalidInput("; ".join(problems))
    path = args.out or settings.model()
    versions = {name: environment.version(name) for name in ("numpy", "torch")}
    head = {"autotune": __version__, "versions": versions, "environments": dataset.environments, "notes": notes}
    count = model.write(path, trained, head)
    refresh()
    seconds = time.monotonic() - begin
    if args.json:
        ops = {one.op: one.head["counts"] for one in trained}
        print_json({"path": path, "bytes": count, "seconds": seconds, "ops": ops, "notes": notes + problems})
        return 0
    rows = [
        (
            one.op,
            *(f"{one.head['counts'][name]:,}" for name in ("workloads", "shapes", "results")),
            f"{one.head['threshold']:.0%}",
        )
        for one in trained
    ]
    print_table("", ("op", "workloads", "layer shapes", "results", "asks for"), rows)
    for sentence in (
        *notes,
        *problems,
        *(f"{n:,} records left out: {why}" for why, n in dataset.left_out.most_common()),
    ):
        print(sentence)
    print(f"{path}: {size(count)}, trained in {seconds:.1f} s")
    return 0


def _probes(args: argparse.Namespace) -> int:
    if args.probes < 1:
        raise InvalidInput("--probes must be at least 1")
    for package in ("numpy", "xgboost"):
        need(package, "serve")
    from autotune import settings
    from autotune.cost import model
    from autotune.cost.probes import probes

    known = model.read(args.base or settings.model())
    workloads: list[Workload] = [workload for name in args.suite for workload in suites.load(name).workloads]
    if not args.suite:
        workloads = [entry.workload for one in known.ops.values() for entry in one.measured]
    if args.op:
        workloads = [workload for workload in workloads if workload.op in args.op]
    found = probes(known, workloads, hardware.detect(), args.probes)
    if args.json:
        print_json(
            [
                {
                    "workload": p.workload.spec,
                    "algorithm": p.config.algorithm,
                    "params": dict(p.config.params),
                    "spread": p.spread,
                }
                for p in found
            ]
        )
        return 0
    print_table(
        "",
        ("workload", "config", "spread of log time"),
        [(p.workload.spec, str(p.config), f"{p.spread:.3f}") for p in found],
    )
    return 0
