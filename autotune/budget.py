"""One time budget for many workloads: the next slice goes where it is expected to save most of the model's time.

A second spent on a workload is worth count × time × expected gain of searching it a second longer. The gain is that
of a learning curve, log speed-up = A·t/(t + B) after t trials, averaged with what the last trials of this very
workload gained: a search that keeps finding something is continued, one that has stalled yields to others. Pure
functions of what is known; whoever runs the jobs holds the state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

USUAL_GAIN = 0.5
"""A: log speed-up that long searches reach, over the sweeps of README.md."""

HALF_WAY = 16
"""B: trials after which half of it is usually reached."""

RECENT = 12
"""Trials over which a workload's own progress is measured."""

SECONDS_PER_TRIAL = 0.5
"""Assumed until a workload's own trials tell."""


@dataclass(frozen=True)
class Progress:
    """What is known of one workload's search.

    `count`: how often the model runs it. `default_ns`: what a run takes untuned, 0 where not known yet. `bests`: the
    best speed-up (at least 1) after each trial so far. `spent_s`: seconds those trials took. `exhausted`: nothing is
    left to try.
    """

    count: int
    default_ns: float
    bests: tuple[float, ...] = ()
    spent_s: float = 0.0
    exhausted: bool = False

    @property
    def trials(self) -> int:
        return len(self.bests)

    @property
    def best(self) -> float:
        return max(1.0, self.bests[-1]) if self.bests else 1.0

    @property
    def share_ns(self) -> float:
        """What the model spends in this workload now, each pass."""
        return self.count * self.default_ns / self.best

    @property
    def seconds_per_trial(self) -> float:
        return self.spent_s / self.trials if self.trials and self.spent_s > 0 else SECONDS_PER_TRIAL


def expected_gain(progress: Progress) -> float:
    """Log speed-up that the next trial is expected to add."""
    if progress.exhausted:
        return 0.0
    trials = progress.trials
    usual = USUAL_GAIN * HALF_WAY / (trials + HALF_WAY) ** 2
    if trials < RECENT:
        return usual
    before = max(1.0, progress.bests[-RECENT - 1]) if trials > RECENT else 1.0
    own = max(0.0, math.log(progress.best / before)) / RECENT
    return (usual + own) / 2


def worth(progress: Progress) -> float:
    """Nanoseconds per pass of the model that a second of searching is expected to save."""
    return progress.share_ns * expected_gain(progress) / progress.seconds_per_trial


def next_job(jobs: Sequence[Progress]) -> int | None:
    """Which job gets the next slice: first one whose time is not known yet, then the one that is worth most.

    None where nothing is left to gain. Ties go to the first, so the order is reproducible.
    """
    for index, job in enumerate(jobs):
        if job.default_ns <= 0 and not job.exhausted:
            return index
    best = max(range(len(jobs)), key=lambda index: worth(jobs[index]), default=None)
    return best if best is not None and worth(jobs[best]) > 0 else None


def slice_s(jobs: Sequence[Progress], chosen: int, left_s: float, batch: int) -> float:
    """Seconds for the next slice: two batches, or more where few slices fit, never more than is left.

    Slices are short, so that a search that stalls is left soon, and not shorter than a batch, which is never
    broken off.
    """
    return max(0.0, min(left_s, 2 * batch * jobs[chosen].seconds_per_trial))
