"""One time budget for many workloads: each gets the seconds that are expected to save most of the model's time there.

A workload that runs `count` times a pass and takes `default_ns` untuned is expected to lose, by a search of t trials,

    s(t) = 1 - exp(-g(t))    of its time,    g(t) = EASY + HARD·t / (t + HALF_WAY)    for t >= 1

EASY: what the authors' suggestions and the winners of similar workloads reach at once; HARD: what searching adds.
Setting a workload up and deciding costs seconds besides. The sum of the savings is largest where no second could be
moved for gain, that is, where each workload's marginal saving per second is one λ (Everett, Operations Research 11(3),
1963, on Lagrange multipliers for allocation): a λ is sought by bisection at which the seconds add up to the budget.
A workload that is not worth being set up at that price gets none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

EASY, HARD, HALF_WAY = 0.56, 0.30, 16.0
"""Mean log speed-up over the sweeps of the shipped suites of convolutions, after 1 trial and from there on."""

TRIALS = (4, 6, 8, 11, 16, 22, 32, 45, 64)
"""Lengths of search that are weighed against each other."""


@dataclass(frozen=True)
class Job:
    """A workload that is to be tuned: how often the model runs it, and what a run takes untuned, in ns."""

    count: int
    default_ns: float

    @property
    def fixed_s(self) -> float:
        """Seconds for operands, references and the decision; as measured."""
        return 1.2 + min(11.0, 0.48e-6 * self.default_ns)

    @property
    def trial_s(self) -> float:
        """Seconds for building, checking and screening one config; as measured."""
        return 0.2 + 0.03e-6 * self.default_ns

    def seconds(self, trials: float) -> float:
        return self.fixed_s + self.trial_s * trials if trials else 0.0

    def saved_ns(self, trials: float) -> float:
        """What a pass of the model is expected to take less after that many trials."""
        if not trials:
            return 0.0
        return self.count * self.default_ns * -math.expm1(-EASY - HARD * trials / (trials + HALF_WAY))


def evenly(jobs: Sequence[Job], left_s: float) -> list[float]:
    """Seconds per job: the same for each."""
    return [left_s / len(jobs)] * len(jobs)


def by_gain(jobs: Sequence[Job], left_s: float) -> list[float]:
    """Seconds per job; together `left_s`, or less where nothing more is to be gained."""
    if left_s <= 0:
        return [0.0] * len(jobs)
    offers = [[(job.seconds(t), job.saved_ns(t)) for t in TRIALS] for job in jobs]
    shares = _accepted(offers, 0.0)
    if sum(shares) > left_s:
        low, high = 0.0, max(job.count * job.default_ns for job in jobs) + 1.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if sum(_accepted(offers, middle)) > left_s else (low, middle)
        shares = _accepted(offers, high)
    rest, served = left_s - sum(shares), [i for i, share in enumerate(shares) if share]
    if not served:  # less than one workload's set-up: the best one may try what it can
        best = max(range(len(jobs)), key=lambda i: jobs[i].saved_ns(1) / jobs[i].seconds(1))
        shares[best] = left_s
    for i in served:  # what λ's steps leave over
        shares[i] += rest * shares[i] / (left_s - rest)
    return shares


def _accepted(offers: Sequence[Sequence[tuple[float, float]]], price: float) -> list[float]:
    """Of each job the seconds at which savings less `price` (ns per second) times seconds are largest; 0 for a loss."""
    shares = []
    for some in offers:
        profit, seconds = max((saved - price * seconds, seconds) for seconds, saved in some)
        shares.append(seconds if profit > 0 else 0.0)
    return shares
