"""winograd: 3x3 convolutions with 2.25 (m=2) or 4 (m=4) times fewer products; see cpp/winograd.cpp."""

from __future__ import annotations

import ctypes
import math
from functools import cache

from autotune import paths
from autotune.dtypes import UNIT_ROUNDOFF
from autotune.kernels import Algorithm, Built, Constants, compiler
from autotune.kernels.native import REALS, native_isa, number, parallel_threads
from autotune.kernels.operands import weight_and_bias
from autotune.kernels.own_conv import ACTIVATION_CODES, kernel, load, unsupported
from autotune.ops.conv2d import Conv2d, conv
from autotune.space import SearchSpace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from autotune.space import Params
    from autotune.types import HardwareProfile, ParamValue, Workload

SOURCE = paths.package_file("kernels", "cpp", "winograd.cpp")
SPLITS = ("tiles", "channels")
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 16)
BLOCKS = (16, 32, 64, 128, 256)
"""Tiles per block; 0 is all of them."""

FEW_TILES = 64
"""Up to this many tiles, threads first share out the channels."""

AMPLIFICATION = 2.4
"""Of rounding errors, of m=4 against a direct sum; see `Winograd.error_bound`."""


class _Plan(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("parallel", "filters", "bias")),
        *((name, ctypes.c_int64) for name in ("n", "c", "h", "w", "k", "out_h", "out_w", "top", "left")),
        *((name, ctypes.c_int64) for name in ("block", "threads", "tasks", "split")),
    )


class Winograd(Algorithm):
    """F(m x m, 3x3). Filters [k, c, 3, 3] are transformed once, to (m + 2)² / 9 times their size.

    A NaN in the image spreads over the tiles that read it, and so does an infinity, as NaN.

    - `m`: outputs of a tile per dimension.
    - `tile`: (tiles, output channels) of the register tile. `vector`: bytes.
    - `unroll`, `prefetch`: input channels per loop step, and ahead in the filters.
    - `block`: tiles whose transforms are kept at a time; 0 means all.
    - `split`: what threads share out: blocks of "tiles", or the output "channels" of each block, in `chunks` portions
      per thread; then every thread transforms the input for itself.
    """

    name = "winograd"
    ops = ("conv2d",)

    def revision(self) -> str:
        return _revision()

    def shape_refusal(self, workload: Workload, hardware: HardwareProfile) -> str:
        w = conv(workload)
        general = unsupported("Winograd", w)
        if general:
            return general
        return not_for_winograd(w)

    def software_refusal(self, workload: Workload) -> str:
        return compiler.missing_reason()

    def space(self, workload: Workload, hardware: HardwareProfile) -> SearchSpace:
        return _space(conv(workload), hardware)

    def error_bound(self, workload: Workload) -> float:
        """A · (64·u + 8·u·√depth), A = 2.4, u the unit roundoff, depth = 9·c: what the worse m, 4, may lose.

        In one dimension let A, G and B be the transforms of the output (m rows), filter and input, of ||G_i|| and
        ||B_i|| the norms of rows. For independent data of unit variance, products at position (i, j) have the deviation
        ||G_i||·||G_j||·||B_i||·||B_j||; a sum of c of them has √c times that, and rounding errors that are, relative
        to it, of the order u·√c, as in any sum. The output transform adds them up to an error of u·c·a_k·a_l at
        output (k, l), with a_k² = Σ_i A_ki²·||G_i||²·||B_i||². A direct sum of depth products has u·depth = u·c·9, so
        the amplification is a_k·a_l / 9. Over (k, l) that is at most 5/9 for m=2 (no more than a direct sum),
        and 21.4/9 = 2.4 for m=4 with the points 0, ±2/3, ±3/2 (94/9 = 10 with the usual ±1, ±2).
        8·u·√depth is the tolerance of a direct sum (`product_tolerance`). 64·u is for the transforms themselves:
        some ten roundings of terms that are up to six times as large as their sum. Measured: 1e-7 to 7e-7 for m=2,
        2e-6 to 5e-6 for m=4, for f32 with 1 to 512 channels; a lookup goes by the error of each measured config.
        """
        return error_bound(conv(workload))

    def compile(self, workload: Workload, params: Params) -> None:
        compiler.shared_library(SOURCE, _defines(conv(workload), params))

    def build(self, workload: Workload, params: Params, constants: Constants) -> Built:
        w = conv(workload)
        return _build(_load(compiler.shared_library(SOURCE, _defines(w, params))), w, params, constants)


