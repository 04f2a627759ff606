"""From predictions to a pick: the same rule in training, evaluation and lookup."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotune import registry
from autotune.cost.dataset import Group
from autotune.cost.model import Calibration, Floats, OpModel
from autotune.decide import GAIN
from autotune.types import Config

WIDER = 1.5
"""Errors to expect on a machine that the model was not calibrated on are this much larger."""


@dataclass(frozen=True)
class Pick:
    """`order`: usable candidates, best predicted first. `index`: the first of them that is not the default, None
    without one."""

    index: int | None
    order: npt.NDArray[np.int64]
    p_faster: float = 0.0
    mean: float = 0.0
    interval: tuple[float, float] = (0.0, 0.0)  # of log(time / default's)


def calibration(model: OpModel, hardware_key: str) -> tuple[Calibration, bool]:
    """The machine's own, and True; else that of all machines together."""
    own = model.calibrations.get(hardware_key)
    return (own, True) if own is not None else (model.calibrations[""], False)


def pick(
    model: OpModel, hardware_key: str, mean: Floats, scale: Floats, usable: npt.NDArray[np.bool_], default: int | None
) -> Pick:
    """The best candidate by its mean, the default left out."""
    allowed = usable.copy()
    if default is not None:
        allowed[default] = False
    candidates = np.flatnonzero(allowed)
    order = candidates[np.argsort(mean[candidates], kind="stable")]
    if not len(order):
        return Pick(None, order)
    first = int(order[0])
    return described(model, hardware_key, float(mean[first]), float(scale[first]), first, order)


def described(
    model: OpModel, hardware_key: str, mean: float, scale: float, index: int, order: npt.NDArray[np.int64]
) -> Pick:
    """That candidate with its probability and interval; wider on a machine without a calibration of its own."""
    known, own = calibration(model, hardware_key)
    scale = scale if own else WIDER * scale
    return Pick(index, order, known.p_below(mean, scale), known.centre(mean, scale), known.bounds(mean, scale))


def refused(model: OpModel, chosen: Pick) -> str:
    """Why the default is the better answer; "" when the pick is."""
    if chosen.index is None:
        return "no other candidate is expected to be exact enough"
    if -chosen.mean < math.log(GAIN):
        return "nothing is expected to beat the default"
    threshold = float(model.head["threshold"])
    if chosen.p_faster < threshold:
        likely = f"{chosen.p_faster:.0%}, and {threshold:.0%} are asked for"
        return f"the best candidate is faster with a probability of {likely}"
    return ""


def winners(group: Group, most: int = 4) -> list[Config]:
    """The fastest configs of a workload that are exact enough, fastest first; the default where it is among them."""
    exact = [
        (label, config)
        for config, label, ratio in zip(group.configs, group.labels, group.ratios, strict=True)
        if ratio <= 1.0
    ]
    exact.sort(key=lambda item: (item[0], item[1].key))
    return [config for _, config in exact[:most]]


def default_index(group: Group) -> int:
    return group.configs.index(registry.op(group.workload.op).default(group.workload))


def variant(config: Config) -> str:
    """What decides how exact a config is: the algorithm, and Winograd's tile."""
    m = config.params.get("m")
    return f"{config.algorithm} m={m}" if isinstance(m, int) else config.algorithm
