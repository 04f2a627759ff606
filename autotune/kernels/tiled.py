"""tiled: the project's own register-tiled C++ kernel for linear and gemm; see cpp/tiled.cpp for the algorithm."""

from __future__ import annotations

import ctypes
import math
from functools import cache

from autotune import paths
from autotune.errors import Unavailable
from autotune.kernels import Algorithm, Built, Constants, compiler
from autotune.kernels.native import REALS, parallel_threads
from autotune.kernels.operands import weight_and_bias
from autotune.ops.activations import ACTIVATIONS, apply_activation
from autotune.ops.gemm import Gemm
from autotune.ops.linear import Linear

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import torch

    from autotune.space import Params, SearchSpace
    from autotune.types import HardwareProfile, Workload

SOURCE = paths.package_file("kernels", "cpp", "tiled.cpp")
SPLITS = ("m", "n", "k", "batch")


class _Plan(ctypes.Structure):
    _fields_ = (
        ("parallel", ctypes.c_void_p),
        ("packed", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("n", "k", "kc", "mc", "nc", "threads", "tasks", "split")),
    )


class _Operands(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("a", "b", "c")),
        *((name, ctypes.c_int64) for name in ("a_row", "a_col", "b_row", "b_col", "c_row")),
        *((name, ctypes.c_int64) for name in ("a_batch", "b_batch", "c_batch")),
    )


class Tiled(Algorithm):
    name = "tiled"
    ops = ("linear", "gemm")

    def revision(self) -> str:
        return _revision()

    def shape_refusal(self, workload: Workload, hardware: HardwareProfile) -> str:
        if _dtype(workload) not in REALS:
            return f"the tiled kernel computes f32 and f64, not {_dtype(workload)}"
        return ""

    def software_refusal(self, workload: Workload) -> str:
        return compiler.missing_reason()

    def space(self, workload: Workload, hardware: HardwareProfile) -> SearchSpace:
        from autotune.kernels.tiled_space import tiled_space

        return tiled_space(workload, hardware, REALS[_dtype(workload)][1], parallel_threads(hardware))

    def compile(self, workload: Workload, params: Params) -> None:
        compiler.shared_library(SOURCE, _defines(workload, params))

    def build(self, workload: Workload, params: Params, constants: Constants) -> Built:
        library = _load(compiler.shared_library(SOURCE, _defines(workload, params)))
        if isinstance(workload, Linear):
            return _build_linear(library, workload, params, constants)
        assert isinstance(workload, Gemm)
        return _build_gemm(library, workload, params)


@cache
def _revision() -> str:
    return compiler.source_revision(SOURCE)


def _dtype(workload: Workload) -> str:
    assert isinstance(workload, (Linear, Gemm))
    return workload.dtype


def _defines(workload: Workload, params: Params) -> dict[str, str | int]:
    real, itemsize = REALS[_dtype(workload)]
    mr, nr = _tile(params)
    lanes = _int(params, "vector") // itemsize
    activation = workload.activation if isinstance(workload, Linear) else "none"
    return {
        "REAL": real,
        "LANES": lanes,
        "MR": mr,
        "NV": nr // lanes,
        "UNROLL": _int(params, "unroll"),
        "PREFETCH": _int(params, "prefetch"),
        "PACK_A": _int(params, "pack_a"),
        "PACK_B": 1 if isinstance(workload, Linear) else _int(params, "pack_b"),
        "ACT": ACTIVATIONS.index(activation),
    }


def _plan(workload: Linear | Gemm, params: Params) -> _Plan:
    from autotune.kernels import gomp

    mr, nr = _tile(params)
    threads = _int(params, "threads")
    whole = max(workload.m, workload.n, workload.k, 1)

    def block(name: str, step: int) -> int:
        """A block size rounded up to its step; 0 stands for all of the dimension."""
        return math.ceil((_int(params, name) or whole) / step) * step

    return _Plan(
        parallel=gomp.parallel_address() if threads > 1 else 0,
        n=workload.n,
        k=workload.k,
        kc=block("kc", 1),
        mc=block("mc", mr),
        nc=block("nc", nr),
        threads=threads,
        tasks=threads * _int(params, "chunks"),
        split=SPLITS.index(str(params["split"])),
    )


