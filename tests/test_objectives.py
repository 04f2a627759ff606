"""What boosters learn of candidates that compete: gradients are those of the losses, pairs stay within groups."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.cost.objectives import ENSEMBLE, EXPECTED, Objective, boosted, pairs, united
from autotune.errors import InvalidInput

GROUP = np.array([0, 0, 0, 1, 1, 2])
COST = np.array([0.0, 0.5, 2.0, 1.0, 0.0, 0.0])
SCORE = np.array([0.3, -0.2, 0.1, 0.7, 0.4, 1.5], np.float32)


def pairwise_loss(score: np.ndarray, power: float, weight: np.ndarray) -> float:
    """RankNet's loss, term by term; weights are scaled so that they sum to one per row."""
    terms, weights = [], []
    for i in range(len(COST)):
        for j in range(len(COST)):
            if GROUP[i] == GROUP[j] and COST[i] < COST[j]:
                w = (COST[j] - COST[i]) ** power * weight[i]
                terms.append(w * np.log1p(np.exp(score[i] - score[j])))
                weights.append(w)
    return float(np.sum(terms) * len(COST) / np.sum(weights))


def expected_loss(score: np.ndarray, sharpness: float, weight: np.ndarray) -> float:
    return listwise_loss(score, sharpness, weight, EXPECTED)


def listwise_loss(score: np.ndarray, sharpness: float, weight: np.ndarray, regret: float = 0.0) -> float:
    total = 0.0
    for group in range(3):
        mine = group == GROUP
        wanted = np.exp(-sharpness * COST[mine]) / np.exp(-sharpness * COST[mine]).sum()
        told = np.exp(-score[mine]) / np.exp(-score[mine]).sum()
        total -= float((weight[mine] * wanted * np.log(told)).sum())
        total += regret * float(weight[mine][0] * (told * COST[mine]).sum())
    return total


@pytest.mark.parametrize("weight", [np.ones(6), np.array([3.0, 3.0, 3.0, 1.0, 1.0, 1.0])])
@pytest.mark.parametrize(
    ("kind", "power"), [("pairwise", 0.5), ("pairwise", 1.0), ("listwise", 1.0), ("expected", 3.0)]
)
def test_a_gradient_is_that_of_the_loss(kind: str, power: float, weight: np.ndarray) -> None:
    loss = {"pairwise": pairwise_loss, "listwise": listwise_loss, "expected": expected_loss}[kind]
    gradient, hessian = Objective(kind, power).custom(COST, GROUP, weight=weight)(SCORE, None)
    for row in range(len(SCORE)):
        step = np.zeros(len(SCORE))
        step[row] = 1e-4
        slope = (loss(SCORE + step, power, weight) - loss(SCORE - step, power, weight)) / 2e-4
        assert gradient[row] == pytest.approx(slope, abs=1e-6)
    assert (hessian > 0).all()


def test_pairs_are_all_of_small_groups_and_a_few_of_large_ones() -> None:
    group = np.repeat(np.arange(3), [4, 1, 100])
    one, other = pairs(group)
    assert (group[one] == group[other]).all()
    assert (one != other).all()
    small = {(int(a), int(b)) for a, b in zip(one, other, strict=True) if group[a] == 0}
    assert small == {(a, b) for a in range(4) for b in range(a + 1, 4)}
    assert 600 < int((group[one] == 2).sum()) <= 800
    assert all((a == b).all() for a, b in zip(pairs(group, 1), pairs(group, 1), strict=True))


def test_labels_of_regressions() -> None:
    assert Objective("squared").target(COST) == (COST, None)
    label, weight = Objective("root").target(COST)
    assert label.tolist() == np.sqrt(COST).tolist()
    assert weight is None
    label, weight = Objective("share").target(COST)
    assert label[0] == 0
    assert weight is not None
    assert weight[0] > weight[1] > weight[2]
    label, weight = Objective("regret", 2.0).target(COST)
    assert weight is not None
    assert weight[1] == pytest.approx(np.exp(-1.0))


def test_scores_of_members_count_alike_whatever_their_units() -> None:
    small, large = np.array([0.0, 1.0, 2.0]), np.array([2000.0, 1000.0, 500.0])
    group = np.zeros(3, int)
    assert np.argmin(united([small, small, large], group)) == 0
    assert np.argmin(united([small, large, large], group)) == 2
    assert united([small + 5], group) == pytest.approx(united([small], group))


def sample() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """200 groups of four candidates: the fastest is the one whose kind fits the group."""
    random = np.random.default_rng(0)
    group = np.repeat(np.arange(200), 4)
    kind = np.tile(np.arange(4.0), 200)
    wanted = random.integers(0, 4, 200)[group]
    cost = np.abs(kind - wanted) * 0.3
    return np.stack([kind, wanted], axis=1).astype(np.float32), cost, group


@pytest.mark.parametrize("objective", [*ENSEMBLE, Objective("squared"), Objective("regret", 2.0)], ids=str)
def test_every_objective_learns_who_is_fastest(objective: Objective) -> None:
    x, cost, group = sample()
    params = {"max_depth": 4, "eta": 0.3, "nthread": 1}
    booster = boosted(x, cost, group, objective, params, 30)
    score = booster.inplace_predict(x).reshape(200, 4)
    assert (cost.reshape(200, 4)[np.arange(200), score.argmin(axis=1)] == 0).mean() > 0.95
    again = boosted(x, cost, group, objective, params, 30)
    assert bytes(again.save_raw("ubj")) == bytes(booster.save_raw("ubj"))


def test_weights_reach_every_objective() -> None:
    """Rows of weight zero teach nothing."""
    x, cost, group = sample()
    wrong = np.where(group < 100, 1.0 - cost, cost)
    weight = (group >= 100).astype(float) + 1e-9
    for objective in (Objective("listwise", 3.0), Objective("pairwise"), Objective("root")):
        booster = boosted(
            x, np.maximum(wrong, 0), group, objective, {"max_depth": 4, "eta": 0.3, "nthread": 1}, 30, weight
        )
        score = booster.inplace_predict(x).reshape(200, 4)
        assert (cost.reshape(200, 4)[np.arange(200), score.argmin(axis=1)] == 0).mean() > 0.95


def test_an_objective_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match="one of squared"):
        Objective("magic")
    with pytest.raises(InvalidInput, match="power"):
        Objective("pairwise", float("nan"))
    with pytest.raises(InvalidInput, match="regression"):
        Objective("squared").custom(COST, GROUP)
