"""Compares searches on recorded spaces: median slowdown after 25, 50, 100 and 200 evaluations, and how many
evaluations it takes to come within 5 % and 1 % of the best recorded time.

    python scripts/bench_search.py --spaces FOLDER --seeds 10 [--only 'gemm*'] [--strategies surrogate,random]

FOLDER holds a table per kernel and GPU (`kernel/GPU.csv` or `.csv.xz`; see autotune/measure/recorded.py). Instead of
it, `--db FILE` compares on what an autotune database holds for its machine, workload by workload. Evaluations are
distinct configs; failures count. `warm:KERNEL/GPU` as a strategy starts from that table's results. With
`--cache FOLDER` results are kept, so that another run only adds what is missing: delete it after changing the search.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import search_peers as peers

from autotune.errors import InvalidInput
from autotune.measure.recorded import RecordedSpace, from_store, read_table
from autotune.search import Candidates, Outcome, Strategy
from autotune.search.explorer import Explorer, Habits, Row
from autotune.search.grid import Grid
from autotune.search.portfolio import Portfolio
from autotune.search.surrogate import Surrogate
from autotune.search.tpe import Tpe
from autotune.search.transfer import Source

AT = (25, 50, 100, 200)
LONGEST = 10**6  # stands for "never" in medians


@dataclass
class Table:
    """A recorded space in memory: its grid, and the time of each row (None: failed)."""

    name: str
    grid: Grid
    times: dict[Row, float | None]
    candidates: Candidates

    @staticmethod
    def of(space: RecordedSpace) -> Table:
        candidates = space.candidates()
        grid = Grid(candidates.spaces)
        times = {}
        for config, measurement in space.results.items():
            if (row := grid.row(config.algorithm, config.params)) is not None:
                times[row] = measurement.median_ns
        return Table(space.name, grid, times, candidates)


Search = Callable[[Table, int, int], Iterator[Row]]


def surrogate(habits: Habits, source: Table | None = None) -> Search:
    def search(table: Table, seed: int, evaluations: int) -> Iterator[Row]:
        table.grid.reseed(seed)
        sources = []
        if source is not None:
            told = {table.grid.row(*source.grid.params(row)): _log(time) for row, time in source.times.items()}
            sources = [Source({row: value for row, value in told.items() if row is not None})]
        explorer = Explorer(table.grid, seed, habits, sources)
        for _ in range(evaluations):
            asked = explorer.ask(1)
            if not asked:
                return
            yield asked[0]
            explorer.tell(asked[0], _log(table.times[asked[0]]))

    return search


def strategy(make: Callable[[Candidates, int], Strategy]) -> Search:
    """A search by the contract that sweeps use."""

    def search(table: Table, seed: int, evaluations: int) -> Iterator[Row]:
        made = make(table.candidates, seed)
        usual = statistics.median(time for time in table.times.values() if time is not None)
        for _ in range(evaluations):
            for config in made.ask(1):
                row = table.grid.row(config.algorithm, config.params)
                assert row is not None
                yield row
                time = table.times[row]
                made.tell(Outcome(config, None if time is None else usual / time))

    return search


def portfolio(candidates: Candidates, seed: int) -> Strategy:
    return Portfolio([Surrogate(candidates, seed=seed), Tpe(candidates, seed=seed)])


def _log(time: float | None) -> float | None:
    return None if time is None else math.log(time)


def _peer(search: Callable[[Grid, peers.Times, int, int], Iterator[Row]]) -> Search:
    return lambda table, seed, evaluations: search(table.grid, table.times, seed, evaluations)


def named(name: str, folder: Path | None) -> Search:
    """A strategy by its name. Raises `InvalidInput` for a name that is none."""
    if name == "surrogate":
        return surrogate(Habits())
    if name.startswith("warm:") and folder is not None:
        return surrogate(Habits(), Table.of(read_table(_file(folder, name.removeprefix("warm:")))))
    if name == "portfolio":
        return strategy(portfolio)
    if name in peers.KERNEL_TUNER:
        return _peer(peers.kernel_tuner(name))
    if name in ("tpe", "random"):
        return _peer(peers.tpe if name == "tpe" else peers.random_order)
    raise InvalidInput(
        f"unknown strategy {name}: surrogate, portfolio, warm:KERNEL/GPU, tpe, random, {', '.join(peers.KERNEL_TUNER)}"
    )


def _file(folder: Path, name: str) -> Path:
    found = [path for ending in (".csv.xz", ".csv") if (path := folder / f"{name}{ending}").exists()]
    if not found:
        raise InvalidInput(f"{folder} has no table {name}")
    return found[0]


def run(table: Table, search: Search, seed: int, evaluations: int) -> dict[str, object]:
    """Slowdown of the best so far after each evaluation (`inf` as null), and CPU seconds."""
    begin = time.process_time()
    rows = list(search(table, seed, evaluations))
    seconds = time.process_time() - begin
    best = min(t for t in table.times.values() if t is not None)
    curve: list[float | None] = []
    least = math.inf
    for row in rows:
        least = min(least, table.times[row] or math.inf)
        curve.append(round(least / best, 5) if least < math.inf else None)
    return {"curve": curve, "cpu_s": round(seconds, 3)}


@dataclass
class Summary:
    """Over the seeds of one strategy on one space."""

    slowdown: dict[int, float]
    to_5: float
    share_5: float
    to_1: float
    share_1: float
    cpu_s: float

    @staticmethod
    def of(runs: list[dict[str, object]]) -> Summary:
        curves = [[math.inf if v is None else v for v in run["curve"]] for run in runs]  # type: ignore[attr-defined]
        slowdown = {n: statistics.median(c[min(n, len(c)) - 1] for c in curves) for n in AT}

        def until(limit: float) -> list[int]:
            return [next((n for n, v in enumerate(c, 1) if v <= limit), LONGEST) for c in curves]

        five, one = until(1.05), until(1.01)
        shares = [sum(n < LONGEST for n in found) / len(runs) for found in (five, one)]
        cpu = statistics.mean(float(run["cpu_s"]) for run in runs)  # type: ignore[arg-type]
        return Summary(slowdown, statistics.median(five), shares[0], statistics.median(one), shares[1], cpu)

    def line(self, space: str, strategy: str) -> str:
        figures = " / ".join(f"{self.slowdown[n]:.3f}" for n in AT)
        within = " | ".join(
            f"{f'{n:.0f}' if n < LONGEST / 2 else '–'} ({share:.0%})"
            for n, share in ((self.to_5, self.share_5), (self.to_1, self.share_1))
        )
        return f"| {space} | {strategy} | {figures} | {within} | {self.cpu_s:.2f} |"


def aggregate(summaries: dict[tuple[str, str], Summary], strategies: list[str]) -> Iterator[str]:
    """Geometric mean over spaces of the median slowdown, each space counting once, and the spaces won."""
    spaces = sorted({space for space, _ in summaries})
    whole = [space for space in spaces if all((space, s) in summaries for s in strategies)]
    yield f"\nGeometric mean over {len(whole)} spaces of the median slowdowns; share of runs within 5 % and 1 %:"
    yield "| strategy | 25 / 50 / 100 / 200 | ≤5 % | ≤1 % | spaces best or tied at 100 |"
    yield "|---|---|---|---|---|"
    for strategy in strategies:
        found = [summaries[space, strategy] for space in whole]
        if not found:
            continue
        means = " / ".join(f"{math.exp(np.mean([math.log(s.slowdown[n]) for s in found])):.3f}" for n in AT)
        shares = [float(np.mean([s.share_5 for s in found])), float(np.mean([s.share_1 for s in found]))]
        best = [min(summaries[space, s].slowdown[100] for s in strategies) for space in whole]
        won = sum(s.slowdown[100] <= b * 1.002 for s, b in zip(found, best, strict=True))
        yield f"| {strategy} | {means} | {shares[0]:.0%} | {shares[1]:.0%} | {won} |"


def tables(arguments: argparse.Namespace) -> Iterator[Table]:
    if arguments.db is not None:
        from autotune.store.sql import open_store

        with open_store(arguments.db) as store:
            for hardware in store.hardware():
                for environment in store.environments():
                    for _, space in from_store(store, hardware.key, environment.key):
                        if len(space.results) > 20 and space.best_ns is not None:
                            yield Table.of(space)
        return
    for path in sorted(arguments.spaces.rglob("*.csv*")):
        name = f"{path.parent.name}/{path.name.partition('.')[0]}"
        if any(fnmatch(name, pattern) for pattern in arguments.only.split(",")):
            yield Table.of(read_table(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--spaces", type=Path, help="folder of tables")
    where.add_argument("--db", type=Path, help="an autotune database instead")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", default="*", help="patterns of KERNEL/GPU, separated by commas")
    parser.add_argument("--strategies", default="surrogate,random")
    parser.add_argument("--evaluations", type=int, default=200)
    parser.add_argument("--cache", type=Path, help="keeps results here and reuses them")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no more runs after so long")
    arguments = parser.parse_args()
    strategies = arguments.strategies.split(",")
    begin = time.monotonic()
    summaries: dict[tuple[str, str], Summary] = {}
    print("| space | strategy | slowdown at 25 / 50 / 100 / 200 | ≤5 % (share) | ≤1 % (share) | CPU s |")
    print("|---|---|---|---|---|---|")
    try:
        searches = {name: named(name, arguments.spaces) for name in strategies}
        for table in tables(arguments):
            for name, search in searches.items():
                runs = []
                for seed in range(arguments.seeds):
                    kept = None
                    if arguments.cache is not None:
                        text = re.sub(r"\W+", "_", f"{table.name}-{name}")
                        kept = arguments.cache / f"{text}-{seed}-{arguments.evaluations}.json"
                    if kept is not None and kept.exists():
                        runs.append(json.loads(kept.read_text()))
                    elif time.monotonic() - begin < arguments.seconds:
                        runs.append(run(table, search, seed, arguments.evaluations))
                        if kept is not None:
                            kept.parent.mkdir(parents=True, exist_ok=True)
                            kept.write_text(json.dumps(runs[-1]))
                if runs:
                    summaries[table.name, name] = Summary.of(runs)
                    print(summaries[table.name, name].line(table.name, f"{name} ×{len(runs)}"), flush=True)
    except InvalidInput as error:
        sys.exit(f"bench_search: {error}")
    for line in aggregate(summaries, strategies):
        print(line)


if __name__ == "__main__":
    main()