def _build_linear(library: ctypes.CDLL, workload: Linear, params: Params, constants: Constants) -> Built:
    import torch
    import torch.nn.functional as F

    weight, bias = weight_and_bias(constants)
    weight = weight.resolve_neg()
    n, k = weight.shape
    packed = torch.empty(library.packed_size(n, k), dtype=weight.dtype)
    library.pack_weight(weight.data_ptr(), weight.stride(0), weight.stride(1), n, k, packed.data_ptr())
    plan = _plan(workload, params)
    plan.packed = packed.data_ptr()
    plan.bias = bias.data_ptr() if bias is not None else 0
    address = ctypes.addressof(plan)
    run = library.linear
    activation = workload.activation

    def call(x: torch.Tensor) -> torch.Tensor:
        if not x.is_contiguous() or x.is_neg():  # a lazily negated tensor's memory has the other sign
            x = x.resolve_neg().contiguous()
        if x.dim() == 2:
            m = x.shape[0]
            y = x.new_empty((m, n))
        else:
            m = math.prod(x.shape[:-1])
            y = x.new_empty((*x.shape[:-1], n))
        if run(address, x.data_ptr(), k, y.data_ptr(), m):
            return apply_activation(F.linear(x, weight, bias), activation)
        return y

    call._keep = (plan, packed, bias)  # type: ignore[attr-defined]  # the kernel holds their addresses
    scratch = _scratch_elements(params, workload.m, n, k)
    return Built(call, (packed.numel() + scratch) * packed.element_size())


def _build_gemm(library: ctypes.CDLL, workload: Gemm, params: Params) -> Built:
    plan = _plan(workload, params)
    address = ctypes.addressof(plan)
    run = library.gemm
    m, n, k, batch = workload.m, workload.n, workload.k, workload.batch
    pack_a, pack_b = _int(params, "pack_a"), _int(params, "pack_b")

    def call(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        c = a.new_empty((*a.shape[:-1], b.shape[-1]))
        if a.is_neg() or (not pack_a and a.stride(-1) != 1):
            a = a.resolve_neg().contiguous()
        if b.is_neg() or (not pack_b and b.stride(-1) != 1):
            b = b.resolve_neg().contiguous()
        batches = (a.stride(0), b.stride(0), c.stride(0)) if a.dim() == 3 else (0, 0, 0)
        strides = (*a.stride()[-2:], *b.stride()[-2:], n)
        operands = _Operands(a.data_ptr(), b.data_ptr(), c.data_ptr(), *strides, *batches)
        if run(address, ctypes.addressof(operands), m, batch):
            return a @ b
        return c

    call._keep = plan  # type: ignore[attr-defined]  # the kernel holds its address
    _, nr = _tile(params)
    panels = math.ceil(n / nr) * k * nr if pack_b else k * nr
    together = min(_int(params, "threads"), batch) if params["split"] == "batch" else 1
    scratch = panels * together + _scratch_elements(params, m, n, k)
    itemsize = REALS[workload.dtype][1]
    return Built(call, scratch * itemsize)


def _scratch_elements(params: Params, m: int, n: int, k: int) -> int:
    """Elements of A blocks over all threads, and partial results of a split along k."""
    mr, _ = _tile(params)
    threads = _int(params, "threads")
    rows = min(_int(params, "mc") or m, m) if _int(params, "pack_a") else (mr if m % mr else 0)
    depth = min(_int(params, "kc") or k, k)
    partial = threads * _int(params, "chunks") * m * n if params["split"] == "k" else 0
    return threads * math.ceil(rows / mr) * mr * depth + partial


@cache
def _load(path: str) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise Unavailable(f"the compiled kernel {path} does not load: {error}") from error
    i64, pointer = ctypes.c_int64, ctypes.c_void_p
    library.packed_size.argtypes, library.packed_size.restype = (i64, i64), i64
    library.pack_weight.argtypes, library.pack_weight.restype = (pointer, i64, i64, i64, i64, pointer), None
    library.linear.argtypes, library.linear.restype = (pointer, pointer, i64, pointer, i64), ctypes.c_int
    library.gemm.argtypes, library.gemm.restype = (pointer, pointer, i64, i64), ctypes.c_int
    return library


def _tile(params: Params) -> tuple[int, int]:
    tile: Any = params["tile"]
    return int(tile[0]), int(tile[1])


def _int(params: Params, name: str) -> int:
    value = params[name]
    assert isinstance(value, int)
    return value
