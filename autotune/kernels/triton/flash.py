"""triton_flash: attention on GPUs, prompts and decoding steps alike; see flash_kernel.py for the algorithm."""

from __future__ import annotations

import math

from autotune import paths
from autotune.dtypes import ITEMSIZE_BYTES
from autotune.hardware.gpu_limits import limits_of
from autotune.kernels import Built, Constants
from autotune.kernels.native import number
from autotune.kernels.triton import ELEMENTS, Launch, Needs, TritonAlgorithm
from autotune.kernels.triton.dot import COPY_BYTES
from autotune.noun import Noun, noun
from autotune.ops.attention import Attention, attention
from autotune.space import SearchSpace

TYPE_CHECKING = False
if TYPE_CHECKING:
    import torch

    from autotune.ops import Kernel
    from autotune.space import Params
    from autotune.types import HardwareProfile, ParamValue, Workload

KERNELS = "autotune.kernels.triton.flash_kernel"
LOG2_E = 1.4426950408889634
SMALLEST = 16
"""Of a tile's sides: what one instruction of a tensor core takes."""
MOST_HEAD_DIM = 256
MOST_POSITIONS = 2**31 - 4096
"""Rows and keys are counted in 32 bits, and a tile may reach beyond; offsets are 64."""
MOST_IEEE_PRODUCTS = 64 * 64 * 32
"""Of an "ieee" f32 step: its operands are held in registers, and beyond this the compiler takes minutes to spill."""

QUERIES_SHARED = ("sm_80", "sm_86", "sm_87", "sm_89", "sm_90")
"""Where tensor cores read the queries from shared memory, in 16 bits."""

ROWS = (16, 32, 64, 128)
KEYS = (16, 32, 64, 128)
SPLITS = (1, 2, 4, 8, 16, 32, 64)
WARPS = (1, 2, 4, 8)
STAGES = (1, 2, 3, 4)
WAVES = 4
"""Programs per multiprocessor beyond which splitting keys gains nothing."""

SEEDS = (
    (128, 64, 4, 3), (128, 128, 8, 3), (128, 64, 8, 2), (64, 64, 4, 3), (64, 128, 4, 2), (64, 32, 4, 2),
    (16, 64, 4, 3), (16, 128, 4, 2), (32, 64, 4, 2), (16, 32, 2, 3), (16, 16, 1, 2), (32, 32, 4, 1),
)  # fmt: skip
"""(rows, keys, warps, stages): large tiles for prompts, flat ones for decoding."""


@noun
class Tile(Noun):
    """The parameters of a config as numbers."""

    m: int
    n: int
    split: int
    warps: int
    stages: int
    precision: str = "ieee"

    @classmethod
    def of(cls, params: Params) -> Tile:
        m, n, split, warps, stages = (number(params, name) for name in ("rows", "keys", "split", "warps", "stages"))
        return cls(m, n, split, warps, stages, str(params.get("precision", "ieee")))


