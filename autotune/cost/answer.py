"""What lookup asks on a miss: the best candidate of a workload by the model, or why the default is the answer.

Candidates are the training's winners, what the algorithms' authors suggest for this very workload, the winners of
nearby workloads (they are in the portfolio), what was measured under another identity, and a bounded sample of large
spaces. All are ranked by the model at once; then, from the top, the first that its algorithm takes here is the
answer, so that constraints are evaluated for a few configs instead of hundreds.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Container, Iterable
from random import Random
from typing import Any

import numpy as np

from autotune import registry
from autotune.cost import Prediction, choose
from autotune.cost.features import Array, Table
from autotune.cost.model import Floats, Model, OpModel
from autotune.cost.views import View, view
from autotune.errors import AutotuneError
from autotune.kernels import Algorithm
from autotune.space import SearchSpace
from autotune.types import Config, HardwareProfile, Workload

SAMPLED = 16
"""Valid random configs of the spaces that are too large to walk, in all."""

SMALL_SPACE = 12
SHORTLIST = 48
"""Candidates that the whole ensemble looks at."""

TRIED = 40
"""Ranked candidates whose constraints are evaluated, at most."""

NOTHING = "no other candidate is expected to be exact enough"

ALTERNATIVES = 3
MARGIN = 0.5
"""Octaves, or units of what is no logarithm, that a workload may lie outside the range of training."""


def predict(
    model: Model,
    workload: Workload,
    hardware: HardwareProfile,
    environment_key: str,
    max_error: float,
    hints: Iterable[Config] = (),
    explain: bool = False,
    barred: Container[str] = (),
) -> Prediction:
    """The model's answer. `hints`: configs measured for this workload under another identity. `barred`: keys of
    configs that do not build here.

    Raises `AutotuneError` when something that it needs is missing; the caller falls back.
    """
    known = model.ops.get(workload.op)
    if known is None:
        return Prediction(None, f"it was not trained on {workload.op}")
    hardware = known.as_trained(hardware)
    nearest, gap = _nearest(known, view(workload))
    reason = _out_of_range(known, workload, hardware, environment_key, gap)
    spec = nearest.spec if nearest is not None else ""
    if reason:
        return Prediction(None, reason, nearest=spec)
    return Chooser(known, workload, hardware, max_error, barred).answer(hints, spec, explain)


def _nearest(known: OpModel, seen: View) -> tuple[Workload | None, float]:
    if not known.measured:
        return None, math.inf
    gaps = known.distances(seen)
    best = int(np.argmin(gaps))
    return known.measured[best].workload, float(gaps[best])


def _out_of_range(
    known: OpModel, workload: Workload, hardware: HardwareProfile, environment_key: str, gap: float
) -> str:
    """Why the model has nothing to say of this workload here; "" when it has."""
    head = known.head
    unseen = known.features.unseen(workload)
    if unseen:
        return f"it has not seen {unseen} for {workload.op}"
    if hardware.kind != "cpu" or hardware.arch not in head["arches"]:
        return f"it has not seen {hardware.arch} for {workload.op}"
    if environment_key not in head["environments"]:
        return "it was trained with other software"
    row = known.features.workload_row(workload, hardware)
    for name, (low, high) in head["ranges"].items():
        value = float(row[known.features.names.index(name)])
        if not low - MARGIN <= value <= high + MARGIN:
            return f"{name} is {value:.3g}, outside the {low:.3g} to {high:.3g} that it was trained on"
    reach = float(head["reach"])
    if gap > reach:
        return f"far from every measured shape ({gap:.1f} octaves, and {reach:.1f} is the most)"
    return ""


class Chooser:
    """The candidates of one workload, and the choice among them."""

    def __init__(
        self,
        known: OpModel,
        workload: Workload,
        hardware: HardwareProfile,
        max_error: float,
        barred: Container[str] = (),
    ) -> None:
        self.known, self.workload, self.hardware, self.max_error = known, workload, hardware, max_error
        self.barred = barred
        self.default = registry.op(workload.op).default(workload)
        self.tolerance = registry.op(workload.op).tolerance(workload)
        self.spaces: dict[str, SearchSpace | None] = {}

    def candidates(self) -> list[Config]:
        """All candidates that this machine takes, the default left out."""
        every = dict.fromkeys((*self.known.portfolio.configs, *self._own()))
        return [
            c
            for c in every
            if c != self.default
            and self.known.features.knows(c)
            and self._exactness(choose.variant(c))
            and self._fits(c)
        ]

    def answer(self, hints: Iterable[Config], nearest: str, explain: bool) -> Prediction:
        known, workload, hardware = self.known, self.workload, self.hardware
        blocks = [(known.portfolio, self._allowed(known.portfolio))]
        more = [c for c in (*hints, *self._own()) if known.features.knows(c)]  # some twice: no harm, and hashing costs
        if more:
            table = Table(more)
            blocks.append((table, self._allowed(table)))
        configs = [config for table, _ in blocks for config in table.configs]
        rows = np.concatenate([known.features.matrix(workload, hardware, table) for table, _ in blocks])
        allowed = np.concatenate([one for _, one in blocks])
        kept = self._shortlist(rows, allowed, configs)
        if not kept:
            return Prediction(None, NOTHING, nearest=nearest)
        configs, rows, allowed = [configs[i] for i in kept], rows[kept], allowed[kept]
        mean, scale = known.predict_rows(rows, workload, hardware, Table(configs) if known.prior else None)
        usable = self._usable(rows, mean, scale, allowed)
        order = np.flatnonzero(usable)
        found = self._valid(configs, order[np.argsort(mean[order], kind="stable")])
        if not found:
            return Prediction(None, NOTHING, nearest=nearest)
        picked = choose.described(
            known, hardware.key, float(mean[found[0]]), float(scale[found[0]]), found[0], np.array(found)
        )
        reason = choose.refused(known, picked)
        default_ns = known.default_ns(workload, hardware)
        if reason:
            return Prediction(None, reason, default_ns, nearest=nearest)
        return self._prediction(configs, found, mean, picked, default_ns, nearest, explain)

    def _prediction(
        self, configs: list[Config], found: list[int], mean: Floats, picked: choose.Pick, default_ns: float | None,
        nearest: str, explain: bool,
    ) -> Prediction:  # fmt: skip
        low, high = picked.interval
        best = configs[found[0]]
        speedup = math.exp(-picked.mean)
        reason = (
            f"predicted {speedup:.2f}x the default, faster with a probability of {picked.p_faster:.0%}; "
            f"nearest measured: {nearest}"
        )
        return Prediction(
            best,
            reason,
            None if default_ns is None else default_ns / speedup,
            speedup,
            (math.exp(-high), math.exp(-low)),
            picked.p_faster,
            nearest,
            tuple((configs[i], math.exp(-mean[i])) for i in found[1:] if mean[i] < 0),
            _factors(self.known, self.workload, self.hardware, best) if explain else (),
        )

    def _shortlist(self, rows: Array, allowed: Array, configs: list[Config]) -> list[int]:
        """Indices of the best by one member alone: the whole ensemble on hundreds of candidates takes too long."""
        possible = np.flatnonzero(allowed)
        if len(possible) <= SHORTLIST:
            return [int(i) for i in possible]
        rough = self.known.members[0].predict(rows[possible]).astype(np.float64)
        if self.known.prior is not None:
            table = Table(configs[i] for i in possible)
            rough = rough + self.known.prior.rough(self.workload, self.hardware, table)
        return [int(i) for i in possible[np.argsort(rough, kind="stable")[:SHORTLIST]]]

    def _usable(self, rows: Array, mean: Floats, scale: Floats, allowed: Array) -> Any:
        usable = np.isfinite(mean) & np.isfinite(scale)
        if self.known.usable is not None:
            usable &= (allowed > 1) | (self.known.usable.predict(rows) >= float(self.known.head["usable_from"]))
        return usable

    def _valid(self, configs: list[Config], order: Any) -> list[int]:
        """The first few of these, the best first, that their algorithm takes here."""
        found: list[int] = []
        seen: set[Config] = {self.default}
        for index in order[:TRIED]:
            config = configs[index]
            if config not in seen and self._fits(config):
                seen.add(config)
                found.append(int(index))
                if len(found) > ALTERNATIVES:
                    break
        return found

    def _allowed(self, table: Table) -> Array:
        """`_exactness` of each config, 0 where the algorithm does not apply here."""
        known: dict[str, int] = {}
        found = np.zeros(len(table), np.float32)
        for index, config in enumerate(table.configs):
            name = choose.variant(config)
            if name not in known:
                exactness = self._exactness(name)
                known[name] = exactness if exactness and self._space(config.algorithm) is not None else 0
            found[index] = known[name]
        return found

    def _exactness(self, variant: str) -> int:
        """0: not exact enough; 1: if the model says so; 2: at its worst in training.

        A budget below the op's tolerance is met only by what always met it.
        """
        least, most = self.known.head["errors"].get(variant, (math.inf, math.inf))
        if most * self.tolerance <= self.max_error:
            return 2
        return 1 if least <= 1.0 and self.tolerance <= self.max_error else 0

    def _space(self, name: str) -> SearchSpace | None:
        if name not in self.spaces:
            self.spaces[name] = self._asked(name)
        return self.spaces[name]

    def _asked(self, name: str) -> SearchSpace | None:
        try:
            algorithm = registry.algorithm(name)
            if self.known.head["revisions"].get(name) != algorithm.revision():  # trained on another kernel
                return None
            if _refusal(algorithm, self.workload, self.hardware):
                return None
            principal = algorithm.stands_in_for
            if principal and not _refusal(registry.algorithm(principal), self.workload, self.hardware):
                return None
            return algorithm.space(self.workload, self.hardware)
        except (AutotuneError, ImportError):
            return None
        except Exception:  # somebody's plugin at fault: not a candidate
            return None

    def _fits(self, config: Config) -> bool:
        space = self._space(config.algorithm)
        try:
            return space is not None and config.key not in self.barred and space.contains(config.params)
        except Exception:
            return False

    def _own(self) -> list[Config]:
        """Suggestions of the algorithms for this workload, their small spaces whole, and a sample of the large ones."""
        found: list[Config] = []
        possible = dict.fromkeys(
            c.algorithm for c in self.known.portfolio.configs if self._exactness(choose.variant(c))
        )
        names = [name for name in possible if self._space(name) is not None]
        large = [name for name in names if (space := self.spaces[name]) is not None and space.size > SMALL_SPACE]
        random = Random(self.workload.key)  # the same workload has the same sample
        for name in names:
            space = self.spaces[name]
            assert space is not None
            found += [Config(name, params) for params in space.seeds]
            if name in large:
                drawn = (space.sample(random, attempts=20) for _ in range(SAMPLED // len(large)))
                found += [Config(name, params) for params in drawn if params is not None]
            else:
                found += [Config(name, params) for params in space]
        return found


def _refusal(algorithm: Algorithm, workload: Workload, hardware: HardwareProfile) -> str:
    """The algorithm's refusal; without what it takes torch to know while torch is not loaded, as that takes seconds.

    Building asks again, in full.
    """
    return algorithm.refusal(workload, hardware, software="torch" in sys.modules)


def _factors(
    known: OpModel, workload: Workload, hardware: HardwareProfile, config: Config, most: int = 8
) -> tuple[tuple[str, float], ...]:
    """SHAP values of the config (Lundberg and Lee, 2017), by XGBoost itself, averaged over the members; largest
    first."""
    try:
        import xgboost
    except ImportError:
        return ()
    data = xgboost.DMatrix(known.features.matrix(workload, hardware, Table([config])))
    total = np.zeros(len(known.features.names) + 1)
    for member in known.members:
        booster = xgboost.Booster(model_file=bytearray(member.blob))
        total += booster.predict(data, pred_contribs=True)[0] / len(known.members)
    values = total[:-1]
    order = np.argsort(-np.abs(values), kind="stable")[:most]
    return tuple((known.features.names[i], float(values[i])) for i in order if values[i] != 0)
