"""Sharing a time budget among the workloads of a model."""

from __future__ import annotations

import math
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.budget import TRIALS, Job, by_gain, evenly

jobs_of_any_kind = st.lists(st.builds(Job, st.integers(1, 48), st.floats(1e3, 1e8)), min_size=1, max_size=12)


def trials(job: Job, seconds: float) -> float:
    return max(0.0, (seconds - job.fixed_s) / job.trial_s)


def saved(jobs: list[Job], shares: list[float]) -> float:
    return sum(job.saved_ns(min(trials(job, s), TRIALS[-1])) for job, s in zip(jobs, shares, strict=True))


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(jobs_of_any_kind, st.floats(0.1, 1000))
def test_shares_are_the_budget_at_most_and_never_worse_than_even_ones(jobs: list[Job], left_s: float) -> None:
    shares = by_gain(jobs, left_s)
    assert all(share >= 0 for share in shares)
    assert sum(shares) <= left_s * (1 + 1e-9)
    assert any(shares)
    even = [s if trials(j, s) >= TRIALS[0] else 0.0 for j, s in zip(jobs, evenly(jobs, left_s), strict=True)]
    # λ's steps: where one workload more or less is set up, a little of the budget is shared out proportionally
    assert saved(jobs, shares) >= 0.97 * saved(jobs, even)


def test_what_dominates_the_model_gets_most() -> None:
    jobs = [Job(1, 50e6), *[Job(1, 1e6)] * 9]
    shares = by_gain(jobs, 30.0)
    assert shares[0] > 5 * shares[1]
    assert saved(jobs, shares) > 1.2 * saved(jobs, evenly(jobs, 30.0))


def test_what_runs_often_counts_as_often() -> None:
    rare, often = by_gain([Job(1, 2e6), Job(16, 2e6)], 12.0)
    assert often > 1.5 * rare


def test_what_is_not_worth_its_set_up_gets_nothing() -> None:
    assert by_gain([Job(1, 20e6), Job(1, 1e3)], 20.0)[1] == 0.0


def test_with_time_enough_everything_is_searched_to_the_end_or_beyond() -> None:
    jobs = [Job(1, 1e6), Job(2, 3e6)]
    assert all(trials(job, share) >= TRIALS[-1] - 1 for job, share in zip(jobs, by_gain(jobs, 1e4), strict=True))


def test_a_budget_below_any_set_up_goes_to_one() -> None:
    shares = by_gain([Job(1, 1e6), Job(9, 1e6)], 0.5)
    assert shares == [0.0, 0.5]
    assert by_gain([Job(1, 1e6)], 0.0) == by_gain([Job(1, 1e6)], -3.0) == [0.0]


@pytest.mark.parametrize("left_s", [4.0, 8.0, 15.0, 30.0, 60.0])
def test_no_other_lengths_of_search_save_more(left_s: float) -> None:
    jobs = [Job(3, 4e6), Job(7, 2e6), Job(1, 9e6)]
    ways = product((0, *TRIALS), repeat=len(jobs))
    best = max(
        sum(job.saved_ns(t) for job, t in zip(jobs, way, strict=True))
        for way in ways
        if sum(job.seconds(t) for job, t in zip(jobs, way, strict=True)) <= left_s
    )
    assert saved(jobs, by_gain(jobs, left_s)) >= 0.97 * best


def test_hundreds_of_jobs_are_dealt_with_at_once() -> None:
    jobs = [Job(1 + n % 7, 1e5 * (1 + n % 50)) for n in range(400)]
    shares = by_gain(jobs, 600.0)
    assert sum(shares) == pytest.approx(600.0)
    assert 0 < sum(share > 0 for share in shares) < 400


def test_savings_grow_and_flatten() -> None:
    after = [Job(1, 1e6).saved_ns(t) for t in (1, 2, 4, 8, 16, 32, 64)]
    steps = [b - a for a, b in pairwise(after)]
    assert all(step > 0 for step in steps)
    assert after[-1] < 1e6 * (1 - math.exp(-0.9))