class TritonFlash(TritonAlgorithm):
    """Any lengths and strides (elements of a row side by side), causal or not, grouped queries, heads of up to 256.

    - `rows`, `keys`: of a tile; rows are the queries of all heads that share keys. `warps`, `stages`: Triton's.
    - `split`: parts that each tile's keys are cut into; beyond 1 a second kernel joins them (Flash-Decoding).
    - `precision` (f32): as of `triton_gemm`.
    """

    name = "triton_flash"
    ops = ("attention",)
    sources = tuple(paths.package_file("kernels", "triton", f"{name}_kernel.py") for name in ("flash", "tile"))

    def workload_refusal(self, workload: Workload, hardware: HardwareProfile) -> str:
        w = attention(workload)
        if w.dtype not in ELEMENTS:
            return f"the Triton attention computes {', '.join(ELEMENTS)}, not {w.dtype}"
        if w.head_dim > MOST_HEAD_DIM:
            return f"the Triton attention holds a row of up to {MOST_HEAD_DIM} elements, not {w.head_dim}"
        if max(w.q_len * w.group, w.kv_len) > MOST_POSITIONS:
            return "the Triton attention counts rows and keys in 32 bits"
        return ""

    def space(self, workload: Workload, hardware: HardwareProfile) -> SearchSpace:
        w = attention(workload)
        rows = _power_of_two(w.q_len * w.group)
        parameters: dict[str, tuple[ParamValue, ...]] = {
            "rows": tuple(m for m in ROWS if m <= max(rows, SMALLEST)),
            "keys": tuple(n for n in KEYS if n <= max(_power_of_two(w.kv_len), SMALLEST)),
            "split": tuple(s for s in SPLITS if s == 1 or s * SMALLEST <= w.kv_len),
            "warps": WARPS,
            "stages": STAGES,
        }
        if w.dtype == "f32":
            parameters["precision"] = _precisions(hardware.arch)
        most = WAVES * hardware.physical_cores

        def worth_splitting(p: Params) -> bool:
            tile = Tile.of(p)
            return tile.split == 1 or (tile.split * tile.n <= w.kv_len and _blocks(w, tile) <= most)

        def compiles_in_time(p: Params) -> bool:
            tile = Tile.of(p)
            ieee = w.dtype == "f32" and tile.precision == "ieee"
            return not ieee or tile.m * tile.n * _padded(w.head_dim) <= MOST_IEEE_PRODUCTS

        def warps_have_work(p: Params) -> bool:
            tile = Tile.of(p)
            return tile.warps * 256 <= tile.m * tile.n or tile.warps == 1

        constraints = (worth_splitting, compiles_in_time, warps_have_work, self.fits(workload, hardware.arch))
        bare = SearchSpace(parameters, constraints)
        return SearchSpace(parameters, constraints, tuple(_seeds(w, bare, hardware)))

    def needs(self, workload: Workload, params: Params, arch: str) -> Needs:
        w, tile = attention(workload), Tile.of(params)
        limits = limits_of(arch)
        assert limits is not None
        threads = tile.warps * limits.warp_size
        sums = 0 if arch in ("sm_100", "sm_103") else tile.m * _padded(w.head_dim) // threads
        shared = shared_bytes(tile, w.dtype, w.head_dim, arch, threads) if w.kv_len > 1 else 0
        return Needs(shared, threads, sums)

    def launches(self, workload: Workload, params: Params) -> tuple[Launch, ...]:
        w, tile = attention(workload), Tile.of(params)
        first = _flash_launch(w, tile)
        return (first,) if tile.split == 1 else (first, _join_launch(w, tile))

    def build(self, workload: Workload, params: Params, constants: Constants) -> Built:
        w, tile = attention(workload), Tile.of(params)
        held = part_bytes(w, tile.split)
        return Built(_kernel(w, tile, self.launches(workload, params)), held)


def part_bytes(w: Attention, split: int) -> int:
    """What a split writes, and reads again when its parts are joined."""
    return 4 * split * w.batch * w.heads * w.q_len * (w.head_dim + 2) if split > 1 else 0


def shared_bytes(tile: Tile, dtype: str, head_dim: int, arch: str, threads: int) -> int:
    """Of a block, at least: a tile of keys and one of values for every stage in flight, and the queries.

    What Triton 3.9 was seen to allocate on sm_80, sm_90 and gfx942; see dot.py for what is kept in flight, and when.
    The probabilities pass through shared memory only where warps share rows, so they are not counted.
    """
    item, padded = ITEMSIZE_BYTES[dtype], _padded(head_dim)
    together = tile.n * padded // threads * item >= COPY_BYTES and head_dim % 16 == 0
    if tile.stages < 2 or not together:
        return 0
    warp_groups = arch == "sm_90" and tile.m >= 64 and tile.warps >= 4 and dtype != "f32"
    flying = 2 * tile.n * padded * (tile.stages if warp_groups else tile.stages - 1)
    queries = tile.m * padded if arch in QUERIES_SHARED and dtype != "f32" else 0
    return (flying + queries) * item


def _precisions(arch: str) -> tuple[str, ...]:
    return ("tf32x3", "ieee") if arch.startswith("sm_") and arch != "sm_75" else ("ieee",)


def _power_of_two(value: int) -> int:
    return 1 << max(value - 1, 0).bit_length()


def _padded(head_dim: int) -> int:
    return max(_power_of_two(head_dim), SMALLEST)


def _blocks(w: Attention, tile: Tile) -> int:
    return math.ceil(w.q_len * w.group / tile.m) * w.batch * w.kv_heads * tile.split


def _strides(w: Attention, heads: int, length: int) -> tuple[int, int, int]:
    """(batch, head, position) strides of an operand laid out as the workload says."""
    if w.layout == "bhsd":
        return heads * length * w.head_dim, length * w.head_dim, w.head_dim
    return heads * length * w.head_dim, w.head_dim, heads * w.head_dim


def _scalars(
    w: Attention, q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], y: tuple[int, ...]
) -> dict[str, int | float]:
    named = {
        f"{name}_{axis}": stride
        for name, strides in (("q", q), ("k", k), ("v", v), ("y", y))
        for axis, stride in zip(("batch", "head", "row"), strides, strict=True)
    }
    return {"scale": w.head_dim**-0.5 * LOG2_E, "kv_heads": w.kv_heads, "group": w.group, **named}


