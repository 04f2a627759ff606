"""stream_kv: attention of few queries that reads each key and value once per group of heads; see cpp/stream_kv.cpp."""

from __future__ import annotations

import ctypes
from functools import cache

from autotune import paths
from autotune.errors import Unavailable
from autotune.kernels import Algorithm, Built, Constants, compiler
from autotune.kernels.native import elements, native_isa, number, parallel_threads
from autotune.ops.attention import Attention, attention, in_layout
from autotune.space import SearchSpace

TYPE_CHECKING = False
if TYPE_CHECKING:
    import torch

    from autotune.ops import Kernel
    from autotune.space import Params
    from autotune.types import HardwareProfile, ParamValue, Workload

SOURCE = paths.package_file("kernels", "cpp", "stream_kv.cpp")
MOST_ROWS = 128
TILES = (1, 2, 4, 8)
BLOCKS = (32, 64, 128, 256)
PREFETCHES = (0, 4, 12)
SPLITS = (1, 2, 4, 8, 16)
ENOUGH_TASKS = 8
"""Tasks per thread beyond which splitting a head's keys gains nothing."""


class _Plan(ctypes.Structure):
    _fields_ = (
        ("parallel", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("kv_heads", "group", "threads", "splits", "causal")),
    )


_Call = ctypes.c_int64 * 12
"""batch, q_len, kv_len, and the strides of q, k and v: struct Call of the source."""


