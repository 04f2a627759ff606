"""Which of the decided configs wins: one rule for sweep, lookup and scripts, on every machine.

A config must beat the default by 2 % and beyond its own interval, on a machine that was quiet,
otherwise the default wins. Among those within a
tie of the fastest, the one with fewer threads, then the smaller key, is taken, so that two ranks that measured
separately break ties the same way.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from autotune.types import Choice, Config

TIE = 0.02
"""Speed-ups within 2 % of the fastest count as equal."""

GAIN = 1.02
"""A config must be at least this much faster than the default, with its whole interval above 1, to be served."""


def ranked(choices: Iterable[Choice]) -> tuple[Choice, ...]:
    """Fastest first, ties broken by threads and key."""
    left = sorted(choices, key=lambda c: (-c.speedup, c.config.key))
    order: list[Choice] = []
    while left:
        best = left[0].speedup
        tied = [c for c in left if c.speedup >= best * (1 - TIE)]
        tied.sort(key=_preference)
        order.append(tied[0])
        left.remove(tied[0])
    return tuple(order)


def eligible(choices: Iterable[Choice], default: Config, max_error: float) -> tuple[Choice, ...]:
    """The choices that may be served under that error budget, best first; the default, if decided, last.

    The default is 1.00x itself by definition, whatever its own pairs said.
    """
    choices = tuple(choices)
    kept = ranked(c for c in choices if c.config != default and c.max_error <= max_error and is_gain(c))
    return (*kept, *(_as_itself(c) for c in choices if c.config == default))


def _as_itself(default: Choice) -> Choice:
    from autotune.types import Choice

    return Choice(
        default.config,
        default.kernel_revision,
        default.expected_ns,
        default.expected_ns,
        1.0,
        (1.0, 1.0),
        default.max_error,
        default.contended,
    )


def is_gain(choice: Choice) -> bool:
    """Whether the config is faster than the default beyond doubt and by enough to matter.

    What was measured while something else wanted the CPUs proves nothing: a default on all threads suffers more
    from it than a candidate on one, and a candidate whose own threads fight the framework's slows its neighbour.
    """
    return choice.speedup >= GAIN and choice.interval[0] > 1.0 and not choice.contended


def _preference(choice: Choice) -> tuple[int, str]:
    threads = choice.config.params.get("threads", 0)
    return threads if isinstance(threads, int) else 0, choice.config.key