def _flash_launch(w: Attention, tile: Tile) -> Launch:
    element = ELEMENTS[w.dtype]
    queries, keys = _strides(w, w.heads, w.q_len), _strides(w, w.kv_heads, w.kv_len)
    result = (w.q_len * w.heads * w.head_dim, w.head_dim, w.heads * w.head_dim)
    return Launch(
        f"{KERNELS}:flash",
        {"q": element, "k": element, "v": element, "y": element, "parts": "fp32"},
        {
            **_scalars(w, queries, keys, keys, result),
            "q_len": w.q_len, "kv_len": w.kv_len, "units": w.batch * w.kv_heads,
        },
        {
            "HEAD_DIM": w.head_dim, "BLOCK_D": _padded(w.head_dim), "BLOCK_M": tile.m, "BLOCK_N": tile.n,
            "SPLITS": tile.split, "CAUSAL": w.causal, "PRECISION": tile.precision,
        },
        _blocks(w, tile),
        tile.warps,
        tile.stages,
    )  # fmt: skip


def _join_launch(w: Attention, tile: Tile) -> Launch:
    return Launch(
        f"{KERNELS}:join",
        {"parts": "fp32", "y": ELEMENTS[w.dtype]},
        {
            "q_len": w.q_len, "kv_heads": w.kv_heads, "group": w.group, "units": w.batch * w.kv_heads,
            "y_batch": w.q_len * w.heads * w.head_dim, "y_head": w.head_dim, "y_row": w.heads * w.head_dim,
        },
        {"HEAD_DIM": w.head_dim, "BLOCK_D": _padded(w.head_dim), "SPLITS": tile.split},
        w.batch * w.heads * w.q_len,
        1,
    )  # fmt: skip


def _kernel(w: Attention, tile: Tile, launches: tuple[Launch, ...]) -> Kernel:
    """(q, k, v) → a fresh [b, h, s, d] stored as [b, s, h, d]."""
    import torch

    from autotune.kernels.triton.running import bind

    attend = bind(launches[0])
    join = bind(launches[1]) if tile.split > 1 else None

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = _readable(q), _readable(k), _readable(v)
        batch, heads, q_len, head_dim = q.shape
        kv_heads, kv_len = k.shape[1:3]
        rows, units = q_len * w.group, batch * kv_heads
        y = q.new_empty((batch, q_len, heads, head_dim)).transpose(1, 2)
        parts = y
        if join is not None:
            parts = torch.empty(tile.split * units * rows * (head_dim + 2), dtype=torch.float32, device=q.device)
        scalars = _scalars(w, q.stride()[:3], k.stride()[:3], v.stride()[:3], y.stride()[:3])
        blocks = math.ceil(rows / tile.m) * units * tile.split
        attend(blocks, q=q, k=k, v=v, y=y, parts=parts, q_len=q_len, kv_len=kv_len, units=units, **scalars)
        if join is not None:
            joined = {name: scalars[name] for name in ("kv_heads", "group", "y_batch", "y_head", "y_row")}
            join(rows * units, parts=parts, y=y, q_len=q_len, units=units, **joined)
        return y

    return call


def _readable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with elements of a row side by side, and no lazy sign."""
    tensor = tensor.detach().resolve_neg()
    return tensor if tensor.stride(3) == 1 else tensor.contiguous()


def _seeds(w: Attention, space: SearchSpace, hardware: HardwareProfile) -> list[dict[str, ParamValue]]:
    """Each tile with its keys in one part, and in as many as fill the device."""
    seeds: list[dict[str, ParamValue]] = []
    for m, n, warps, stages in SEEDS:
        for split in _filling(w, m, hardware):
            for precision in space.parameters.get("precision", ("",)):
                seed: dict[str, ParamValue] = {"rows": m, "keys": n, "split": split, "warps": warps, "stages": stages}
                if precision:
                    seed["precision"] = precision
                if space.contains(seed) and seed not in seeds:
                    seeds.append(seed)
    return seeds[:12]


def _filling(w: Attention, m: int, hardware: HardwareProfile) -> tuple[int, ...]:
    tiles = max(_blocks(w, Tile(m, SMALLEST, 1, 1, 1)), 1)
    wanted = 2 * hardware.physical_cores // tiles
    return tuple(dict.fromkeys((max([s for s in SPLITS if s <= wanted], default=1), 1)))
