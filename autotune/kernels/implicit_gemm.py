"""implicit_gemm: convolution as a matrix product over patches packed block by block; see cpp/implicit_gemm.cpp."""

from __future__ import annotations

import ctypes
from functools import cache

from autotune import paths
from autotune.kernels import Algorithm, Built, Constants, compiler
from autotune.kernels.native import REALS, number, parallel_threads
from autotune.kernels.operands import weight_and_bias
from autotune.kernels.own_conv import ACTIVATION_CODES, kernel, load, unsupported
from autotune.ops.conv2d import Conv2d, conv

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from autotune.space import Params, SearchSpace
    from autotune.types import HardwareProfile, Workload

SOURCE = paths.package_file("kernels", "cpp", "implicit_gemm.cpp")
SPLITS = ("pixels", "channels")


class _Plan(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("parallel", "packed", "bias")),
        *((name, ctypes.c_int64) for name in ("n", "c", "h", "w", "k", "r", "s")),
        *((name, ctypes.c_int64) for name in ("out_h", "out_w", "stride_h", "stride_w", "dilation_h", "dilation_w")),
        *((name, ctypes.c_int64) for name in ("top", "left", "groups", "kc", "nc", "threads", "tasks", "split")),
    )


class ImplicitGemm(Algorithm):
    """Any filter, stride, dilation, padding and groups, in f32 and f64 and both layouts; everything fused."""

    name = "implicit_gemm"
    ops = ("conv2d",)

    def revision(self) -> str:
        return _revision()

    def shape_refusal(self, workload: Workload, hardware: HardwareProfile) -> str:
        return unsupported("implicit GEMM", conv(workload))

    def software_refusal(self, workload: Workload) -> str:
        return compiler.missing_reason()

    def space(self, workload: Workload, hardware: HardwareProfile) -> SearchSpace:
        from autotune.kernels.implicit_gemm_space import implicit_gemm_space

        w = conv(workload)
        return implicit_gemm_space(w, hardware, REALS[w.dtype][1], parallel_threads(hardware))

    def compile(self, workload: Workload, params: Params) -> None:
        compiler.shared_library(SOURCE, _defines(conv(workload), params))

    def build(self, workload: Workload, params: Params, constants: Constants) -> Built:
        import torch

        w = conv(workload)
        library = load(compiler.shared_library(SOURCE, _defines(w, params)))
        library.packed_size.argtypes, library.packed_size.restype = (ctypes.c_void_p,), ctypes.c_int64
        library.pack_weight.argtypes, library.pack_weight.restype = (ctypes.c_void_p,) * 3, None
        weight, bias = weight_and_bias(constants)
        plan = _plan(w, params)
        address = ctypes.addressof(plan)
        packed = torch.empty(library.packed_size(address), dtype=weight.dtype)
        plain_weight = weight.resolve_neg().contiguous()
        library.pack_weight(address, plain_weight.data_ptr(), packed.data_ptr())
        plan.packed = packed.data_ptr()
        plan.bias = bias.data_ptr() if bias is not None else 0
        elements = packed.numel() + plan.threads * library.scratch_size(address)
        return Built(kernel(w, library, plan, weight, bias, (packed, bias)), elements * packed.element_size())


@cache
def _revision() -> str:
    return compiler.source_revision(SOURCE)


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
        "CHANNELS_LAST": int(w.layout == "channels_last"),
        "IN_PLACE": int(params["image"] == "in_place"),
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
        kc=number(params, "kc") or w.depth,
        nc=number(params, "nc") or max(w.n * w.out_h * w.out_w, 1),
        threads=threads,
        tasks=threads * number(params, "chunks"),
        split=SPLITS.index(str(params["split"])),
    )
