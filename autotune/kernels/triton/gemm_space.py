"""The search space of products in Triton.

Constraints keep out what no block can hold, and combinations that are equal to another or leave most of a block idle.
"""

from __future__ import annotations

import math

from autotune.kernels.triton import ELEMENTS
from autotune.noun import Noun, noun
from autotune.space import SearchSpace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autotune.space import Constraint, Params
    from autotune.types import HardwareProfile, ParamValue

SMALLEST = 16
"""Of a tile's sides: what one instruction of a tensor core takes."""

LACKING = (("bf16", "sm_75"),)
"""(dtype, architecture) without instructions for it (PTX ISA, mma)."""

SIDES = (16, 32, 64, 128, 256)
DEPTHS = {"f32": (16, 32, 64), "f16": (32, 64, 128, 256), "bf16": (32, 64, 128, 256)}
GROUPS = (1, 4, 8, 16)
SPLITS = (1, 2, 4, 8, 16)
WARPS = (1, 2, 4, 8)
STAGES = (1, 2, 3, 4, 5)
MOST_PRODUCTS = 64 * 64 * 32
"""Of an "ieee" f32 step: its operands are held in registers, and beyond this the compiler takes minutes to spill."""

SEEDS = (
    ((128, 256, 64), 8, 3), ((128, 128, 64), 8, 3), ((128, 128, 64), 4, 4), ((64, 128, 64), 4, 4),
    ((64, 256, 64), 4, 3), ((64, 64, 64), 4, 4), ((32, 64, 128), 4, 4), ((16, 64, 128), 4, 4), ((16, 32, 256), 4, 3),
    ((16, 128, 64), 4, 5), ((64, 64, 32), 4, 3), ((32, 32, 32), 4, 3), ((16, 64, 32), 2, 4), ((16, 16, 32), 1, 2),
)  # fmt: skip
"""(tile, warps, stages) that are good somewhere: large ones for many rows, narrow and deep ones for few."""


@noun
class Tile(Noun):
    """The parameters of a config as numbers."""

    m: int
    n: int
    k: int
    group: int
    split: int
    warps: int
    stages: int
    precision: str = "ieee"

    @classmethod
    def of(cls, params: Params) -> Tile:
        tile = params["tile"]
        assert isinstance(tile, tuple)
        m, n, k = (_number(value) for value in tile)
        group, split = _number(params["group"]), _number(params.get("split", 1))
        warps, stages = _number(params["warps"]), _number(params["stages"])
        return cls(m, n, k, group, split, warps, stages, str(params.get("precision", "ieee")))


def precisions(dtype: str, arch: str) -> tuple[str, ...]:
    """How products of f32 are taken: tensor cores in three parts are NVIDIA's, from sm_80 on."""
    return ("tf32x3", "ieee") if dtype == "f32" and arch.startswith("sm_") and arch != "sm_75" else ("ieee",)


def dtype_refusal(dtype: str, arch: str) -> str:
    """Why products of that element type are not for that architecture; "" when they are."""
    if dtype not in ELEMENTS:
        return f"the Triton kernels compute {', '.join(ELEMENTS)}, not {dtype}"
    return f"{arch} has no bf16 products: the compiler would make them of f32 ones" if (dtype, arch) in LACKING else ""


def power_of_two(value: int) -> int:
    """The least power of two that is not below `value`."""
    return 1 << max(value - 1, 0).bit_length()


def product_space(
    shape: tuple[int, int, int], batch: int, dtype: str, hardware: HardwareProfile, fits: Constraint
) -> SearchSpace:
    """The space of a product (m, n, k), `batch` of them, on that GPU; `fits` is the constraint by its limits."""
    rows, columns, depth = shape
    sides_m, sides_n = _within(SIDES, rows), _within(SIDES, columns)
    tiles = [(m, n, k) for m in sides_m for n in sides_n for k in _within(DEPTHS[dtype], depth)]
    cores = hardware.physical_cores
    parameters: dict[str, tuple[ParamValue, ...]] = {
        "tile": tuple(tiles),
        "warps": WARPS,
        "stages": STAGES,
        "group": GROUPS,
        "split": SPLITS,
        "precision": precisions(dtype, hardware.arch),
    }
    if len(parameters["precision"]) == 1:
        del parameters["precision"]

    def steps(t: Tile) -> int:
        return math.ceil(depth / (t.k * t.split))

    def group_matters(p: Params) -> bool:
        t = Tile.of(p)
        return t.group == 1 or (t.group <= math.ceil(rows / t.m) and columns > t.n)

    def split_has_a_purpose(p: Params) -> bool:
        """Too few tiles for the device, and every part has at least two steps."""
        t = Tile.of(p)
        blocks = math.ceil(rows / t.m) * math.ceil(columns / t.n) * batch * t.split
        return t.split == 1 or (blocks <= 4 * cores and steps(t) >= 2)

    def stages_are_filled(p: Params) -> bool:
        t = Tile.of(p)
        return t.stages <= max(2, steps(t)) or t.stages == 1

    def threads_have_work(p: Params) -> bool:
        t = Tile.of(p)
        return t.m * t.n >= t.warps * 32 * 4 or (t.warps == 1)

    def compiles_in_time(p: Params) -> bool:
        t = Tile.of(p)
        return dtype != "f32" or t.precision != "ieee" or t.m * t.n * t.k <= MOST_PRODUCTS

    constraints = (fits, group_matters, split_has_a_purpose, stages_are_filled, threads_have_work, compiles_in_time)
    bare = SearchSpace(parameters, constraints)
    return SearchSpace(parameters, constraints, tuple(_seeds(bare, rows, columns)))


def _within(sizes: tuple[int, ...], extent: int) -> tuple[int, ...]:
    """Sizes up to the first that covers the extent; the smallest at least."""
    cover = max(power_of_two(extent), sizes[0])
    return tuple(size for size in sizes if size <= cover)


def _seeds(space: SearchSpace, m: int, n: int) -> list[dict[str, ParamValue]]:
    """The listed tiles that waste no more than half of their rows, with the split that fills the device best."""
    found: list[dict[str, ParamValue]] = []
    for tile, warps, stages in SEEDS:
        if tile[0] >= 2 * max(m, SMALLEST) or tile[1] >= 2 * max(n, SMALLEST):
            continue
        for precision in space.parameters.get("precision", ("",)):
            made: dict[str, ParamValue] = {"tile": tile, "warps": warps, "group": 8, "split": 1}
            if precision:
                made["precision"] = precision
            candidates = [
                {**made, "group": group, "split": split, "stages": fewer}
                for split in reversed(SPLITS)
                for fewer in range(stages, 0, -1)
                for group in (8, 1)
            ]
            valid = [candidate for candidate in candidates if space.contains(candidate)]
            found += valid[:1]
            found += [c for c in valid if c["split"] == 1][:1] if valid and valid[0]["split"] != 1 else []
    return [seed for index, seed in enumerate(found) if seed not in found[:index]][:16]


def _number(value: ParamValue) -> int:
    assert isinstance(value, int)
    return value
