"""fused_bag: embedding bags in registers, rows asked for ahead of time; see cpp/fused_bag.cpp."""

from __future__ import annotations

import ctypes
from functools import cache

from autotune import paths
from autotune.dtypes import ITEMSIZE_BYTES
from autotune.errors import Unavailable
from autotune.kernels import Algorithm, Built, Constants, compiler
from autotune.kernels.framework import Framework
from autotune.kernels.native import elements, native_isa, number, parallel_threads
from autotune.ops.embedding_bag import INDEXES, MODES, EmbeddingBag, embedding_bag
from autotune.space import SearchSpace

TYPE_CHECKING = False
if TYPE_CHECKING:
    import torch

    from autotune.ops import Kernel
    from autotune.space import Params
    from autotune.types import HardwareProfile, ParamValue, Workload

SOURCE = paths.package_file("kernels", "cpp", "fused_bag.cpp")
WIDEST = 4096
REGISTERS = (1, 2, 4, 8, 16)
PREFETCHES = (0, 2, 4, 8, 16, 32)
CHUNKS = (1, 2, 4, 8)
NO_MEMORY, BAD_INDEX = 1, 2


class _Plan(ctypes.Structure):
    _fields_ = (
        ("parallel", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("rows", "stride", "threads", "tasks")),
    )


class FusedBag(Algorithm):
    """Sums, means and maxima, weighted or not, of fixed and ragged bags, in four dtypes and both index types.

    `prefetch`: lookups ahead. `registers`: vectors of a result that are computed at once. `chunks`: tasks per thread.
    Raises IndexError on call for an index or offset out of range.
    """

    name = "fused_bag"
    ops = ("embedding_bag",)

    def revision(self) -> str:
        return _revision()

    def shape_refusal(self, workload: Workload, hardware: HardwareProfile) -> str:
        w = embedding_bag(workload)
        return f"it unrolls rows of up to {WIDEST} elements, not {w.dim}" if w.dim > WIDEST else ""

    def software_refusal(self, workload: Workload) -> str:
        return compiler.missing_reason()

    def space(self, workload: Workload, hardware: HardwareProfile) -> SearchSpace:
        w = embedding_bag(workload)
        threads = parallel_threads(hardware)
        widths = _widths(w, hardware)
        item = 8 if w.dtype == "f64" else 4

        def vectors(p: Params) -> int:
            return w.dim * item // number(p, "vector")

        def registers_are_used(p: Params) -> bool:
            return number(p, "registers") < 2 * vectors(p) or number(p, "registers") == 1

        def one_thread_has_one_chunk(p: Params) -> bool:
            return number(p, "threads") > 1 or p["chunks"] == 1

        parameters: dict[str, tuple[ParamValue, ...]] = {
            "prefetch": PREFETCHES,
            "registers": REGISTERS,
            "vector": widths,
            "threads": threads,
            "chunks": CHUNKS,
        }
        constraints = (registers_are_used, one_thread_has_one_chunk)
        bare = SearchSpace(parameters, constraints)
        return SearchSpace(parameters, constraints, tuple(_seeds(bare)))

    def compile(self, workload: Workload, params: Params) -> None:
        compiler.shared_library(SOURCE, _defines(embedding_bag(workload), params))

    def build(self, workload: Workload, params: Params, constants: Constants) -> Built:
        w = embedding_bag(workload)
        given = constants["weight"]
        assert given is not None
        if w.dim == 0:
            return Framework().build(w, {"threads": number(params, "threads")}, constants)
        library = _load(compiler.shared_library(SOURCE, _defines(w, params)))
        table = given.detach().resolve_neg()
        if table.stride(1) != 1:
            table = table.contiguous()
        plan = _plan(w, params, table)
        held = 0 if table.data_ptr() == given.data_ptr() else table.numel() * ITEMSIZE_BYTES[w.dtype]
        return Built(_kernel(w, library, plan, table), held)


@cache
def _revision() -> str:
    return compiler.source_revision(SOURCE)


