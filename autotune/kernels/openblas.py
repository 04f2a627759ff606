"""numpy's OpenBLAS on torch's memory: the same operands, another library's kernels and threads."""

from __future__ import annotations

from functools import cache

from autotune.errors import Unavailable
from autotune.kernels import Algorithm, Built, thread_counts
from autotune.kernels.framework import Framework
from autotune.kernels.operands import on_rows, weight_and_bias
from autotune.ops.linear import Linear
from autotune.space import SearchSpace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import torch

    from autotune.kernels import Constants
    from autotune.ops import Kernel
    from autotune.space import Params
    from autotune.types import HardwareProfile, Workload


class OpenBlas(Algorithm):
    """`numpy.matmul` on views of the operands (nothing is copied), into a result that torch allocated; f32 and f64.

    `weight` (linear): "as_given", or "transposed": copied to [k, n] at build time. Operands that BLAS cannot
    describe (no unit stride) are made contiguous first: numpy would fall back to a plain loop.
    OpenBLAS keeps threads of its own beside torch's; with more than one they go on spinning for a
    while after a call and slow torch down meanwhile, which a timing of the kernel alone does not show.
    """

    name = "openblas"
    ops = ("linear", "gemm")

    def shape_refusal(self, workload: Workload, hardware: HardwareProfile) -> str:
        dtype = workload.dims()["dtype"]
        return "" if dtype in ("f32", "f64") else f"OpenBLAS multiplies f32 and f64, not {dtype}"

    def software_refusal(self, workload: Workload) -> str:
        try:
            _library()
        except Unavailable as error:
            return str(error)
        return ""

    def space(self, workload: Workload, hardware: HardwareProfile) -> SearchSpace:
        threads = {"threads": thread_counts(hardware)}
        return SearchSpace({"weight": ("as_given", "transposed"), **threads} if workload.op == "linear" else threads)

    def build(self, workload: Workload, params: Params, constants: Constants) -> Built:
        threads = params["threads"]
        assert isinstance(threads, int)
        if not isinstance(workload, Linear):
            return Built(_limited(_product, threads))
        if workload.n == 0 or workload.k == 0:
            return Framework().build(workload, {"threads": threads}, constants)
        given, bias = weight_and_bias(constants)
        turned = given.t()
        weight = turned.contiguous() if params["weight"] == "transposed" else _blas_ready(turned)
        product = _limited(_product, threads)

        def linear(rows: torch.Tensor) -> torch.Tensor:
            result = product(rows, weight)
            return result if bias is None else result.add_(bias)

        copied = 0 if weight.data_ptr() == given.data_ptr() else weight.numel() * weight.element_size()
        return Built(on_rows(linear, workload, workload.activation), copied)


@cache
def _library() -> Any:
    """threadpoolctl's handle of the OpenBLAS that numpy calls; raises `Unavailable` when there is none."""
    try:
        import numpy
        from threadpoolctl import ThreadpoolController
    except ImportError as error:
        raise Unavailable(f"{error.name} must be installed to use numpy's OpenBLAS") from error

    blas = numpy.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"]
    found = ThreadpoolController().select(internal_api="openblas").lib_controllers
    bundled = [library for library in found if "numpy" in library.filepath]  # other packages bring their own
    if "openblas" not in str(blas).lower() or len(bundled or found) != 1:
        raise Unavailable(f"numpy's BLAS is {blas}, not one OpenBLAS whose threads can be set")
    return (bundled or found)[0]


def _limited(call: Kernel, threads: int) -> Kernel:
    """`call` with OpenBLAS's thread count set around it: a process-wide number, read and written by its own calls."""
    library = _library()
    get, put = library.get_num_threads, library.set_num_threads

    def with_limit(*operands: torch.Tensor) -> torch.Tensor:
        before = get()
        if before == threads:
            return call(*operands)
        put(threads)
        try:
            return call(*operands)
        finally:
            put(before)

    return with_limit


def _blas_ready(matrix: torch.Tensor) -> torch.Tensor:
    """`matrix` [..., rows, cols] itself if BLAS can read it in place, else a contiguous copy."""
    rows, cols = matrix.stride()[-2:]
    if (cols == 1 and rows >= matrix.shape[-1]) or (rows == 1 and cols >= matrix.shape[-2]):
        return matrix
    return matrix.contiguous()


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    import numpy

    a, b = a.detach(), b.detach()
    result = a.new_empty((*a.shape[:-1], b.shape[-1]))
    left, right = _blas_ready(a).numpy(force=True), _blas_ready(b).numpy(force=True)
    numpy.matmul(left, right, out=result.numpy())
    return result
