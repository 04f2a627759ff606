"""MKL's packed matrix product: the weight goes into MKL's own layout once, through torch's own binding."""

from __future__ import annotations

from autotune.kernels import Algorithm, Built, thread_counts
from autotune.kernels.framework import Framework
from autotune.kernels.operands import activate_in_place, weight_and_bias
from autotune.kernels.threads import limited
from autotune.ops.linear import Linear
from autotune.space import SearchSpace

TYPE_CHECKING = False
if TYPE_CHECKING:
    import torch

    from autotune.kernels import Constants
    from autotune.space import Params
    from autotune.types import HardwareProfile, Workload


class MklPacked(Algorithm):
    """`mkl::_mkl_linear`, f32 only.

    MKL packs for one number of rows, here under the thread limit of the calls. The operator compares the rows of
    each call with those it packed for and otherwise computes with the weight as given, so other m are right, at
    the framework's speed. The packed copy is larger than the weight by several MB.

    Empty weights go to the framework: the operator forgets the bias when k is 0, and MKL prints an error.
    """

    name = "mkl_packed"
    ops = ("linear",)

    def shape_refusal(self, workload: Workload, hardware: HardwareProfile) -> str:
        dtype = workload.dims()["dtype"]
        return "" if dtype == "f32" else f"torch binds MKL's packed product for f32 only, not {dtype}"

    def software_refusal(self, workload: Workload) -> str:
        import torch

        if not torch._C.has_mkl or not hasattr(torch.ops.mkl, "_mkl_linear"):
            return "this build of torch has no MKL"
        return ""

    def space(self, workload: Workload, hardware: HardwareProfile) -> SearchSpace:
        return SearchSpace({"threads": thread_counts(hardware)})

    def build(self, workload: Workload, params: Params, constants: Constants) -> Built:
        import torch

        assert isinstance(workload, Linear)
        threads = params["threads"]
        assert isinstance(threads, int)
        if workload.n == 0 or workload.k == 0:
            return Framework().build(workload, {"threads": threads}, constants)
        weight, bias = weight_and_bias(constants)
        rows = max(workload.m, 1)
        packed = limited(torch.ops.mkl._mkl_reorder_linear_weight, threads)(weight.contiguous(), rows)
        linear = torch.ops.mkl._mkl_linear.default
        activation = workload.activation

        def call(x: torch.Tensor) -> torch.Tensor:
            return activate_in_place(linear(x, packed, weight, bias, rows), activation)

        return Built(limited(call, threads), packed.numel() * 4)
