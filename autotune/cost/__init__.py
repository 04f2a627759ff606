"""The cost model: which config is probably fastest for a workload that was never measured here.

A model predicts log(time / default's time) of a config, so 0 is the default and less is faster, with an
interval and a probability that were calibrated on shapes it had not seen. It is trained from a store
(`cost.dataset`, `cost.train`), kept in one file without pickle (`cost.file`), and asked by lookup (`cost.answer`).
Features (`cost.features`) are computed in one place for both.

This module is light: numpy and XGBoost are loaded by the modules that compute, when the first prediction is made.
"""

from __future__ import annotations

from autotune.noun import Noun, noun

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autotune.types import Config

SUFFIX = ".atm"
"""Of model files."""

FORMAT = 1
"""Of the file. Another one is refused."""


@noun
class Prediction(Noun):
    """What a model expects of a config, or (`config` None) why it does not say.

    `expected_ns`: None where the default's time could not be told either. `speedup` is over the default, `interval`
    holds it with 90 % probability. `p_faster`: the probability that it is faster than the default. `nearest`: spec of
    the nearest measured workload.
    `factors`: (feature, its share of log(time / default)), largest first, when asked for.
    """

    config: Config | None
    reason: str
    expected_ns: float | None = None
    speedup: float | None = None
    interval: tuple[float, float] | None = None
    p_faster: float | None = None
    nearest: str = ""
    alternatives: tuple[tuple[Config, float], ...] = ()  # next best, with their expected speed-ups
    factors: tuple[tuple[str, float], ...] = ()
