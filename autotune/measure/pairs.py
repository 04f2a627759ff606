"""Timing in adjacent pairs: each sample of the candidate stands next to one of the default, in random order."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from autotune import stats
from autotune.types import BenchmarkSpec, Stage

GIVE_UP_PAIRS = 3
DECIDE_PAIRS = 10
"""A decision takes at least this many pairs, whatever they cost."""


@dataclass(frozen=True)
class PairedTimes:
    """ns per call; `candidate[i]` and `baseline[i]` are neighbours."""

    candidate: tuple[int, ...]
    baseline: tuple[int, ...]


def sample_ns(call: Callable[[], object], repeats: int) -> int:
    """Wall time of one sample, in ns per call."""
    begin = time.perf_counter_ns()
    for _ in range(repeats):
        call()
    return max(1, (time.perf_counter_ns() - begin) // repeats)


Sampler = Callable[[Callable[[], object], int], int]
"""Takes a call and how often to make it; returns ns per call."""


def repeats_for(call: Callable[[], object], min_sample_ns: int, sample: Sampler = sample_ns) -> int:
    """How often to call so that one sample lasts that long; warms up on the way."""
    once = min(sample(call, 1) for _ in range(3))
    if once * 4 < min_sample_ns:  # short calls are measured again in bulk: the clock's own cost shows in one
        once = sample(call, max(1, min_sample_ns // (4 * once)))
    return max(1, -(-min_sample_ns // once))


def time_pairs(
    candidate: Callable[[], object],
    baseline: Callable[[], object],
    spec: BenchmarkSpec,
    stage: Stage,
    seed: int,
    sample: Sampler = sample_ns,
) -> PairedTimes:
    """Pairs until the stage has what it needs. `sample` is how the device is timed.

    A screening takes `screen_pairs`, and stops after 3 when all of them are hopeless. A decision takes
    `final_pairs`, and goes on to `max_final_pairs` while the bootstrap interval of the ratio contains 1.
    Both stop early when their time budget is spent.
    """
    random = Random(seed)
    screening = stage is Stage.SCREEN
    wanted = spec.screen_pairs if screening else spec.final_pairs
    least = GIVE_UP_PAIRS if screening else DECIDE_PAIRS
    budget_ns = (spec.screen_budget_s if screening else spec.final_budget_s) * 1e9
    repeats = tuple(repeats_for(call, spec.min_sample_ns, sample) for call in (candidate, baseline))
    times: list[int] = []
    base: list[int] = []
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    begin = time.perf_counter_ns()
    try:
        while len(times) < wanted:
            if random.random() < 0.5:
                times.append(sample(candidate, repeats[0]))
                base.append(sample(baseline, repeats[1]))
            else:
                base.append(sample(baseline, repeats[1]))
                times.append(sample(candidate, repeats[0]))
            if len(times) < least:
                continue
            if time.perf_counter_ns() - begin > budget_ns:
                break
            if screening and len(times) == GIVE_UP_PAIRS and _hopeless(times, base, spec.give_up_ratio):
                break
            if len(times) == wanted < spec.max_final_pairs and not screening:
                low, high = stats.bootstrap_interval(base, times)
                if low <= 1 <= high:
                    wanted = spec.max_final_pairs
    finally:
        if enabled:
            gc.enable()
    return PairedTimes(tuple(times), tuple(base))


def _hopeless(times: list[int], base: list[int], ratio: float) -> bool:
    return all(b < ratio * t for t, b in zip(times, base, strict=True))
