"""`autotune evaluate`: how good predictions are on layer shapes, or machines, that the model has not seen."""

from __future__ import annotations

import argparse
from typing import Any

from autotune.cli import cost
from autotune.cli.common import add_command, add_json, print_json, print_table
from autotune.errors import InvalidInput, Unavailable


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "evaluate",
        run,
        "Says how good the cost model's picks are for layer shapes it has not seen, next to simpler rules.",
        "autotune evaluate\n  autotune evaluate --op linear --card card.md",
    )
    cost.add_source(parser)
    parser.add_argument("--leave-one-machine-out", action="store_true", help="test on each machine in turn instead")
    parser.add_argument("--card", metavar="FILE", help="also write a model card in Markdown")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    dataset = cost.read(args)
    from autotune.cost.evaluate import card, evaluate, summarise, table

    summaries, problems = {}, []
    for op in dataset.ops:
        try:
            summaries[op] = summarise(evaluate(dataset, op, cost.options(args), args.leave_one_machine_out), args.seed)
        except InvalidInput as error:
            problems.append(str(error))
    if not summaries:
        raise InvalidInput("; ".join(problems))
    if args.card:
        names = sorted({group.hardware.name for group in dataset.groups})
        notes = [
            f"Hardware: {', '.join(names)}. Software: {', '.join(sorted(set(dataset.environments.values())))}.",
            *problems,
        ]
        try:
            with open(args.card, "w", encoding="utf-8") as file:
                file.write(card(summaries, "Cost model", notes))
        except OSError as error:
            raise Unavailable(f"{args.card} cannot be written: {error.strerror}") from None
    if args.json:
        print_json({"ops": {op: vars(summary) for op, summary in summaries.items()}, "notes": problems})
        return 0
    print_table("", ("", *summaries), [(name, *cells) for name, cells in table(summaries)])
    for problem in problems:
        print(problem)
    return 0
