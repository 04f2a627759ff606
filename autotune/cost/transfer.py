"""A model of another machine as the start of this one's: kept where it helps, dropped where it misleads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autotune.cost.fit import Options, Rows, fit, folds_of
from autotune.cost.model import Floats, OpModel


def prior_for(rows: Rows, base: OpModel, options: Options) -> tuple[OpModel | None, str]:
    """The source's model as a margin, unless the target's own results are told better without it.

    Both ways are tried on folds of the target's shapes: boosters of the label, and of what the source leaves over.
    The source is dropped where it does not lower the squared error: what helps one machine can mislead on another.
    """
    if base.prior is not None:
        return None, f"{base.op}: the source model is dropped, it was itself made from another machine's"
    folds = folds_of(rows.groups, 4, options.seed)[rows.group]
    margin = prior_margin(rows, base)
    quick = replace(options, trees=60)
    errors = {}
    for name, start in (("alone", np.zeros(len(rows.y))), ("with the source", margin)):
        held = Rows(rows.groups, rows.features, rows.tables, rows.x, rows.y, rows.group, rows.fold, start)
        guess = np.array(start)
        for fold in sorted(set(folds.tolist())):
            test = folds == fold
            guess[test] += fit(held, ~test, quick, options.seed).predict(rows.x[test])
        errors[name] = float(np.sqrt(np.mean((rows.y - guess) ** 2)))
    told = ", ".join(f"{name} {error:.3f}" for name, error in errors.items())
    plain = OpModel(base.op, base.features, base.members, None, None, None, base.head, None)
    if errors["with the source"] < errors["alone"]:
        return plain, f"{base.op}: the source model is kept as prior (error of log time, unseen shapes: {told})"
    return (
        None,
        f"{base.op}: the source model is dropped, it does not help here (error of log time, unseen shapes: {told})",
    )


def prior_margin(rows: Rows, base: OpModel) -> Floats:
    parts = [base.predict(g.workload, g.hardware, t)[0] for g, t in zip(rows.groups, rows.tables, strict=True)]
    return np.concatenate(parts)
