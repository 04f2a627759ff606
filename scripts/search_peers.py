"""Other searches on a table of recorded times: Kernel Tuner's, Optuna's TPE, and random order.

Each yields the rows it evaluates, every row once, failures included. Kernel Tuner is needed for its strategies only:
`pip install kernel-tuner` beside the project. A fresh `Searchspace` is made for every run: a reused one remembers
what was visited.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from autotune.errors import InvalidInput
from autotune.search.explorer import Row
from autotune.search.grid import ABSENT, Grid

Times = dict[Row, float | None]

KERNEL_TUNER = ("adaptive_tabu_greywolf", "hybrid_vndx", "genetic_algorithm")


def random_order(grid: Grid, times: Times, seed: int, evaluations: int) -> Iterator[Row]:
    rows = list(times)
    random.Random(seed).shuffle(rows)
    yield from rows[:evaluations]


def tpe(grid: Grid, times: Times, seed: int, evaluations: int) -> Iterator[Row]:
    """Multivariate, grouped TPE over categories. What is not in the table is told as very slow, and not counted."""
    import warnings

    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    sampler = optuna.samplers.TPESampler(multivariate=True, group=True, seed=seed)
    study = optuna.create_study(sampler=sampler)
    worst = 10 * max(time for time in times.values() if time is not None)
    seen: set[Row] = set()
    several = len(grid.branches) > 1
    for _ in range(20 * evaluations):
        trial = study.ask()
        row = [ABSENT] * grid.width
        row[0] = branch = trial.suggest_categorical("branch", list(range(len(grid.branches)))) if several else 0
        for column, axis in enumerate(grid.axes[branch], start=grid.starts[branch]):
            row[column] = int(trial.suggest_categorical(f"{branch}.{axis.name}", list(range(len(axis.values)))))
        key = tuple(row)
        time = times.get(key)
        study.tell(trial, np.log(worst if time is None else time))
        if key in times and key not in seen:
            seen.add(key)
            yield key
            if len(seen) == evaluations:
                return


def kernel_tuner(strategy: str) -> Callable[[Grid, Times, int, int], Iterator[Row]]:
    def search(grid: Grid, times: Times, seed: int, evaluations: int) -> Iterator[Row]:
        from importlib import import_module

        from kernel_tuner.interface import Options, strategy_map
        from kernel_tuner.searchspace import Searchspace
        from kernel_tuner.util import StopCriterionReached

        if len(grid.branches) > 1:
            raise InvalidInput("Kernel Tuner searches one kernel's space; this one has several algorithms")
        module: Any = strategy_map[strategy]
        module = import_module(module) if isinstance(module, str) else module
        random.seed(seed)
        np.random.seed(seed)
        names = [axis.name for axis in grid.axes[0]]
        values = {axis.name: list(range(len(axis.values))) for axis in grid.axes[0]}
        cache = {str(n): dict(zip(names, row[1:], strict=True)) for n, row in enumerate(times)}
        space = Searchspace(None, None, None, from_cache={"tune_params": values, "cache": cache})
        runner = _Table(times, evaluations)
        options = Options(
            strategy_options=Options(max_fevals=evaluations),
            objective=["time"],
            objective_higher_is_better=[False],
            verbose=False,
            budget=runner,
            tune_params=values,
            restrictions=[],
            max_fevals=evaluations,
            cache={},
        )
        try:
            module.tune(space, runner, options)
        except StopCriterionReached:
            pass
        except ZeroDivisionError:  # a strategy whose population died out
            pass
        yield from runner.seen

    return search


class _Table:
    """A runner of Kernel Tuner, and its budget, over the table. A strategy that only repeats itself is stopped."""

    def __init__(self, times: Times, evaluations: int) -> None:
        self.seen: dict[Row, None] = {}
        self.times, self.evaluations, self.calls = times, evaluations, 0

    def add_strategy_time(self, seconds: float) -> None:
        pass

    def is_done(self) -> bool:
        return len(self.seen) >= self.evaluations or self.calls > 50 * self.evaluations

    def raise_exception_if_done(self) -> None:
        from kernel_tuner.util import StopCriterionReached

        if self.is_done():
            raise StopCriterionReached("enough evaluations")

    def get_fraction_consumed(self) -> float:
        return len(self.seen) / self.evaluations

    def run(self, configs: Any, options: Any) -> list[dict[str, Any] | None]:
        from kernel_tuner.util import RuntimeFailedConfig

        results: list[dict[str, Any] | None] = []
        for config in configs:
            if self.is_done():
                results.append(None)
                continue
            self.calls += 1
            row = (0, *(int(v) for v in config))
            self.seen[row] = None
            time = self.times[row]
            found: dict[str, Any] = {"time": time} if time is not None else {}
            if time is None:
                found = {"time": RuntimeFailedConfig(), "__error__": RuntimeFailedConfig()}
            results.append(found)
        return results
