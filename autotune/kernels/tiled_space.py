"""The search space of the tiled kernel: which tiles, blocks and splits mean something for a shape.

Constraints keep out combinations that are equal to another one (a block larger than its dimension, a split
on one thread), so that a search never measures the same code twice under two names.
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune.kernels.native import native_isa
from autotune.ops.gemm import Gemm
from autotune.ops.linear import Linear
from autotune.space import Params, SearchSpace
from autotune.types import HardwareProfile, ParamValue, StrideClass, Workload

GEMV_ROWS = 4
"""Up to this many rows the register tile is all of m: one pass over B, bound by its bandwidth."""

K_BLOCKS = (128, 256, 512, 1024)
M_BLOCKS = (48, 96, 192)
N_BLOCKS = (256, 1024, 4096)
CHUNKS = (1, 2, 4, 8)
K_SPLIT_RESULTS = 1 << 16
"""A split along k keeps a partial result per task: only for results up to this many elements."""


def tiled_space(workload: Workload, hardware: HardwareProfile, itemsize: int, threads: tuple[int, ...]) -> SearchSpace:
    """The space for a Linear or Gemm whose elements have `itemsize` bytes."""
    assert isinstance(workload, (Linear, Gemm))
    m, n, k = workload.m, workload.n, workload.k
    batch = workload.batch if isinstance(workload, Gemm) else 1
    isa = native_isa(hardware)
    tiles = _tiles(m, isa.vector_bytes, isa.registers, itemsize)
    splits = ["n", *(["m"] if m > GEMV_ROWS else [])]
    if m * n <= K_SPLIT_RESULTS and k >= 1024:
        splits.append("k")
    if batch > 1:
        splits.append("batch")
    parameters: dict[str, tuple[ParamValue, ...]] = {
        "tile": tiles,
        "vector": isa.vector_bytes,
        "unroll": (1, 2, 4, 8),
        "prefetch": (0, 8, 16, 32),
        "kc": (*(b for b in K_BLOCKS if b < k), 0),
        "mc": (*(b for b in M_BLOCKS if b < m), 0),
        "nc": (*(b for b in N_BLOCKS if b < n), 0),
        "pack_a": (0, 1),
        "split": tuple(splits),
        "threads": threads,
        "chunks": CHUNKS,
    }
    if isinstance(workload, Gemm):
        in_place_a = workload.a_layout == StrideClass.CONTIGUOUS
        in_place_b = workload.b_layout == StrideClass.CONTIGUOUS
        parameters["pack_a"] = (0, 1) if in_place_a else (1,)
        parameters["pack_b"] = (0, 1) if in_place_b else (1,)

    def fits_registers(p: Params) -> bool:
        mr, nr = _pair(p["tile"])
        lanes = _number(p["vector"]) // itemsize
        vectors = nr // lanes
        return nr % lanes == 0 and mr * vectors + vectors + 1 <= isa.registers and vectors <= 8

    def one_thread_has_one_way(p: Params) -> bool:
        return p["threads"] != 1 or (p["split"] == "n" and p["chunks"] == 1)

    def enough_work_to_split(p: Params) -> bool:
        mr, nr = _pair(p["tile"])
        tasks = _number(p["threads"]) * _number(p["chunks"])
        extent = {"m": -(-m // mr), "n": -(-n // nr), "k": k // 128, "batch": batch}[str(p["split"])]
        return p["threads"] == 1 or tasks <= max(extent, _number(p["threads"]))

    def blocks_of_m_matter(p: Params) -> bool:
        mr, _ = _pair(p["tile"])
        return p["mc"] == 0 or m > mr

    def n_blocks_matter(p: Params) -> bool:
        return p["nc"] == 0 or p["mc"] != 0 or p["kc"] != 0

    constraints = (
        fits_registers,
        one_thread_has_one_way,
        enough_work_to_split,
        blocks_of_m_matter,
        n_blocks_matter,
    )
    bare = SearchSpace(parameters, constraints)
    return SearchSpace(parameters, constraints, tuple(_seeds(bare, m, n, k)))


def _tiles(m: int, vector_bytes: tuple[int, ...], registers: int, itemsize: int) -> tuple[tuple[int, int], ...]:
    """(MR, NR) pairs that fit the registers at some width; MR near m's own divisors, all of m for few rows."""
    rows = [max(m, 1)] if m <= GEMV_ROWS else [r for r in (2, 3, 4, 5, 6, 7, 8, 10, 12, 14) if r <= m]
    pairs = set()
    for width in vector_bytes:
        lanes = width // itemsize
        for mr in rows:
            for vectors in (1, 2, 3, 4, 6, 8):
                accumulators = mr * vectors
                hides_latency = accumulators >= min(8, registers // 2 - 4) or m <= GEMV_ROWS
                if hides_latency and accumulators + vectors + 1 <= registers:
                    pairs.add((mr, vectors * lanes))
    return tuple(sorted(pairs))


def _seeds(space: SearchSpace, m: int, n: int, k: int) -> list[dict[str, ParamValue]]:
    """Combinations that are good nearly everywhere: the widest balanced tiles, all threads, n split."""
    threads = _number(max(space.parameters["threads"], key=_number))
    vector = _number(space.parameters["vector"][0])
    seeds: list[dict[str, ParamValue]] = []
    for tile in _seed_tiles(space, m):
        for overrides in [*_seed_variants(m, k), *_gemm_variants(space)]:
            seed: dict[str, ParamValue] = {
                "tile": tile, "vector": vector, "unroll": 4, "prefetch": 0, "kc": 0, "mc": 0, "nc": 0,
                "pack_a": 0, "split": "n", "threads": threads, "chunks": 1 if threads == 1 else 4,
            }  # fmt: skip
            if "pack_b" in space.parameters:
                seed["pack_b"] = 1
            seed.update(overrides)
            seed["pack_a"] = seed["pack_a"] if seed["pack_a"] in space.parameters["pack_a"] else 1
            for chunks in (seed["chunks"], 2, 1):
                if space.contains({**seed, "chunks": chunks}):
                    seeds.append({**seed, "chunks": chunks})
                    break
    unique: list[dict[str, ParamValue]] = []
    for seed in seeds:
        if seed not in unique:
            unique.append(seed)
    return unique


def _seed_tiles(space: SearchSpace, m: int) -> list[tuple[int, int]]:
    """The tiles that waste the fewest rows of m, larger ones first among equals."""
    tiles = [_pair(tile) for tile in space.parameters["tile"]]

    def waste(tile: tuple[int, int]) -> tuple[float, int]:
        mr, nr = tile
        return (-(-m // mr) * mr / m if m else 1.0, -mr * nr)

    return sorted(tiles, key=waste)[:3]


def _seed_variants(m: int, k: int) -> list[Mapping[str, ParamValue]]:
    if m <= GEMV_ROWS:
        return [{}, {"prefetch": 16}]
    return [{}, {"kc": 256}, {"kc": 512, "pack_a": 1}] if k > 512 else [{}, {"pack_a": 1}]


def _gemm_variants(space: SearchSpace) -> list[Mapping[str, ParamValue]]:
    """One batch entry per task, and B read in place: what a constant weight does not need."""
    variants: list[Mapping[str, ParamValue]] = []
    if "batch" in space.parameters["split"]:
        variants += [{"split": "batch"}, {"split": "batch", "pack_a": 1}]
    if 0 in space.parameters.get("pack_b", ()):
        variants.append({"pack_b": 0})
    return variants


def _pair(value: ParamValue) -> tuple[int, int]:
    assert isinstance(value, tuple)
    first, second = value
    return _number(first), _number(second)


def _number(value: ParamValue) -> int:
    assert isinstance(value, int)
    return value
