"""oneDNN's inner product on a weight reordered once, with the activation inside, through torch's own binding."""

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

POST_OPS = {
    "none": ("none", None),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "silu": ("swish", None),
}
"""Activation → torch's name of oneDNN's post-op and its variant. ReLU is not among them: oneDNN's turns NaN into 0."""


class OneDnnPacked(Algorithm):
    """`mkldnn::_linear_pointwise`: f32 everywhere oneDNN runs; bf16 and f16 where torch says the silicon has them.

    The reordered layout is chosen for the workload's m, and right for any other. The result is a plain
    contiguous tensor. Empty weights go to the framework: oneDNN has no primitive for them.
    """

    name = "onednn_packed"
    ops = ("linear",)

    def shape_refusal(self, workload: Workload, hardware: HardwareProfile) -> str:
        dtype = workload.dims()["dtype"]
        if dtype not in ("f32", "bf16", "f16"):
            return f"oneDNN's inner product takes f32, bf16 and f16, not {dtype}"
        return ""

    def software_refusal(self, workload: Workload) -> str:
        import torch

        dtype = workload.dims()["dtype"]
        if not torch._C._has_mkldnn:
            return "this build of torch has no oneDNN"
        if dtype == "bf16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return "oneDNN needs AVX-512 or AVX-NE-CONVERT (or bf16 instructions on Arm) for bf16"
        if dtype == "f16" and not torch.ops.mkldnn._is_mkldnn_fp16_supported():
            return "oneDNN needs AVX512-FP16 or AVX-NE-CONVERT for f16"
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
        pack = limited(torch.ops.mkldnn._reorder_linear_weight, threads)
        packed = pack(weight.contiguous(), workload.m or None)
        linear = torch.ops.mkldnn._linear_pointwise.default
        fused = workload.activation in POST_OPS
        post_op, variant = POST_OPS[workload.activation if fused else "none"]
        remaining = "none" if fused else workload.activation

        def call(x: torch.Tensor) -> torch.Tensor:
            rows = x if x.dim() > 1 else x[None]
            result = activate_in_place(linear(rows, packed, bias, post_op, [], variant), remaining)
            return result if x.dim() > 1 else result[0]

        return Built(limited(call, threads), int(torch.ops.mkldnn._nbytes(packed)))
