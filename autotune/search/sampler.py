"""CostModelSampler: the surrogate search as a sampler for any single-objective Optuna study.

    study = optuna.create_study(sampler=CostModelSampler(seed=1))

A define-by-run space is learnt from its trials: each set of parameters that trials had together is a branch, and a
categorical parameter whose values never occur in two branches decides between them. Floats and long integer ranges
are searched on 65 levels and jittered between them. Failed trials and NaN are failures; a pruned trial counts
with its last intermediate value. What the search cannot know yet is drawn at random, or near good trials. Minimised
objectives that are all positive are searched as logarithms: times are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from autotune.errors import InvalidInput
from autotune.search.explorer import Explorer, Habits, Row
from autotune.search.grid import Grid
from autotune.search.stop import StopRule
from autotune.space import SearchSpace

LEVELS = 65
"""Levels of a float, or of an integer with more than LEVELS_OF_INTEGERS values."""

LEVELS_OF_INTEGERS = 257

EXPLORED = 0.3
"""Share of independent suggestions drawn at random; the others lie near a good trial's value."""

Signature = tuple[str, ...]
Space = dict[str, BaseDistribution]


@dataclass
class _Search:
    """The search of one study, until its space changes."""

    branches: dict[Signature, Space]
    grid: Grid
    explorer: Explorer
    told: set[int] = field(default_factory=set)
    logarithmic: bool | None = None


