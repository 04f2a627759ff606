"""depthwise: one filter per output channel, unrolled, over blocks of outputs in registers; see cpp/depthwise.cpp."""

from __future__ import annotations

import ctypes
from functools import cache

from autotune import paths
from autotune.kernels import Algorithm, Built, Constants, compiler
from autotune.kernels.native import REALS, native_isa, number, parallel_threads
from autotune.kernels.operands import weight_and_bias
from autotune.kernels.own_conv import ACTIVATION_CODES, kernel, load, unsupported
from autotune.ops.conv2d import Conv2d, conv
from autotune.space import SearchSpace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autotune.space import Params
    from autotune.types import HardwareProfile, ParamValue, Workload

SOURCE = paths.package_file("kernels", "cpp", "depthwise.cpp")
MOST_TAPS = 64
ROWS = {"nchw": (1, 2, 3, 4, 7), "channels_last": (1, 2)}
COLUMNS = {"nchw": (1,), "channels_last": (1, 2, 4, 7)}
CHUNKS = (1, 2, 4, 8)


class _Plan(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("parallel", "weights", "bias")),
        *((name, ctypes.c_int64) for name in ("n", "c", "h", "w", "k", "out_h", "out_w", "top", "left")),
        *((name, ctypes.c_int64) for name in ("threads", "tasks")),
    )


class Depthwise(Algorithm):
    """groups = c in f32 and f64: any stride, dilation and padding, filters of up to 64 taps, everything fused.

    In NCHW k may be any multiple of c; in channels_last it is c.
    """

    name = "depthwise"
    ops = ("conv2d",)

    def revision(self) -> str:
        return _revision()

    def shape_refusal(self, workload: Workload, hardware: HardwareProfile) -> str:
        w = conv(workload)
        general = unsupported("depthwise", w)
        if general:
            return general
        if w.groups != w.c:
            return f"the depthwise kernel takes one group per channel, not {w.groups} for {w.c}"
        if w.layout == "channels_last" and w.k != w.c:
            return f"the depthwise kernel takes one filter per channel in channels_last, not {w.k // w.c}"
        if w.r * w.s > MOST_TAPS:
            return f"the depthwise kernel unrolls its filter, up to {MOST_TAPS} taps, not {w.r * w.s}"
        return ""

    def software_refusal(self, workload: Workload) -> str:
        return compiler.missing_reason()

    def space(self, workload: Workload, hardware: HardwareProfile) -> SearchSpace:
        w = conv(workload)
        threads = parallel_threads(hardware)
        units = w.n * w.k if w.layout == "nchw" else w.n * w.out_h
        widths = _widths(w, native_isa(hardware).vector_bytes)
        parameters: dict[str, tuple[ParamValue, ...]] = {
            "rows": tuple(rows for rows in ROWS[w.layout] if rows <= w.out_h),
            "columns": tuple(columns for columns in COLUMNS[w.layout] if columns <= w.out_w),
            "vector": widths,
            "threads": threads,
            "chunks": CHUNKS,
        }

        def one_thread_has_one_way(p: Params) -> bool:
            return p["threads"] != 1 or p["chunks"] == 1

        def enough_work_to_split(p: Params) -> bool:
            blocks = units if w.layout == "nchw" else w.n * -(-w.out_h // number(p, "rows"))
            return p["chunks"] == 1 or number(p, "threads") * number(p, "chunks") <= blocks

        constraints = (one_thread_has_one_way, enough_work_to_split)
        bare = SearchSpace(parameters, constraints)
        return SearchSpace(parameters, constraints, tuple(_seeds(bare, max(threads))))

    def compile(self, workload: Workload, params: Params) -> None:
        compiler.shared_library(SOURCE, _defines(conv(workload), params))

    def build(self, workload: Workload, params: Params, constants: Constants) -> Built:
        w = conv(workload)
        library = load(compiler.shared_library(SOURCE, _defines(w, params)))
        weight, bias = weight_and_bias(constants)
        packed = weight.resolve_neg().reshape(w.k, w.r * w.s)
        packed = (packed if w.layout == "nchw" else packed.t()).contiguous()
        plan = _plan(w, params)
        plan.weights = packed.data_ptr()
        plan.bias = bias.data_ptr() if bias is not None else 0
        own = 0 if packed.data_ptr() == weight.data_ptr() else packed.numel()
        elements = own + plan.threads * library.scratch_size(ctypes.addressof(plan))
        return Built(kernel(w, library, plan, weight, bias, (packed, bias)), elements * packed.element_size())


@cache
def _revision() -> str:
    return compiler.source_revision(SOURCE)


def _widths(w: Conv2d, native: tuple[int, ...]) -> tuple[int, ...]:
    """Vector widths in bytes, widest first, that a line of outputs fills: by more than half, or wholly for channels."""
    itemsize = REALS[w.dtype][1]
    line = w.out_w * itemsize if w.layout == "nchw" else w.c * itemsize
    every = sorted({*native, 16, 8, itemsize} - {4 if itemsize == 8 else 0}, reverse=True)
    if w.layout == "channels_last":
        fitting = [width for width in every if width <= line]
    else:
        fitting = [width for width in every if width < 2 * line] or [every[-1]]
    usual = [width for width in fitting if width in native]
    return tuple(usual or fitting[:1])


def _seeds(space: SearchSpace, threads: int) -> list[dict[str, ParamValue]]:
    """Blocks of about four outputs, in each width, then the largest ones."""
    seeds: list[dict[str, ParamValue]] = []
    for rows, columns in ((4, 1), (1, 4), (7, 1), (2, 4), (2, 1), (1, 1)):
        for vector in space.parameters["vector"]:
            for chunks in (4, 2, 1):
                seed: dict[str, ParamValue] = {
                    "rows": rows, "columns": columns, "vector": vector,
                    "threads": threads, "chunks": 1 if threads == 1 else chunks,
                }  # fmt: skip
                if space.contains(seed):
                    seeds.append(seed)
                    break
    return [seed for index, seed in enumerate(seeds) if seed not in seeds[:index]]


def _defines(w: Conv2d, params: Params) -> dict[str, str | int]:
    real, itemsize = REALS[w.dtype]
    return {
        "REAL": real,
        "LANES": number(params, "vector") // itemsize,
        "MR": 1,
        "NV": 1,
        "UNROLL": 1,
        "PREFETCH": 0,
        "ACT": ACTIVATION_CODES[w.activation],
        "CHANNELS_LAST": int(w.layout == "channels_last"),
        "FILTER_H": w.r,
        "FILTER_W": w.s,
        "STRIDE_H": w.strides[0],
        "STRIDE_W": w.strides[1],
        "DILATION_H": w.dilations[0],
        "DILATION_W": w.dilations[1],
        "BLOCK_H": number(params, "rows"),
        "BLOCK_W": number(params, "columns"),
    }


def _plan(w: Conv2d, params: Params) -> _Plan:
    from autotune.kernels import gomp

    threads = number(params, "threads")
    top, _, left, _ = w.sides
    return _Plan(
        parallel=gomp.parallel_address() if threads > 1 else 0,
        **{name: getattr(w, name) for name in ("n", "c", "h", "w", "k", "out_h", "out_w")},
        top=top,
        left=left,
        threads=threads,
        tasks=threads * number(params, "chunks"),
    )
