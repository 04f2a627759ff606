"""direct: convolution by its definition, from padded rows instead of patches; see cpp/direct.cpp."""

from __future__ import annotations

import ctypes
from functools import cache

from autotune import paths
from autotune.kernels import Algorithm, Built, Constants, compiler
from autotune.kernels.implicit_gemm_space import cost, fits, pair, tiles
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

SOURCE = paths.package_file("kernels", "cpp", "direct.cpp")
BLOCKS = (1, 2, 4, 8)
CHUNKS = (1, 2, 4, 8)
MOST_CHANNELS = 64
"""Per group. Beyond, a patch is copied once and used by many tiles, and implicit GEMM is as fast or faster."""


class _Plan(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("parallel", "packed", "bias", "offsets")),
        *((name, ctypes.c_int64) for name in ("n", "c", "h", "w", "k", "r", "s")),
        *((name, ctypes.c_int64) for name in ("out_h", "out_w", "stride_h", "stride_w", "dilation_h", "dilation_w")),
        *((name, ctypes.c_int64) for name in ("top", "left", "groups", "block", "threads", "tasks")),
    )


class Direct(Algorithm):
    """NCHW with few channels in, such as a network's first layer: any filter, stride, dilation, padding and groups, in
    f32 and f64; everything fused."""

    name = "direct"
    ops = ("conv2d",)

    def revision(self) -> str:
        return _revision()

    def shape_refusal(self, workload: Workload, hardware: HardwareProfile) -> str:
        w = conv(workload)
        general = unsupported("direct", w)
        if general:
            return general
        if w.layout != "nchw":
            return f"the direct kernel reads planes, NCHW, not {w.layout}"
        if w.r * w.s == 1:
            return "a 1x1 filter has no neighbours to share: that is a matrix product"
        if w.c // w.groups > MOST_CHANNELS:
            return f"the direct kernel takes up to {MOST_CHANNELS} channels per group, not {w.c // w.groups}"
        if w.groups > 1 and w.k // w.groups < 2:
            return "one filter per group is a depthwise convolution"
        return ""

    def software_refusal(self, workload: Workload) -> str:
        return compiler.missing_reason()

    def space(self, workload: Workload, hardware: HardwareProfile) -> SearchSpace:
        w = conv(workload)
        isa, itemsize, threads = native_isa(hardware), REALS[w.dtype][1], parallel_threads(hardware)
        rows, columns = w.k // w.groups, w.out_w
        parameters: dict[str, tuple[ParamValue, ...]] = {
            "tile": tuple(sorted(set(tiles(rows, columns, isa, itemsize)))),
            "vector": isa.vector_bytes,
            "unroll": (1, 3),
            "block": tuple(block for block in BLOCKS if block <= max(w.out_h, 1)),
            "threads": threads,
            "chunks": CHUNKS,
        }

        def fits_registers(p: Params) -> bool:
            mr, nr = pair(p["tile"])
            lanes = number(p, "vector") // itemsize
            return nr % lanes == 0 and fits(mr, nr // lanes, isa)

        def one_thread_has_one_way(p: Params) -> bool:
            return p["threads"] != 1 or p["chunks"] == 1

        def enough_work_to_split(p: Params) -> bool:
            units = w.n * w.groups * -(-w.out_h // number(p, "block"))
            return p["chunks"] == 1 or number(p, "threads") * number(p, "chunks") <= units

        constraints = (fits_registers, one_thread_has_one_way, enough_work_to_split)
        bare = SearchSpace(parameters, constraints)
        return SearchSpace(parameters, constraints, tuple(_seeds(bare, rows, columns, itemsize, max(threads))))

    def compile(self, workload: Workload, params: Params) -> None:
        compiler.shared_library(SOURCE, _defines(conv(workload), params))

    def build(self, workload: Workload, params: Params, constants: Constants) -> Built:
        import torch

        w = conv(workload)
        library = load(compiler.shared_library(SOURCE, _defines(w, params)))
        library.packed_size.argtypes, library.packed_size.restype = (ctypes.c_void_p,), ctypes.c_int64
        library.pack_weight.argtypes, library.pack_weight.restype = (ctypes.c_void_p,) * 4, None
        weight, bias = weight_and_bias(constants)
        plan = _plan(w, params)
        address = ctypes.addressof(plan)
        packed = torch.empty(library.packed_size(address), dtype=weight.dtype)
        offsets = torch.empty(w.depth, dtype=torch.int64)
        plain_weight = weight.resolve_neg().contiguous()
        library.pack_weight(address, plain_weight.data_ptr(), packed.data_ptr(), offsets.data_ptr())
        plan.packed, plan.offsets = packed.data_ptr(), offsets.data_ptr()
        plan.bias = bias.data_ptr() if bias is not None else 0
        elements = packed.numel() + plan.threads * library.scratch_size(address)
        call = kernel(w, library, plan, weight, bias, (packed, offsets, bias))
        return Built(call, elements * packed.element_size() + offsets.nbytes)


@cache
def _revision() -> str:
    return compiler.source_revision(SOURCE)


def _seeds(space: SearchSpace, rows: int, columns: int, itemsize: int, threads: int) -> list[dict[str, ParamValue]]:
    """The tiles that waste least, with blocks of a few rows."""
    found = [
        (tile, vector)
        for tile in space.parameters["tile"]
        for vector in space.parameters["vector"]
        if isinstance(vector, int)
    ]
    ranked = sorted(found, key=lambda item: cost(rows, columns, pair(item[0]), item[1], itemsize))
    seeds: list[dict[str, ParamValue]] = []
    for tile, vector in ranked:
        for block in (4, 2, 1):
            for chunks in (4, 2, 1):
                seed: dict[str, ParamValue] = {
                    "tile": tile, "vector": vector, "unroll": 3, "block": block, "threads": threads, "chunks": chunks,
                }  # fmt: skip
                if space.contains(seed) and seed not in seeds:
                    seeds.append(seed)
                    break
        if len(seeds) >= 6:
            break
    return seeds


def _defines(w: Conv2d, params: Params) -> dict[str, str | int]:
    real, itemsize = REALS[w.dtype]
    tile: Any = params["tile"]
    lanes = number(params, "vector") // itemsize
    return {
        "REAL": real,
        "LANES": lanes,
        "MR": int(tile[0]),
        "NV": int(tile[1]) // lanes,
        "UNROLL": number(params, "unroll"),
        "PREFETCH": 0,
        "ACT": ACTIVATION_CODES[w.activation],
    }


def _plan(w: Conv2d, params: Params) -> _Plan:
    from autotune.kernels import gomp

    threads = number(params, "threads")
    top, _, left, _ = w.sides
    return _Plan(
        parallel=gomp.parallel_address() if threads > 1 else 0,
        **{name: getattr(w, name) for name in ("n", "c", "h", "w", "k", "r", "s", "out_h", "out_w", "groups")},
        stride_h=w.strides[0],
        stride_w=w.strides[1],
        dilation_h=w.dilations[0],
        dilation_w=w.dilations[1],
        top=top,
        left=left,
        block=number(params, "block"),
        threads=threads,
        tasks=threads * number(params, "chunks"),
    )
