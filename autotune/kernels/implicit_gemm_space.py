"""The search space of the implicit GEMM kernel: tiles, blocks and splits that mean something for a convolution.

Constraints keep out combinations that are equal to another one, so that a search never measures the same code twice
under two names.
"""

from __future__ import annotations

from collections.abc import Iterator

from autotune.kernels.native import Isa, native_isa
from autotune.ops.conv2d import Conv2d
from autotune.space import Params, SearchSpace
from autotune.types import HardwareProfile, ParamValue

DEPTH_BLOCKS = (128, 256, 512, 1024)
PIXEL_BLOCKS = (64, 128, 256, 512, 1024)
CHUNKS = (1, 2, 4, 8)
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14)
VECTORS = (1, 2, 3, 4, 6, 7, 8)


def implicit_gemm_space(w: Conv2d, hardware: HardwareProfile, itemsize: int, threads: tuple[int, ...]) -> SearchSpace:
    """The space for elements of `itemsize` bytes."""
    isa = native_isa(hardware)
    channels_last = w.layout == "channels_last"
    pixels = w.out_h * w.out_w * (w.n if channels_last else 1)
    per_group = w.k // w.groups
    rows, columns = (pixels, per_group) if channels_last else (per_group, pixels)
    planes = w.groups * (1 if channels_last else w.n)
    in_place = w.is_pointwise and w.strides == (1, 1)

    def units(p: Params) -> int:
        """What the split axis is cut into."""
        mr, nr = pair(p["tile"])
        if p["split"] == "pixels":
            return planes * -(-pixels // (mr if channels_last else nr))
        return w.groups * -(-per_group // (nr if channels_last else mr))

    def fits_registers(p: Params) -> bool:
        mr, nr = pair(p["tile"])
        lanes = _number(p["vector"]) // itemsize
        return nr % lanes == 0 and nr // lanes in VECTORS and fits(mr, nr // lanes, isa)

    def one_thread_has_one_way(p: Params) -> bool:
        return p["threads"] != 1 or (p["split"] == "pixels" and p["chunks"] == 1)

    def enough_work_to_split(p: Params) -> bool:
        threads, chunks = _number(p["threads"]), _number(p["chunks"])
        return threads == 1 or threads * chunks <= units(p) or (chunks == 1 and p["split"] == "pixels")

    def blocks_hold_a_tile(p: Params) -> bool:
        mr, nr = pair(p["tile"])
        return p["nc"] == 0 or _number(p["nc"]) >= (mr if channels_last else nr)

    def pixel_blocks_matter(p: Params) -> bool:
        return p["image"] == "packed" or channels_last or p["kc"] != 0 or p["nc"] == 0

    constraints = (
        fits_registers,
        one_thread_has_one_way,
        enough_work_to_split,
        blocks_hold_a_tile,
        pixel_blocks_matter,
    )
    parameters: dict[str, tuple[ParamValue, ...]] = {
        "tile": tuple(sorted(set(tiles(rows, columns, isa, itemsize)))),
        "vector": isa.vector_bytes,
        "unroll": (1, 2, 4),
        "kc": (*_depth_blocks(w), 0),
        "nc": (*(block for block in PIXEL_BLOCKS if block < pixels), 0),
        "image": ("in_place", "packed") if in_place else ("packed",),
        "split": ("pixels", "channels"),
        "threads": threads,
        "chunks": CHUNKS,
    }
    bare = SearchSpace(parameters, constraints)
    ranked = sorted(_tiles_and_widths(bare, itemsize), key=lambda item: cost(rows, columns, item[0], item[1], itemsize))
    return SearchSpace(parameters, constraints, tuple(_seeds(bare, ranked)))


def fits(mr: int, vectors: int, isa: Isa) -> bool:
    return mr * vectors + vectors + 1 <= isa.registers


def _depth_blocks(w: Conv2d) -> Iterator[int]:
    """Blocks of products below all of them; NCHW takes whole filters, so nearby sizes may be one."""
    step = 1 if w.layout == "channels_last" else w.r * w.s
    taken = {w.depth}
    for block in DEPTH_BLOCKS:
        whole = max(block // step, 1) * step
        if whole < w.depth and whole not in taken:
            taken.add(whole)
            yield block


def tiles(rows: int, columns: int, isa: Isa, itemsize: int) -> Iterator[tuple[int, int]]:
    """(MR, NR) that fit the registers at some width, no larger than the matrix, and hide the latency of their sums."""
    for width in isa.vector_bytes:
        lanes = width // itemsize
        most_vectors = max(-(-columns // lanes), 1)
        for mr in ROWS:
            for vectors in VECTORS:
                within = (mr <= max(rows, 1)) and vectors <= most_vectors
                largest = mr == max(rows, 1) or vectors == most_vectors  # nothing larger to hide it with
                if within and fits(mr, vectors, isa) and (mr * vectors >= 8 or largest):
                    yield mr, vectors * lanes


def _tiles_and_widths(space: SearchSpace, itemsize: int) -> Iterator[tuple[tuple[int, int], int]]:
    for tile in space.parameters["tile"]:
        for width in space.parameters["vector"]:
            probe = {**_plain(space), "tile": tile, "vector": width}
            if space.valid(probe):
                yield pair(tile), _number(width)


def cost(rows: int, columns: int, tile: tuple[int, int], width: int, itemsize: int) -> tuple[float, int]:
    """Relative time of a product: multiplications, padding included, and loads that do not hide behind them."""
    mr, nr = tile
    lanes = width // itemsize
    tiles = -(-max(rows, 1) // mr) * -(-max(columns, 1) // nr)
    loads = mr + nr // lanes
    return tiles * (max(mr * nr // lanes, loads, 8) + 0.15 * loads) * width, -width


def _plain(space: SearchSpace) -> dict[str, ParamValue]:
    """One thread, no blocks: valid for any tile that fits."""
    return {
        "tile": (0, 0), "vector": 0, "unroll": 4, "kc": 0, "nc": 0, "image": space.parameters["image"][0],
        "split": "pixels", "threads": space.parameters["threads"][0], "chunks": 1,
    }  # fmt: skip


def _seeds(space: SearchSpace, ranked: list[tuple[tuple[int, int], int]]) -> list[dict[str, ParamValue]]:
    """The tiles that waste least, on all threads, cut either way, with blocks that fit the caches."""
    threads = max(_number(count) for count in space.parameters["threads"])
    blocks: list[tuple[ParamValue, ParamValue]] = [(0, 0)]
    kc = next((block for block in (256, 512, 128) if block in space.parameters["kc"]), 0)
    nc = next((block for block in (256, 128, 512, 64) if block in space.parameters["nc"]), 0)
    if (kc, nc) != (0, 0):
        blocks.insert(0, (kc, nc))
    seeds: list[dict[str, ParamValue]] = []
    for (tile, vector), (kc_, nc_), image, split in (
        (best, block, image, split)
        for best in ranked[:3]
        for image in space.parameters["image"]
        for block in blocks
        for split in space.parameters["split"]
    ):
        made = {**_plain(space), "tile": tile, "vector": vector, "kc": kc_, "nc": nc_, "image": image}
        made |= {"split": split, "threads": threads}
        for nc_or_none in (nc_, 0):
            for chunks in (4, 2, 1):
                seed = {**made, "nc": nc_or_none, "chunks": chunks}
                if space.contains(seed):
                    seeds.append(seed)
                    break
            else:
                continue
            break
    return [seed for index, seed in enumerate(seeds) if seed not in seeds[:index]]


def pair(value: ParamValue) -> tuple[int, int]:
    assert isinstance(value, tuple)
    first, second = value
    return _number(first), _number(second)


def _number(value: ParamValue) -> int:
    assert isinstance(value, int)
    return value
