"""Optuna's multivariate, grouped TPE over a conditional space: the algorithm first, then its parameters.

Seeds are tried and small algorithms walked whole before the sampler is asked: choosing the algorithm matters
more than any tile size. The study lives in memory (ask/tell); results live in our own store. TPE proposes
configs again and invalid ones, so proposals are checked and memoised here; when it is out of new ideas, a
random valid config is taken. (TPE: Bergstra et al., NeurIPS 2011; multivariate: Falkner et al., ICML 2018.)
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from autotune.canonical import canonical_json
from autotune.search import Candidates, Outcome, Strategy
from autotune.types import Config, ParamValue

if TYPE_CHECKING:
    import optuna

PROPOSALS = 30
"""Proposals of the sampler per new config, before a random one is taken."""

TOLD_AT_MOST = 300
"""Known results given to the sampler: after some thousands, asking takes longer than measuring."""

WORTHLESS = 0.0
"""Told to the sampler for configs that fail or are invalid: slower than anything."""


class Tpe(Strategy):
    def __init__(self, candidates: Candidates, seeds: Sequence[Config] = (), seed: int = 0) -> None:
        """`seeds`: configs to try first, e.g. winners of nearby workloads; those outside the space are left out."""
        self._candidates = candidates
        self._random = Random(seed)
        self._seed = seed
        self._first = deque(dict.fromkeys(candidates.first(seeds)))
        self._outcomes: dict[Config, float] = {}
        self._asked: set[Config] = {candidates.default}
        self._study: optuna.Study | None = None
        self._large = list(candidates.large)

    def planned(self) -> int:
        return len(self._first)

    def ask(self, count: int) -> list[Config]:
        batch: list[Config] = []
        while len(batch) < count:
            config = self._first.popleft() if self._first else self._propose()
            if config is None:
                break
            if config not in self._asked:
                self._asked.add(config)
                batch.append(config)
        return batch

    def tell(self, outcome: Outcome) -> None:
        value = WORTHLESS if outcome.speedup is None else outcome.speedup
        self._asked.add(outcome.config)
        self._outcomes[outcome.config] = value
        if self._study is not None:
            self._add(self._study, outcome.config, value)

    def _propose(self) -> Config | None:
        if not self._large:
            return None
        study = self._study = self._study or self._new_study()
        for _ in range(PROPOSALS):
            trial = study.ask()
            config = self._suggest(trial)
            if config is None:
                study.tell(trial, WORTHLESS)  # invalid: learnt like a failure, so that it is not proposed again
            elif config in self._asked:
                study.tell(trial, self._outcomes.get(config, WORTHLESS))
            else:
                study.tell(trial, state=_pruned())  # its outcome comes later, through `tell`
                return config
        return self._random_config()

    def _suggest(self, trial: optuna.Trial) -> Config | None:
        algorithm = self._large[0]
        if len(self._large) > 1:
            algorithm = str(trial.suggest_categorical("algorithm", self._large))
        space = self._candidates.spaces[algorithm]
        params: dict[str, ParamValue] = {}
        for name, values in space.parameters.items():
            choice = trial.suggest_categorical(f"{algorithm}.{name}", [_text(value) for value in values])
            params[name] = _value(str(choice), values)
        return self._candidates.config(algorithm, params) if space.valid(params) else None

    def _random_config(self) -> Config | None:
        for _ in range(100):
            algorithm = self._random.choice(self._large)
            params = self._candidates.spaces[algorithm].sample(self._random)
            if params is not None and (config := self._candidates.config(algorithm, params)) not in self._asked:
                return config
        return None

    def _new_study(self) -> optuna.Study:
        import warnings

        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(
                multivariate=True, group=True, n_startup_trials=0, seed=self._seed, constant_liar=False
            )
        study = optuna.create_study(direction="maximize", sampler=sampler)
        best_first = sorted(self._outcomes.items(), key=lambda item: -item[1])[:TOLD_AT_MOST]
        for config, value in best_first:
            self._add(study, config, value)
        return study

    def _add(self, study: optuna.Study, config: Config, value: float) -> None:
        import optuna

        space = self._candidates.spaces.get(config.algorithm)
        if config.algorithm not in self._large or space is None or not space.contains(config.params):
            return
        params: dict[str, str] = {}
        distributions: dict[str, optuna.distributions.BaseDistribution] = {}
        if len(self._large) > 1:
            params["algorithm"] = config.algorithm
            distributions["algorithm"] = optuna.distributions.CategoricalDistribution(self._large)
        for name, values in space.parameters.items():
            key = f"{config.algorithm}.{name}"
            params[key] = _text(config.params[name])
            distributions[key] = optuna.distributions.CategoricalDistribution([_text(v) for v in values])
        study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=value))


def _text(value: ParamValue) -> str:
    """Optuna's categories as canonical JSON: tuples are values like any other."""
    return canonical_json(value)


def _value(text: str, values: tuple[ParamValue, ...]) -> ParamValue:
    wanted = json.loads(text)
    return next(value for value in values if canonical_json(value) == canonical_json(wanted))


def _pruned() -> optuna.trial.TrialState:
    import optuna

    return optuna.trial.TrialState.FAIL