class StreamKv(Algorithm):
    """Decoding and short continuations, where reading keys and values is what takes the time; any strides.

    `tile`: rows (queries of a group) computed at once. `block`: keys at once. `splits`: tasks that share one head's
    keys. `prefetch`: keys ahead.
    """

    name = "stream_kv"
    ops = ("attention",)

    def revision(self) -> str:
        return _revision()

    def shape_refusal(self, workload: Workload, hardware: HardwareProfile) -> str:
        w = attention(workload)
        rows = w.group * w.q_len
        if rows > MOST_ROWS:
            return f"it streams keys past up to {MOST_ROWS} queries of a group, not {rows}"
        if not _widths(w, hardware):
            return f"head_dim={w.head_dim} is not a multiple of a vector of this machine"
        return ""

    def software_refusal(self, workload: Workload) -> str:
        return compiler.missing_reason()

    def space(self, workload: Workload, hardware: HardwareProfile) -> SearchSpace:
        w = attention(workload)
        widths, threads = _widths(w, hardware), parallel_threads(hardware)
        rows, units = w.group * max(w.q_len, 1), w.batch * w.kv_heads
        lanes = widths[0] // (8 if w.dtype == "f64" else 4)
        parameters: dict[str, tuple[ParamValue, ...]] = {
            "tile": tuple(tile for tile in TILES if tile <= lanes and tile < 2 * rows),
            "block": tuple(block for block in BLOCKS if block < 2 * w.kv_len) or BLOCKS[:1],
            "prefetch": PREFETCHES,
            "splits": SPLITS,
            "vector": widths,
            "threads": threads,
        }

        def enough_to_split(p: Params) -> bool:
            splits = number(p, "splits")
            if splits == 1:
                return True
            whole_blocks = splits * number(p, "block") <= max(w.kv_len, 1)
            return number(p, "threads") > 1 and whole_blocks and splits * units <= ENOUGH_TASKS * number(p, "threads")

        def tile_fits_vector(p: Params) -> bool:
            return number(p, "tile") * (8 if w.dtype == "f64" else 4) <= number(p, "vector")

        constraints = (enough_to_split, tile_fits_vector)
        bare = SearchSpace(parameters, constraints)
        return SearchSpace(parameters, constraints, tuple(_seeds(bare, rows, units, max(threads))))

    def compile(self, workload: Workload, params: Params) -> None:
        compiler.shared_library(SOURCE, _defines(attention(workload), params))

    def build(self, workload: Workload, params: Params, constants: Constants) -> Built:
        w = attention(workload)
        library = _load(compiler.shared_library(SOURCE, _defines(w, params)))
        plan = _plan(w, params)
        tile = number(params, "tile")
        rows = -(-w.group * w.q_len // tile) * tile
        parts = w.batch * w.kv_heads * plan.splits * library.part_size(rows) if plan.splits > 1 else 0
        elements_held = plan.threads * library.scratch_size(rows) + parts
        return Built(_kernel(w, library, plan), elements_held * (8 if w.dtype == "f64" else 4))


@cache
def _revision() -> str:
    return compiler.source_revision(SOURCE)


@cache
def _load(path: str) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise Unavailable(f"the compiled kernel {path} does not load: {error}") from error
    pointer = ctypes.c_void_p
    for size in (library.scratch_size, library.part_size):
        size.argtypes, size.restype = (ctypes.c_int64,), ctypes.c_int64
    library.attend.argtypes, library.attend.restype = (pointer, ctypes.POINTER(_Call), *[pointer] * 4), ctypes.c_int
    return library


def _kernel(w: Attention, library: ctypes.CDLL, plan: ctypes.Structure) -> Kernel:
    """(q, k, v) → a fresh [b, h, s, d] stored as [b, s, h, d]. Without memory for scratch, torch takes over."""
    import torch

    from autotune import registry

    address, run, empty = ctypes.addressof(plan), library.attend, torch.empty
    heads, head_dim = w.heads, w.head_dim
    plain = registry.op(w.op).plain(w, {})

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = readable(q), readable(k), readable(v)
        batch, _, q_len, _ = q.shape
        y = empty((batch, q_len, heads, head_dim), dtype=q.dtype)
        sizes = _Call(batch, q_len, k.shape[2], *q.stride()[:3], *k.stride()[:3], *v.stride()[:3])
        if run(address, sizes, q.data_ptr(), k.data_ptr(), v.data_ptr(), y.data_ptr()):
            return in_layout(plain(q, k, v), "bshd")
        return y.transpose(1, 2)

    call._keep = plan  # type: ignore[attr-defined]  # the kernel holds its address
    return call


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with elements of a row side by side, and no lazy sign."""
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    return tensor.detach() if tensor.stride(3) == 1 else tensor.detach().contiguous()


def _widths(w: Attention, hardware: HardwareProfile) -> tuple[int, ...]:
    """Vector widths in bytes (of what is computed with), widest first, that divide a head."""
    item = 8 if w.dtype == "f64" else 4
    every = sorted({*native_isa(hardware).vector_bytes, 16}, reverse=True)
    fitting = [width for width in every if w.head_dim * item % width == 0]
    return tuple(fitting[:2])


def _seeds(space: SearchSpace, rows: int, units: int, threads: int) -> list[dict[str, ParamValue]]:
    """The tile that holds all rows, then half of it; heads split until each thread has four tasks or so."""
    seeds: list[dict[str, ParamValue]] = []
    for tile in (4, 8, 2, 1):
        for prefetch in (0, 4):
            for block in (64, 128, 32):
                for splits in (*[s for s in SPLITS if s * units <= max(units, 4 * threads)][-1:], 1):
                    seed: dict[str, ParamValue] = {
                        "tile": min(tile, 1 << (rows - 1).bit_length()), "block": block, "prefetch": prefetch,
                        "splits": splits, "vector": space.parameters["vector"][0], "threads": threads,
                    }  # fmt: skip
                    if space.contains(seed) and seed not in seeds:
                        seeds.append(seed)
                        break
                else:
                    continue
                break
    return seeds or [member for member, _ in zip(space, range(1), strict=False)]


def _defines(w: Attention, params: Params) -> dict[str, str | int]:
    return {
        **elements(w.dtype, params),
        "HEAD_DIM": w.head_dim,
        "TILE": number(params, "tile"),
        "BLOCK": number(params, "block"),
        "PREFETCH": number(params, "prefetch"),
    }


def _plan(w: Attention, params: Params) -> _Plan:
    from autotune.kernels import gomp

    threads = number(params, "threads")
    return _Plan(
        parallel=gomp.parallel_address() if threads > 1 else 0,
        kv_heads=w.kv_heads,
        group=w.group,
        threads=threads,
        splits=number(params, "splits"),
        causal=int(w.causal),
    )
