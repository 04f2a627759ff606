"""CostModelSampler in studies as people write them: conditional, failing, pruned, tiny."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import InvalidInput
from autotune.search.explorer import Explorer
from autotune.search.grid import Grid
from autotune.search.sampler import CostModelSampler
from autotune.search.stop import StopRule
from autotune.search.transfer import Prior, Source
from autotune.space import SearchSpace

Objective = Callable[[optuna.Trial], float]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(before)


def study(objective: Objective, trials: int, direction: str = "minimize", seed: int = 1) -> optuna.Study:
    made = optuna.create_study(sampler=CostModelSampler(seed=seed), direction=direction)
    made.optimize(objective, n_trials=trials, catch=(ValueError,))
    return made


def conditional(trial: optuna.Trial) -> float:
    """Best 0.1: algorithm x, rate 0.01, n 7. Algorithm y fails for one kind."""
    if trial.suggest_categorical("algorithm", ["x", "y"]) == "x":
        rate, n = trial.suggest_float("rate", 1e-4, 1, log=True), trial.suggest_int("n", 1, 32)
        return abs(math.log10(rate) + 2) + abs(n - 7) / 10 + 0.1
    if trial.suggest_categorical("kind", ["p", "q", "r"]) == "p":
        return math.nan
    return 1 + abs(trial.suggest_int("u", 1, 1000) - 333) / 100


def test_a_conditional_study_with_failures_finds_its_optimum() -> None:
    assert study(conditional, 60).best_value < 0.4


def test_it_beats_random_sampling_on_the_same_trials() -> None:
    ours = [study(conditional, 40, seed=s).best_value for s in range(3)]
    random = []
    for seed in range(3):
        made = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed))
        made.optimize(conditional, n_trials=40)
        random.append(made.best_value)
    assert sorted(ours)[1] < sorted(random)[1]


def test_same_seed_same_study() -> None:
    one, two = (study(conditional, 25) for _ in range(2))
    assert [t.params for t in one.trials] == [t.params for t in two.trials]


def test_values_of_every_distribution_are_legal() -> None:
    def objective(trial: optuna.Trial) -> float:
        a = trial.suggest_float("a", -1, 1)
        b = trial.suggest_float("b", 0, 1, step=0.25)
        c = trial.suggest_int("c", 1, 10**6, log=True)
        d = trial.suggest_int("d", 0, 4998, step=7)
        e = trial.suggest_categorical("e", [None, True, "text", 2.5])
        f = trial.suggest_categorical("f", [1, 2, 4, 8])
        assert -1 <= a <= 1
        assert b in (0, 0.25, 0.5, 0.75, 1.0)
        assert 1 <= c <= 10**6
        assert d % 7 == 0
        assert e in (None, True, "text", 2.5)
        assert f in (1, 2, 4, 8)
        return (a - 0.5) ** 2 + b + abs(math.log10(c) - 3) + d / 5000 + (e != "text") + abs(f - 4) / 4

    made = study(objective, 70)
    assert made.best_value < 1.0
    assert len({tuple(t.params.values()) for t in made.trials}) > 60


def test_maximising_negative_values() -> None:
    assert study(lambda t: -abs(t.suggest_int("n", 0, 200) - 150), 30, "maximize").best_value >= -3


def test_pruned_and_failed_trials_are_learnt_from() -> None:
    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_int("x", 0, 50)
        trial.report(1 + x, step=0)
        if x > 25:
            raise optuna.TrialPruned
        if x % 2:
            raise ValueError("odd")
        return 1 + x

    made = study(objective, 30)
    assert made.best_value == 1
    assert {t.state.name for t in made.trials} == {"COMPLETE", "FAIL", "PRUNED"}


@pytest.mark.parametrize("value", [math.nan, math.inf, 1.0])
def test_a_space_of_one_value_or_objectives_that_say_nothing(value: float) -> None:
    def objective(trial: optuna.Trial) -> float:
        trial.suggest_categorical("only", ["one"])
        trial.suggest_float("fixed", 2.0, 2.0)
        trial.suggest_int("n", 1, 2)
        return value

    assert len(study(objective, 12).trials) == 12


def test_no_parameters_at_all() -> None:
    assert len(study(lambda trial: 1.0, 4).trials) == 4


def test_several_objectives_are_refused() -> None:
    made = optuna.create_study(sampler=CostModelSampler(), directions=["minimize", "minimize"])
    with pytest.raises(InvalidInput, match="one objective"):
        made.optimize(lambda t: (t.suggest_int("x", 0, 9), 1.0), n_trials=3)


def test_enqueued_trials_and_a_range_that_changes() -> None:
    made = optuna.create_study(sampler=CostModelSampler(seed=2))
    made.enqueue_trial({"x": 40})
    made.optimize(lambda t: 1 + abs(t.suggest_int("x", 0, 100) - 42), n_trials=12)
    made.optimize(lambda t: 1 + abs(t.suggest_int("x", 0, 200) - 142), n_trials=12)
    assert made.trials[0].params == {"x": 40}
    assert len(made.trials) == 24


def test_the_stop_rule_ends_a_study() -> None:
    made = optuna.create_study(sampler=(sampler := CostModelSampler(seed=1)))
    made.optimize(
        lambda t: 1 + abs(t.suggest_int("x", 0, 63) - 10) / 10 + 0 * t.suggest_int("y", 0, 63),
        n_trials=300,
        callbacks=[sampler.stopping(StopRule(gain=0.01))],
    )
    assert made.best_value < 1.15
    assert len(made.trials) < 200


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (StopRule(trials=5), "5 trials"),
        (StopRule(seconds=2), "2 seconds"),
        (StopRule(gain=0.01, patience=3), "less than 1.0%"),
        (StopRule(gain=0.0001), ""),
    ],
)
def test_stop_rules(rule: StopRule, reason: str) -> None:
    found = rule.reason(5, 3.0, [math.inf, 0.5, *[0.001] * 7, 0.001])
    assert reason in found
    assert bool(found) == bool(reason)


# The core, on odd spaces


def explore(
    space: SearchSpace, value: Callable[[dict[str, object]], float | None], trials: int
) -> list[tuple[int, ...]]:
    explorer = Explorer(grid := Grid({"kernel": space}), seed=1)
    rows: list[tuple[int, ...]] = []
    while len(rows) < trials and (asked := explorer.ask(1)):
        rows += asked
        explorer.tell(asked[0], value(grid.params(asked[0])[1]))
    return rows


VALUES = st.lists(
    st.one_of(st.integers(-3, 3), st.booleans(), st.text("ab", max_size=2), st.tuples(st.integers(0, 2))),
    min_size=1,
    max_size=4,
    unique_by=repr,
)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(data=st.data())
def test_every_valid_config_of_an_odd_space_is_found_once(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from("pqr"), unique=True))
    space = SearchSpace(
        {name: tuple(data.draw(VALUES)) for name in names}, (lambda p: len(repr(sorted(p.items()))) % 3 != 0,)
    )
    values = data.draw(st.lists(st.sampled_from([None, math.nan, -math.inf, 0.0, 1.5, -2.0]), min_size=1))
    rows = explore(space, lambda p: values[len(repr(p)) % len(values)], 100)
    assert len(rows) == len(set(rows)) == len(list(space))


def test_a_space_too_large_to_enumerate_is_searched_validly() -> None:
    space = SearchSpace(
        {f"p{i}": tuple(range(8)) for i in range(7)},
        (lambda p: sum(v for v in p.values() if isinstance(v, int)) % 3 == 0,),
    )
    assert space.size > 10**6
    assert Grid({"kernel": space}).rows is None

    def value(params: dict[str, object]) -> float:
        return sum(abs(int(str(v)) - 5) for v in params.values()) / 10

    rows = explore(space, value, 60)
    assert len(set(rows)) == 60
    assert all(sum(row[1:]) % 3 == 0 for row in rows)
    assert min(sum(abs(v - 5) for v in row[1:]) for row in rows) <= 5


def test_a_source_weighs_as_much_as_it_ranks_what_is_measured_here() -> None:
    grid = Grid({"kernel": SearchSpace({"a": tuple(range(8)), "b": tuple(range(8))})})
    rows = grid.sample(64)
    value = {tuple(row): float((row[1] - 2) ** 2 + row[2]) for row in rows.tolist()}
    right = Source(value)
    opposite = Source({row: -v for row, v in value.items()})
    too_few = Source(dict(list(value.items())[:3]))
    prior = Prior(grid, [right, opposite, too_few])
    assert prior.weights == [1.0, 1.0]
    prior.judge(rows[:4], np.asarray([value[tuple(row)] for row in rows[:4].tolist()]))
    assert prior.weights == [1.0, 1.0], "too little is known to judge"
    prior.judge(rows[:20], np.asarray([value[tuple(row)] for row in rows[:20].tolist()]))
    assert prior.weights[0] > 0.9
    assert prior.weights[1] == 0.0
    alone = Prior(grid, [opposite])
    assert value[tuple(alone.best(1)[0].tolist())] == max(value.values())
    alone.judge(rows[:20], np.asarray([value[tuple(row)] for row in rows[:20].tolist()]))
    assert not alone
    assert not Prior(grid, [])


def test_a_large_space_without_valid_configs_ends() -> None:
    space = SearchSpace({f"p{i}": tuple(range(8)) for i in range(7)}, (lambda p: False,))
    assert explore(space, lambda p: 0.0, 5) == []
