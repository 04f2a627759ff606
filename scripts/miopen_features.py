"""Features of MIOpen's candidates, for `bench_predictor.py`: of the problem, of the solver, and of both together.

What is learnt from times (a solver's usual rank) is computed from training problems only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from miopen_data import DTYPES, SIZES, Floats, Problems

TILES = (32, 64, 128, 256)

SPECS = {
    # compute units, MHz, f32 and f16 TFLOP/s of vector units, f16 and f32 of matrix units, GB/s, L2 MiB, last level MiB
    "gfx900": (56, 1471, 10.5, 21.0, 0.0, 0.0, 410, 4, 4, 64),
    "gfx906-60": (60, 1725, 13.3, 26.5, 0.0, 0.0, 1024, 4, 4, 64),
    "gfx906-64": (64, 1800, 14.7, 29.5, 0.0, 0.0, 1024, 4, 4, 64),
    "gfx1030": (72, 2250, 20.7, 41.5, 0.0, 0.0, 512, 4, 128, 32),
    "gfx908": (120, 1502, 23.1, 46.1, 184.6, 46.1, 1229, 8, 8, 64),
    "gfx90a-104": (104, 1700, 22.6, 45.3, 181.0, 45.3, 1638, 8, 8, 64),
    "gfx90a-110": (110, 1700, 23.9, 47.9, 191.5, 47.9, 1638, 8, 8, 64),
    "gfx942": (304, 2100, 81.7, 163.4, 1307.4, 163.4, 5300, 32, 256, 64),
}
"""Published figures of the GPUs, the last of each the width of a wave: what is known of one never measured."""


@dataclass(frozen=True)
class Habits:
    """How solvers usually fare: mean rank, mean cost, share of wins; overall, and per direction and dtype."""

    overall: npt.NDArray[np.float64]  # [solver, 4]
    by_kind: npt.NDArray[np.float64]  # [solver, kind, 4]

    @classmethod
    def of(cls, problems: Problems) -> Habits:
        solvers, kinds = len(problems.solvers), 3 * len(DTYPES)
        cost = np.minimum(problems.cost, np.log(20.0))
        order = np.lexsort((cost, problems.problem))
        first = np.searchsorted(problems.problem, problems.problem)
        rank = np.empty(len(cost))
        rank[order] = np.arange(len(cost)) - first[order]
        facts = np.stack([rank, cost, cost == 0, np.ones(len(cost))], axis=1)
        cell = problems.solver * kinds + kind_of(problems)[problems.problem]
        sums = np.stack([np.bincount(cell, facts[:, i], solvers * kinds) for i in range(4)], axis=1).astype(float)
        by_kind = sums.reshape(solvers, kinds, 4)
        total = by_kind.sum(axis=1)
        everyone = total.sum(axis=0)
        overall = _means(total, everyone / everyone[3], 20.0)
        return cls(overall, _means(by_kind, overall[:, None, :], 20.0))


def _means(sums: npt.NDArray[np.float64], prior: npt.NDArray[np.float64], weight: float) -> npt.NDArray[np.float64]:
    """Means drawn towards a prior as if it were `weight` observations; the last column: log of the count."""
    count = sums[..., 3:]
    made = (sums + weight * prior) / (count + weight)
    made[..., 3] = np.log1p(count[..., 0])
    return made


def kind_of(problems: Problems) -> npt.NDArray[np.int64]:
    return problems.column("direction") * len(DTYPES) + problems.column("dtype")


def log(value: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.asarray(np.log2(np.maximum(value, 1e-9)))


def matrix(problems: Problems, habits: Habits, spec: tuple[float, ...]) -> tuple[Floats, list[str]]:
    """A row per candidate; and the names of the columns."""
    columns = _of_problems(problems, spec)
    names = list(columns)
    base = np.stack(list(columns.values()), axis=1).astype(np.float32)
    rows = problems.problem
    moved = columns["log bytes"][rows]
    kind = kind_of(problems)[rows]
    workspace = log(1.0 + problems.workspace.astype(np.float64))
    own = {
        "solver": problems.solver.astype(float),
        "solver rank order": np.argsort(np.argsort(habits.overall[:, 1]))[problems.solver].astype(float),
        "log workspace": workspace,
        "workspace over bytes": workspace - moved,
    }
    for index, name in enumerate(("rank", "cost", "wins", "count")):
        own[f"solver {name}"] = habits.overall[problems.solver, index]
        own[f"solver {name} of its kind"] = habits.by_kind[problems.solver, kind, index]
    mine = np.stack(list(own.values()), axis=1).astype(np.float32)
    return np.hstack([base[rows], mine]), names + list(own)


def _of_problems(problems: Problems, spec: tuple[float, ...]) -> dict[str, npt.NDArray[np.float64]]:
    v = {name: problems.column(name).astype(float) for name in SIZES}
    made = {f"log {name}": log(v[name]) for name in ("n", "c", "h", "w", "k", "ho", "wo", "groups")}
    for name in ("y", "x", "sh", "sw", "ph", "pw", "dh", "dw", "dtype", "direction", "channels_last"):
        made[name] = v[name]
    cg, kg = v["c"] / v["groups"], v["k"] / v["groups"]
    made["log c per group"], made["log k per group"] = log(cg), log(kg)
    itemsize = np.array(list(DTYPES.values()), float)[problems.column("dtype")]
    image, result = v["n"] * v["c"] * v["h"] * v["w"], v["n"] * v["k"] * v["ho"] * v["wo"]
    weight = v["k"] * cg * v["y"] * v["x"]
    flops = 2 * result * cg * v["y"] * v["x"]
    made["log flops"], made["log bytes"] = log(flops), log((image + result + weight) * itemsize)
    made["log image"], made["log result"], made["log weight"] = log(image), log(result), log(weight)
    made["intensity"] = made["log flops"] - made["log bytes"]
    made["halo"] = log((v["h"] + 2 * v["ph"]) * (v["w"] + 2 * v["pw"])) - made["log h"] - made["log w"]
    made["shrinkage"] = made["log ho"] + made["log wo"] - made["log h"] - made["log w"]
    way = problems.column("direction")
    pixels, spread = v["n"] * v["ho"] * v["wo"], v["n"] * v["h"] * v["w"]
    m = np.choose(way, [pixels, spread, kg])
    n = np.choose(way, [kg, cg, cg * v["y"] * v["x"]])
    k = np.choose(way, [cg * v["y"] * v["x"], kg * v["y"] * v["x"], pixels])
    for name, value in (("M", m), ("N", n), ("K", k)):
        made[f"log GEMM {name}"] = log(value)
        made[f"alignment of GEMM {name}"] = alignment(value)
        for tile in TILES:
            made[f"GEMM {name} fills {tile}"] = fill(value, tile)
    for name, value in (
        ("c", cg), ("k", kg), ("h*w", v["h"] * v["w"]), ("ho*wo", v["ho"] * v["wo"]), ("w", v["w"]), ("wo", v["wo"]),
    ):  # fmt: skip
        made[f"alignment of {name}"] = alignment(value)
    for tile in (2, 3, 4, 6):
        made[f"Winograd tiles of {tile}"] = fill(v["ho"], tile) * fill(v["wo"], tile)
    made["filter fills 3"], made["filter fills 2"] = (fill(v["y"], t) * fill(v["x"], t) for t in (3, 2))
    for tile in (64, 128, 256):
        blocks = np.ceil(m / tile) * np.ceil(n / tile) * v["groups"]
        made[f"log waves of {tile}"] = log(blocks / spec[0])
        made[f"last wave of {tile}"] = fill(blocks, int(spec[0]))
    return {**made, **_roofline(spec, flops, made["log bytes"], problems.column("dtype"))}


def _roofline(
    spec: tuple[float, ...],
    flops: npt.NDArray[np.float64],
    log_bytes: npt.NDArray[np.float64],
    dtype: npt.NDArray[np.int64],
) -> dict[str, npt.NDArray[np.float64]]:
    """log2 µs that arithmetic and memory take at least, and what is said of the GPU."""
    vector = np.where(dtype == 0, spec[2], spec[3])
    matrix_units = np.where(dtype == 0, spec[5], spec[4])
    best = np.maximum(vector, matrix_units)
    compute, memory = log(flops) - log(best * 1e6), log_bytes - log(np.full(len(flops), spec[6] * 1e3))
    told = {f"GPU {index}": np.full(len(flops), float(value)) for index, value in enumerate(spec)}
    return {
        "log compute µs": compute,
        "log vector µs": log(flops) - log(vector * 1e6),
        "log memory µs": memory,
        "log roofline µs": np.maximum(compute, memory),
        "compute over memory": compute - memory,
        "matrix over vector": log(best / vector),
        "cache over bytes": np.log2(spec[8] * 2**20) - log_bytes,
        **told,
    }


def alignment(value: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The power of two that divides it, at most 8."""
    whole = value.astype(np.int64)
    made = np.zeros(len(whole))
    for power in range(1, 9):
        made[whole % (1 << power) == 0] = power
    return made


def fill(value: npt.NDArray[np.float64], tile: int) -> npt.NDArray[np.float64]:
    """Share of the tiles that is not padding."""
    return np.asarray(value / (np.ceil(value / tile) * tile))