def not_for_winograd(w: Conv2d) -> str:
    """Why no kernel can compute that by Winograd's algorithm; "" when one can."""
    if (w.r, w.s) != (3, 3):
        return f"the Winograd kernel takes 3x3 filters, not {w.r}x{w.s}"
    if w.strides != (1, 1):
        return "Winograd tiles need stride 1: with a stride, neighbouring outputs share too little of their input"
    if w.dilations != (1, 1):
        return "Winograd tiles need dilation 1: a dilated filter does not cover neighbouring pixels"
    if w.groups != 1:
        return f"the Winograd kernel takes ungrouped convolutions, not groups={w.groups}"
    return ""


def error_bound(w: Conv2d) -> float:
    """See `Winograd.error_bound`."""
    return AMPLIFICATION * UNIT_ROUNDOFF[w.dtype] * (64 + 8 * math.sqrt(w.depth))


@cache
def _revision() -> str:
    return compiler.source_revision(SOURCE)


def _tiles(w: Conv2d, m: int) -> int:
    return w.n * -(-w.out_h // m) * -(-w.out_w // m)


def _block_count(w: Conv2d, p: Params) -> int:
    """Blocks that a call is cut into, as Blocks in winograd.cpp counts them."""
    (mr, _), threads = _pair(p["tile"]), number(p, "threads")
    groups = -(-_tiles(w, number(p, "m")) // mr)
    shares = threads if p["split"] == "tiles" else 1
    wanted = -(-groups // max(1, number(p, "block") // mr)) if p["block"] else 1
    return min(groups, -(-wanted // shares) * shares)


def _space(w: Conv2d, hardware: HardwareProfile) -> SearchSpace:
    _, itemsize = REALS[w.dtype]
    isa = native_isa(hardware)
    most_tiles, most_panels = _tiles(w, 2), -(-w.k // (isa.vector_bytes[-1] // itemsize))
    threads = tuple(t for t in parallel_threads(hardware) if t <= max(1, most_tiles, most_panels))
    tiles = {
        (mr, vectors * (width // itemsize))
        for width in isa.vector_bytes
        for mr in ROWS
        for vectors in (1, 2, 3, 4, 6)
        if (mr == 1 or mr <= most_tiles) and mr * vectors + vectors + 1 <= isa.registers
    }
    parameters: dict[str, tuple[ParamValue, ...]] = {
        "m": (2, 4),
        "tile": tuple(sorted(tiles)),
        "vector": isa.vector_bytes,
        "unroll": tuple(unroll for unroll in (1, 2, 4, 8) if unroll <= isa.vector_bytes[0] // itemsize),
        "prefetch": (0, 8, 16),
        "block": (0, *(block for block in BLOCKS if block < most_tiles)),
        "split": SPLITS if max(threads) > 1 < most_panels else SPLITS[:1],
        "threads": threads,
        "chunks": tuple(chunks for chunks in (1, 2, 4) if chunks == 1 or 2 * chunks <= most_panels),
    }

    def panels(p: Params) -> int:
        return -(-w.k // _pair(p["tile"])[1])

    def fits_registers(p: Params) -> bool:
        mr, nr = _pair(p["tile"])
        lanes = number(p, "vector") // itemsize
        vectors = nr // lanes
        hides_latency = mr * vectors >= min(8, _tiles(w, number(p, "m")))
        return nr % lanes == 0 and mr * vectors + vectors + 1 <= isa.registers and vectors <= 6 and hides_latency

    def few_idle_lanes(p: Params) -> bool:
        """No panel that the channels do not reach into, no tile with as many idle rows as busy ones."""
        mr, nr = _pair(p["tile"])
        lanes, count = number(p, "vector") // itemsize, _tiles(w, number(p, "m"))
        return nr < w.k + lanes and (mr == 1 or -(-count // mr) * mr < 2 * count)

    def unrolls_within_a_vector(p: Params) -> bool:
        return number(p, "unroll") <= number(p, "vector") // itemsize

    def each_thread_has_work(p: Params) -> bool:
        many = number(p, "threads")
        if p["split"] == "tiles":
            return p["chunks"] == 1 and (many == 1 or _block_count(w, p) >= many)
        return many > 1 and panels(p) >= many * number(p, "chunks")

    def blocks_differ(p: Params) -> bool:
        """Of block sizes that cut the tiles into equally many blocks, the first."""
        earlier = parameters["block"][: parameters["block"].index(p["block"])]
        return all(_block_count(w, {**p, "block": block}) != _block_count(w, p) for block in earlier)

    constraints = (fits_registers, few_idle_lanes, unrolls_within_a_vector, each_thread_has_work, blocks_differ)
    bare = SearchSpace(parameters, constraints)
    return SearchSpace(parameters, constraints, tuple(_seeds(bare, w, isa.vector_bytes[0] // itemsize)))


def _seeds(space: SearchSpace, w: Conv2d, lanes: int) -> list[dict[str, ParamValue]]:
    """Per m the two best register tiles; channels split where tiles are few, for the best tile of m=4 both ways."""
    found: list[dict[str, ParamValue]] = []
    for m in (4, 2):
        few = _tiles(w, m) <= FEW_TILES
        for rank, tile in enumerate(_seed_tiles(space, w, m, lanes)):
            order = ("channels", "tiles") if few else ("tiles", "channels")
            candidates = [
                {
                    "m": m, "tile": tile, "vector": space.parameters["vector"][0], "unroll": unroll, "prefetch": 0,
                    "block": block, "split": split, "threads": threads, "chunks": 1,
                }
                for threads in reversed(space.parameters["threads"])
                for split in order
                for block in ((0,) if split == "channels" else (32, 16, 64, 0))
                for unroll in (4, 2)
            ]  # fmt: skip
            valid = [candidate for candidate in candidates if space.contains(candidate)]
            found += valid[:1]
            if valid and rank == 0 and m == 4:
                other = [c for c in valid if c["split"] != found[-1]["split"] and c["threads"] == found[-1]["threads"]]
                found += other[:1]
    return found


def _seed_tiles(space: SearchSpace, w: Conv2d, m: int, lanes: int) -> list[tuple[int, int]]:
    count = max(_tiles(w, m), 1)
    streams = 1.5 if w.c >= 256 else 0.5  # a panel of filters beyond L1 costs each tile of rows more to read

    def cost(tile: tuple[int, int]) -> float:
        """Time per useful product: idle rows and columns, and what each multiplication has to load."""
        mr, nr = tile
        vectors = nr / lanes
        padded = -(-count // mr) * mr / count * -(-w.k // nr) * nr / w.k
        return padded * (1 + streams / mr + 0.3 / vectors + 4 / (mr * vectors) ** 2)

    return sorted((_pair(tile) for tile in space.parameters["tile"] if _pair(tile)[1] % lanes == 0), key=cost)[:2]


def _defines(w: Conv2d, params: Params) -> dict[str, str | int]:
    real, itemsize = REALS[w.dtype]
    mr, nr = _pair(params["tile"])
    lanes = number(params, "vector") // itemsize
    return {
        "REAL": real,
        "LANES": lanes,
        "MR": mr,
        "NV": nr // lanes,
        "UNROLL": number(params, "unroll"),
        "PREFETCH": number(params, "prefetch"),
        "ACT": ACTIVATION_CODES[w.activation],
        "OUT": number(params, "m"),
        "CHANNELS_LAST": int(w.layout == "channels_last"),
    }


def _build(library: ctypes.CDLL, w: Conv2d, params: Params, constants: Constants) -> Built:
    from autotune.kernels import gomp

    weight, bias = weight_and_bias(constants)
    weight = weight.resolve_neg().contiguous()
    packed = weight.new_empty(library.packed_size(w.k, w.c))
    library.pack_filters(weight.data_ptr(), w.k, w.c, packed.data_ptr())
    threads = number(params, "threads")
    plan = _Plan(
        parallel=gomp.parallel_address() if threads > 1 else 0,
        filters=packed.data_ptr(),
        bias=bias.data_ptr() if bias is not None else 0,
        n=w.n,
        c=w.c,
        h=w.h,
        w=w.w,
        k=w.k,
        out_h=w.out_h,
        out_w=w.out_w,
        top=w.sides[0],
        left=w.sides[2],
        block=number(params, "block") or _tiles(w, number(params, "m")),
        threads=threads,
        tasks=threads * number(params, "chunks"),
        split=SPLITS.index(str(params["split"])),
    )
    call = kernel(w, library, plan, weight, bias, (packed, bias))
    scratch = threads * library.scratch_size(ctypes.addressof(plan))
    return Built(call, (packed.numel() + scratch) * packed.element_size())


@cache
def _load(path: str) -> ctypes.CDLL:
    library = load(path)
    i64, pointer = ctypes.c_int64, ctypes.c_void_p
    library.packed_size.argtypes, library.packed_size.restype = (i64, i64), i64
    library.pack_filters.argtypes, library.pack_filters.restype = (pointer, i64, i64, pointer), None
    return library


def _pair(value: ParamValue) -> tuple[int, int]:
    pair: Any = value
    return int(pair[0]), int(pair[1])
