"""Which config is served: the fastest beyond doubt, ties broken the same way everywhere, else the default."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.decide import GAIN, TIE, eligible, ranked
from autotune.types import Choice, Config

DEFAULT = Config("torch")


def choice(number: int, speedup: float, low: float | None = None, error: float = 1e-7, **params: Any) -> Choice:
    config = Config("tiled", {"number": number, **params})
    interval = (speedup * 0.99 if low is None else low, speedup * 1.01)
    return Choice(config, "r1", 1000 / speedup, 1000.0, speedup, interval, error)


def default_choice() -> Choice:
    return Choice(DEFAULT, "1", 1000.0, 990.0, 0.99, (0.98, 1.01), 1e-7)


def numbers(choices: tuple[Choice, ...]) -> list[Any]:
    return [c.config.params.get("number", "default") for c in choices]


CHOICES = st.lists(
    st.tuples(st.floats(0.5, 3.0), st.integers(1, 8)), min_size=1, max_size=8, unique_by=lambda item: item[0]
).map(lambda found: [choice(i, speedup, threads=threads) for i, (speedup, threads) in enumerate(found)])


@given(CHOICES, st.randoms(use_true_random=False))
def test_c42_the_order_of_the_input_does_not_matter(choices: list[Choice], random: Any) -> None:
    shuffled = list(choices)
    random.shuffle(shuffled)
    assert ranked(shuffled) == ranked(choices)
    assert eligible(shuffled, DEFAULT, 1.0) == eligible(choices, DEFAULT, 1.0)


@given(CHOICES)
def test_ranking_drops_nothing_and_starts_with_one_of_the_fastest(choices: list[Choice]) -> None:
    order = ranked(choices)
    assert sorted(numbers(order)) == sorted(numbers(tuple(choices)))
    assert order[0].speedup >= max(c.speedup for c in choices) * (1 - TIE)


@given(st.lists(st.floats(-0.004, 0.004), min_size=4, max_size=4), st.lists(st.floats(-0.004, 0.004), min_size=4))
def test_c42_two_ranks_that_disagree_within_noise_choose_the_same(one: list[float], other: list[float]) -> None:
    def measured(noise: list[float]) -> list[Choice]:
        return [choice(i, 1.5 * (1 + shift)) for i, shift in enumerate(noise[:4])]

    assert ranked(measured(one))[0].config == ranked(measured(other))[0].config


def test_ties_go_to_fewer_threads_then_to_the_smaller_key() -> None:
    assert numbers(ranked([choice(1, 1.50, threads=8), choice(2, 1.49, threads=2), choice(3, 1.40, threads=1)])) == [
        2,
        1,
        3,
    ]
    alike = [choice(n, 1.5, threads=2) for n in range(5)]
    assert [c.config.key for c in ranked(alike)] == sorted(c.config.key for c in alike)


@pytest.mark.parametrize(
    ("speedup", "low"),
    [(0.5, 0.49), (0.99, 0.98), (1.0, 1.0), (GAIN - 0.001, 1.01), (1.05, 1.0), (1.3, 0.98), (math.nan, math.nan)],
)
def test_c43_a_config_that_is_no_certain_gain_is_not_served(speedup: float, low: float) -> None:
    assert eligible([choice(1, speedup, low)], DEFAULT, 1.0) == ()
    assert numbers(eligible([choice(1, speedup, low), default_choice()], DEFAULT, 1.0)) == ["default"]


def test_the_default_is_as_fast_as_itself_whatever_its_pairs_said() -> None:
    (served,) = eligible([default_choice()], DEFAULT, 1.0)
    assert (served.speedup, served.interval, served.baseline_ns) == (1.0, (1.0, 1.0), served.expected_ns)


def test_what_was_measured_on_a_busy_machine_is_not_served() -> None:
    assert eligible([replace(choice(1, 3.0), contended=True)], DEFAULT, 1.0) == ()


def test_a_certain_gain_is_served() -> None:
    assert numbers(eligible([choice(1, GAIN, 1.001)], DEFAULT, 1.0)) == [1]


def test_what_exceeds_the_error_budget_is_not_served() -> None:
    lossy, unknown, exact = choice(1, 3.0, error=1e-2), choice(2, 2.0, error=math.inf), choice(3, 1.5)
    assert numbers(eligible([lossy, unknown, exact], DEFAULT, 1e-6)) == [3]
    assert numbers(eligible([lossy, unknown, exact], DEFAULT, 1e-2)) == [1, 3]
    assert numbers(eligible([lossy, unknown, exact], DEFAULT, 0.0)) == []


def test_the_default_is_last_whatever_was_measured_of_it() -> None:
    choices = [default_choice(), choice(1, 1.1), choice(2, 2.0)]
    assert numbers(eligible(choices, DEFAULT, 1.0)) == [2, 1, "default"]
    assert numbers(eligible(iter(choices), DEFAULT, 1.0)) == [2, 1, "default"]


def test_nothing_decided_is_nothing_to_serve() -> None:
    assert ranked([]) == ()
    assert eligible([], DEFAULT, 1.0) == ()
