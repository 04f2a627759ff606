"""MIOpen's find-db files as arrays: which problems count, how they are split, and features of candidates.

For `bench_predictor.py`. A problem counts when it is 2-D, of one of four dtypes, and has two candidates or more. A
layer is what a problem is without batch, dtype, layout and direction; its bucket is a hash. Buckets below `TEST` are
the test set, those below `VALIDATION` choose hyperparameters, the rest trains.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from autotune.errors import InvalidInput
from autotune.formats import BadLine, miopen, miopen_key

Floats = npt.NDArray[np.float32]
Whole = npt.NDArray[np.int64]

TEST, VALIDATION = 200, 300
DTYPES = {"FP32": 4, "FP16": 2, "BF16": 2, "INT8": 1}
DIRECTIONS = "FBW"

GPUS = {
    "gfx900": "gfx900_56",
    "gfx906-60": "gfx906_60",
    "gfx906-64": "gfx906_64",
    "gfx1030": "gfx1030_36",
    "gfx908": "gfx90878",
    "gfx90a-104": "gfx90a68",
    "gfx90a-110": "gfx90a6e",
    "gfx942": "gfx942130",
}
"""File names by GPU. gfx803_64 is left out: it cannot have been measured on the machine that it names."""

SIZES = (
    "n", "c", "h", "w", "k", "y", "x", "ho", "wo", "sh", "sw", "ph", "pw", "dh", "dw", "groups", "dtype", "direction",
    "channels_last", "bucket",
)  # fmt: skip


@dataclass(frozen=True)
class Problems:
    """Problems of one GPU and their candidates, which are in the order of their solvers' names, never of their times.

    `sizes`: a row of `SIZES` per problem. The rest has an entry per candidate: `problem` its row, ascending; `solver`
    an index into `solvers`; `ms`; `workspace` in bytes.
    """

    sizes: Whole
    problem: Whole
    solver: Whole
    ms: npt.NDArray[np.float64]
    workspace: Whole
    solvers: tuple[str, ...]

    def column(self, name: str) -> Whole:
        return self.sizes[:, SIZES.index(name)]

    def __len__(self) -> int:
        return len(self.sizes)

    def only(self, chosen: npt.NDArray[np.bool_]) -> Problems:
        """The chosen problems."""
        number = np.cumsum(chosen) - 1
        rows = chosen[self.problem]
        return Problems(
            self.sizes[chosen], number[self.problem[rows]], self.solver[rows], self.ms[rows], self.workspace[rows],
            self.solvers,
        )  # fmt: skip

    def between(self, low: int, high: int) -> Problems:
        """Those whose layer's bucket is in [low, high)."""
        bucket = self.column("bucket")
        return self.only((low <= bucket) & (bucket < high))

    @property
    def best_ms(self) -> npt.NDArray[np.float64]:
        best = np.full(len(self), np.inf)
        np.minimum.at(best, self.problem, self.ms)
        return best

    @property
    def cost(self) -> npt.NDArray[np.float64]:
        """log(time / best of the problem) per candidate."""
        return np.log(self.ms / self.best_ms[self.problem])

    @property
    def layers(self) -> Whole:
        """A number per problem that is the same for problems of one layer."""
        names = ("c", "k", "h", "w", "y", "x", "sh", "sw", "ph", "pw", "dh", "dw", "groups")
        columns = np.stack([self.column(name) for name in names], axis=1)
        return np.unique(columns, axis=0, return_inverse=True)[1].reshape(-1)


ARRAYS = ("sizes", "problem", "solver", "ms", "workspace")


def bucket(problem: miopen_key.Problem) -> int:
    """The split of a 2-D problem's layer: a hash of its text, in which a plane is a volume of depth 1."""
    p = problem
    volumes = ((1, p.image), (1, p.filter), (1, p.stride), (0, p.pad), (1, p.dilation))
    text = ",".join(map(str, (p.c, p.k, *([depth, *axes] for depth, axes in volumes), p.groups)))
    return int(hashlib.sha1(f"g{text}".encode()).hexdigest()[:8], 16) % 1000


def load(folder: Path, gpu: str, cache: Path | None = None) -> Problems:
    """The problems of a GPU: of the samples, and of the complete training file where there is one."""
    kept = cache / f"{gpu}.npz" if cache else None
    if kept is not None and kept.exists():
        with np.load(kept) as made:
            arrays = {name: made[name] for name in ARRAYS}
            return Problems(**arrays, solvers=tuple(json.loads(str(made["solvers"]))))
    found: dict[str, tuple[list[int], list[miopen.Solution]]] = {}
    name = f"{GPUS[gpu]}.HIP.fdb.txt.xz"
    paths = [path for path in (folder / name, folder / "full_train" / name) if path.exists()]
    if not paths:
        raise InvalidInput(f"{folder} has no {name}")
    for path in paths:
        with lzma.open(path, "rt", encoding="utf-8", newline="") as file:
            for one in miopen.read(file.read()):
                if isinstance(one, BadLine) or one.key in found or len(one.solutions) < 2:
                    continue
                row = _row(one.key)
                if row is not None:
                    found[one.key] = (row, sorted(one.solutions, key=lambda s: s.solver))
    problems = _arrays(found.values())
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        arrays = {name: getattr(problems, name) for name in ARRAYS}
        np.savez(kept, allow_pickle=False, solvers=json.dumps(problems.solvers), **arrays)
    return problems


def _row(key: str) -> list[int] | None:
    try:
        p = miopen_key.parse(key)
    except InvalidInput:
        return None
    if p.axes != 2 or p.dtype not in DTYPES:
        return None
    layout = int(p.layout.startswith("NHWC"))
    return [
        p.n, p.c, *p.image, p.k, *p.filter, *p.result, *p.stride, *p.pad, *p.dilation, p.groups,
        list(DTYPES).index(p.dtype), DIRECTIONS.index(p.direction), layout, bucket(p),
    ]  # fmt: skip


def _arrays(found: Iterable[tuple[list[int], list[miopen.Solution]]]) -> Problems:
    pairs = list(found)
    names = tuple(sorted({solution.solver for _, solutions in pairs for solution in solutions}))
    index = {name: number for number, name in enumerate(names)}
    flat = [(number, solution) for number, (_, solutions) in enumerate(pairs) for solution in solutions]
    return Problems(
        np.array([row for row, _ in pairs], np.int64),
        np.array([number for number, _ in flat], np.int64),
        np.array([index[solution.solver] for _, solution in flat], np.int64),
        np.array([solution.time_ms for _, solution in flat]),
        np.array([solution.workspace_bytes for _, solution in flat], np.int64),
        names,
    )


def united(parts: Sequence[Problems]) -> Problems:
    """Problems of several GPUs as one, solvers by name."""
    names = tuple(sorted({name for part in parts for name in part.solvers}))
    begin = np.cumsum([0, *(len(part) for part in parts)])
    renumbered = [np.array([names.index(name) for name in part.solvers])[part.solver] for part in parts]
    return Problems(
        np.concatenate([part.sizes for part in parts]),
        np.concatenate([part.problem + start for part, start in zip(parts, begin, strict=False)]),
        np.concatenate(renumbered),
        np.concatenate([part.ms for part in parts]),
        np.concatenate([part.workspace for part in parts]),
        names,
    )