class CostModelSampler(BaseSampler):
    """`seed`: same seed, same study. `n_startup_trials`: random ones, which also discover conditional branches."""

    def __init__(self, seed: int | None = None, n_startup_trials: int = 1, habits: Habits | None = None) -> None:
        self._seed = int(np.random.default_rng(seed).integers(1 << 30))
        self._random = np.random.default_rng(self._seed)
        self._independent = RandomSampler(seed=self._seed)
        self._startup = max(1, n_startup_trials)
        self._habits = habits
        self._searches: dict[str, _Search] = {}

    def reseed_rng(self) -> None:
        self._seed = int(np.random.default_rng().integers(1 << 30))
        self._random = np.random.default_rng(self._seed)
        self._independent.reseed_rng()
        self._searches.clear()

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> Space:
        if len(study.directions) > 1:
            raise InvalidInput("CostModelSampler searches for one objective; this study has several")
        trials = [t for t in study.get_trials(deepcopy=False) if t.state.is_finished() and t.params]
        if len(trials) < self._startup:
            return {}
        branches: dict[Signature, Space] = {}
        for known in trials:  # the last trial's distribution counts: ranges may change
            branches[tuple(sorted(known.params))] = dict(known.distributions)
        search = self._searches.get(study.study_name)
        if search is None or search.branches != branches:
            self._searches[study.study_name] = self._search(branches, trials)
        return {name: d for space in branches.values() for name, d in space.items()}

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: Space) -> dict[str, Any]:
        search = self._searches.get(study.study_name)
        if not search_space or search is None:
            return {}
        self._tell(search, study)
        asked = search.explorer.ask(1)
        if not asked:
            return {}  # every combination was tried
        branch, params = search.grid.params(asked[0])
        space = search.branches[tuple(branch.split("\n"))]
        return {name: self._value(space[name], params[name]) for name in params}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        alike = [
            t
            for t in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
            if t.distributions.get(param_name) == param_distribution and t.values and math.isfinite(t.values[0])
        ]
        if len(alike) < 4 or self._random.random() < EXPLORED:
            return self._independent.sample_independent(study, trial, param_name, param_distribution)
        sign = -1 if study.direction is StudyDirection.MAXIMIZE else 1
        alike.sort(key=lambda t: sign * t.values[0])
        good = alike[: max(1, len(alike) // 4)]
        return good[int(self._random.integers(len(good)))].params[param_name]

    def stopping(self, rule: StopRule) -> Callable[[Study, FrozenTrial], None]:
        """A callback for `study.optimize` that ends it by the rule: budgets, or too little gain to be expected."""
        begin = time.monotonic()
        expected: list[float] = []

        def after(study: Study, trial: FrozenTrial) -> None:
            search = self._searches.get(study.study_name)
            logarithmic = search is not None and search.logarithmic
            expected.append(search.explorer.expected_gain if search is not None and logarithmic else math.inf)
            if rule.reason(trial.number + 1, time.monotonic() - begin, expected):
                study.stop()

        return after

    # Between trials and rows

    def _search(self, branches: dict[Signature, Space], trials: Sequence[FrozenTrial]) -> _Search:
        spaces = {}
        for signature, space in branches.items():
            levels = {name: _levels(space[name]) for name in signature}
            for name in signature:
                values = _seen(trials, signature, name)
                others = [_seen(trials, other, name) for other in branches if other != signature and name in other]
                if others and isinstance(space[name], CategoricalDistribution) and not values & set().union(*others):
                    levels[name] = tuple(level for level in levels[name] if level in values)
            spaces["\n".join(signature)] = SearchSpace(levels)
        grid = Grid(spaces, self._seed)
        return _Search(branches, grid, Explorer(grid, self._seed, self._habits))

    def _tell(self, search: _Search, study: Study) -> None:
        sign = -1.0 if study.direction is StudyDirection.MAXIMIZE else 1.0
        trials = study.get_trials(deepcopy=False)
        values = {t.number: _objective(t, sign) for t in trials if t.state.is_finished()}
        logarithmic = sign > 0 and all(value > 0 for value in values.values() if value is not None)
        if search.logarithmic is not None and search.logarithmic != logarithmic:
            search.told.clear()
        search.logarithmic = logarithmic
        for known in trials:
            if known.number in search.told or known.number not in values:
                continue
            search.told.add(known.number)
            row = _row(search, known)
            if row is not None:
                value = values[known.number]
                search.explorer.tell(row, math.log(value) if value is not None and logarithmic else value)

    def _value(self, distribution: BaseDistribution, level: Any) -> Any:
        """A value of the distribution at or near a level."""
        if isinstance(distribution, CategoricalDistribution):
            return level if _numeric(distribution) else distribution.choices[int(level)]
        if isinstance(distribution, FloatDistribution) and distribution.step is None:
            low, high = _ends(distribution)
            cell = (high - low) / (LEVELS - 1)
            at = (math.log(level) if distribution.log else level) + cell * self._random.uniform(-0.5, 0.5)
            value = math.exp(at) if distribution.log else at
            return min(max(value, distribution.low), distribution.high)
        return level


def _objective(trial: FrozenTrial, sign: float) -> float | None:
    """To be minimised; None for a failure."""
    value = trial.values[0] if trial.state is TrialState.COMPLETE and trial.values else None
    if trial.state is TrialState.PRUNED and trial.intermediate_values:
        value = trial.intermediate_values[max(trial.intermediate_values)]
    return sign * value if value is not None and math.isfinite(value) else None


def _seen(trials: Sequence[FrozenTrial], signature: Signature, name: str) -> set[Any]:
    found = set()
    for trial in trials:
        distribution = trial.distributions.get(name)
        if isinstance(distribution, CategoricalDistribution) and tuple(sorted(trial.params)) == signature:
            found.add(_nearest(distribution, trial.params[name]))
    return found


def _row(search: _Search, trial: FrozenTrial) -> Row | None:
    signature = tuple(sorted(trial.params))
    space: Mapping[str, BaseDistribution] | None = search.branches.get(signature)
    if space is None or any(trial.distributions[name] != space[name] for name in signature):
        return None
    params = {name: _nearest(space[name], trial.params[name]) for name in signature}
    return search.grid.row("\n".join(signature), params)


def _levels(distribution: BaseDistribution) -> tuple[Any, ...]:
    """The values searched: numbers as they are, other categories by their index as text, since they have no order."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices if _numeric(distribution) else tuple(map(str, range(len(distribution.choices))))
    if isinstance(distribution, IntDistribution):
        count = (distribution.high - distribution.low) // distribution.step + 1
        if count <= LEVELS_OF_INTEGERS:
            return tuple(distribution.low + i * distribution.step for i in range(count))
        steps = {round((math.exp(at) if distribution.log else at) - distribution.low) for at in _spaced(distribution)}
        return tuple(
            sorted(
                {min(distribution.high, distribution.low + s // distribution.step * distribution.step) for s in steps}
            )
        )
    assert isinstance(distribution, FloatDistribution)
    if distribution.single():
        return (distribution.low,)
    if distribution.step is not None:
        count = round((distribution.high - distribution.low) / distribution.step) + 1
        chosen = sorted({round(i) for i in np.linspace(0, count - 1, min(count, LEVELS_OF_INTEGERS))})
        return tuple(distribution.low + i * distribution.step for i in chosen)
    return tuple(math.exp(at) if distribution.log else float(at) for at in _spaced(distribution))


def _numeric(distribution: CategoricalDistribution) -> bool:
    choices = distribution.choices
    numbers = [c for c in choices if isinstance(c, (int, float)) and not isinstance(c, bool) and math.isfinite(c)]
    return len(numbers) == len(choices) and numbers == sorted(numbers)


def _ends(distribution: FloatDistribution | IntDistribution) -> tuple[float, float]:
    if distribution.log:
        return math.log(distribution.low), math.log(distribution.high)
    return float(distribution.low), float(distribution.high)


def _spaced(distribution: FloatDistribution | IntDistribution) -> list[float]:
    return [float(at) for at in np.linspace(*_ends(distribution), LEVELS)]


def _nearest(distribution: BaseDistribution, value: Any) -> Any:
    if isinstance(distribution, CategoricalDistribution):
        index = int(distribution.to_internal_repr(value))
        return distribution.choices[index] if _numeric(distribution) else str(index)
    levels = np.asarray(_levels(distribution))
    gaps = np.abs(np.log(levels / value)) if getattr(distribution, "log", False) else np.abs(levels - value)
    level = levels[int(gaps.argmin())]
    return int(level) if isinstance(distribution, IntDistribution) else float(level)