@cache
def _load(path: str) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise Unavailable(f"the compiled kernel {path} does not load: {error}") from error
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    library.embed.argtypes, library.embed.restype = (*[pointer] * 5, size, size, size), ctypes.c_int
    return library


def _kernel(w: EmbeddingBag, library: ctypes.CDLL, plan: _Plan, table: torch.Tensor) -> Kernel:
    """(indices, offsets if ragged, weights if weighted) → a fresh [bags, dim]."""
    import torch

    address, run, empty = ctypes.addressof(plan), library.embed, torch.empty
    ragged, weighted, dim, dtype, rows = w.lengths == "ragged", w.weighted, w.dim, table.dtype, w.rows

    def call(indices: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        if not indices.is_contiguous():
            indices = indices.contiguous()
        offsets_at = weights_at = 0
        if ragged:
            offsets = rest[0] if rest[0].is_contiguous() else rest[0].contiguous()
            offsets_at, bags, pooling = offsets.data_ptr(), len(offsets), 0
        else:
            bags, pooling = indices.shape
        if weighted:
            weights = rest[-1].detach().resolve_neg().contiguous()
            weights_at = weights.data_ptr()
        y = empty((bags, dim), dtype=dtype)
        failed = run(
            address, indices.data_ptr(), offsets_at, weights_at, y.data_ptr(), bags, indices.numel(), pooling
        )  # fmt: skip
        if failed:
            raise _error(failed, rows)
        return y

    call._keep = (plan, table)  # type: ignore[attr-defined]  # the kernel holds their addresses
    return call


def _error(code: int, rows: int) -> Exception:
    if code == NO_MEMORY:
        return MemoryError("no memory to start threads with")
    if code == BAD_INDEX:
        return IndexError(f"embedding_bag: an index is not one of the {rows} rows, 0 to {rows - 1}")
    return IndexError("embedding_bag: offsets begin with 0, do not decrease, and end within the indices")


def _widths(w: EmbeddingBag, hardware: HardwareProfile) -> tuple[int, ...]:
    """Vector widths in bytes (of what is computed with), widest first, that a row fills; the narrowest for any."""
    item = 8 if w.dtype == "f64" else 4
    every = sorted({*native_isa(hardware).vector_bytes, 16}, reverse=True)
    fitting = [width for width in every if width <= w.dim * item]
    return tuple(fitting[:2]) or (16,)


def _seeds(space: SearchSpace) -> list[dict[str, ParamValue]]:
    """All of a row in registers where it fits; small lookups want one thread and no prefetch."""
    seeds: list[dict[str, ParamValue]] = []
    counts = space.parameters["threads"]
    for threads, chunks, prefetch in ((counts[-1], 4, 8), (counts[-1], 1, 16), (counts[0], 1, 0), (counts[0], 1, 8)):
        for registers in (8, 16, 4, 2, 1):
            seed: dict[str, ParamValue] = {
                "prefetch": prefetch, "registers": registers, "vector": space.parameters["vector"][0],
                "threads": threads, "chunks": 1 if threads == 1 else chunks,
            }  # fmt: skip
            if space.contains(seed):
                if seed not in seeds:
                    seeds.append(seed)
                break
    return seeds


def _defines(w: EmbeddingBag, params: Params) -> dict[str, str | int]:
    return {
        **elements(w.dtype, params),
        "DIM": w.dim,
        "INDEX": f"std::{INDEXES[w.index]}_t",
        "MODE": MODES.index(w.mode),
        "WEIGHTED": int(w.weighted),
        "CHUNK": number(params, "registers"),
        "PREFETCH": number(params, "prefetch"),
    }


def _plan(w: EmbeddingBag, params: Params, table: torch.Tensor) -> _Plan:
    from autotune.kernels import gomp

    threads = number(params, "threads")
    return _Plan(
        parallel=gomp.parallel_address() if threads > 1 else 0,
        table=table.data_ptr(),
        rows=w.rows,
        stride=table.stride(0),
        threads=threads,
        tasks=threads * number(params, "chunks"),
    )
