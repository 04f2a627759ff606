"""What a sweep shows while it runs: a bar on a terminal, a line per job elsewhere, JSON lines for programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from autotune.cli.common import duration, print_json
from autotune.sweep import Event, JobResult


@contextmanager
def observer(as_json: bool) -> Iterator[Callable[[Event], None]]:
    """The function that a sweep tells its events."""
    if as_json:
        yield _json_lines
    elif sys.stderr.isatty():
        with _bar() as show:
            yield show
    else:
        yield _plain_lines


def _json_lines(event: Event) -> None:
    if event.result is not None:
        print_json(_described(event.result))
        sys.stdout.flush()


def _described(result: JobResult) -> dict[str, object]:
    winner = result.winner
    return {
        "workload": result.workload.spec,
        "state": result.state,
        "algorithm": winner.config.algorithm if winner else None,
        "params": dict(winner.config.params) if winner else None,
        "speedup": winner.speedup if winner else 1.0 if result.default_ns else None,
        "expected_ns": winner.expected_ns if winner else result.default_ns,
        "default_ns": result.default_ns,
        "trials": result.trials,
        "failures": result.failures,
        "seconds": round(result.seconds, 3),
        "reason": result.reason,
    }


def _plain_lines(event: Event) -> None:
    if event.lost:
        print(_loss(event), file=sys.stderr, flush=True)
    if event.result is not None:
        print(f"[{event.index + 1}/{event.jobs}] {_summary(event.result)}", file=sys.stderr, flush=True)


def _summary(result: JobResult) -> str:
    if result.winner is not None:
        what = f"{result.winner.speedup:.2f}x with {result.winner.config} ({duration(result.winner.expected_ns)})"
    elif result.state in ("tuned", "known"):
        what = f"the default stays ({duration(result.default_ns)})"
        if result.reason:
            what += f"; {result.reason}"
    else:
        what = f"{result.state}: {result.reason}"
    where = f" on {result.node}" if result.node else ""
    return f"{result.workload}: {what} in {result.seconds:.0f} s{where}"


def _loss(event: Event) -> str:
    return f"{event.workload}: {event.node} is lost ({event.lost}); the job waits for another machine"


@contextmanager
def _bar() -> Iterator[Callable[[Event], None]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("sweep", total=None, note="")

        def show(event: Event) -> None:
            if event.result is not None:
                progress.console.print(_summary(event.result), highlight=False)
                progress.update(task, advance=1, total=event.jobs)
            elif event.lost:
                progress.console.print(_loss(event), highlight=False)
            else:
                note = (
                    f"{event.workload}  trial {event.trials}, best {event.best:.2f}x"
                    if event.trials
                    else str(event.workload)
                )
                progress.update(task, total=event.jobs, note=note)

        yield show
