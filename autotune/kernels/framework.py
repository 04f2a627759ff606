"""torch itself: the default of every workload, and the variants that a user could write with it."""

from __future__ import annotations

from autotune import registry
from autotune.kernels import Algorithm, Built, framework_conv, thread_counts
from autotune.kernels.operands import weight_and_bias
from autotune.kernels.threads import limited
from autotune.ops.activations import apply_activation
from autotune.ops.conv2d import Conv2d
from autotune.ops.linear import Linear
from autotune.space import SearchSpace
from autotune.types import StrideClass

TYPE_CHECKING = False
if TYPE_CHECKING:
    import torch

    from autotune.kernels import Constants
    from autotune.space import Params, SearchSpace
    from autotune.types import HardwareProfile, ParamValue, Workload

AS_GIVEN = "as_given"


class Framework(Algorithm):
    """`F.linear` followed by the activation, `F.conv2d` followed by residual and activation, and `Op.plain` of others.

    Empty parameters are the default: the framework left alone. The space holds only what differs from it:

    - `threads`: other thread counts. torch's own count is taken to be all allowed CPUs.
    - `weight` (linear): the layout the weight is copied to at build time. The vendor's kernels read
      "contiguous" [n, k] and "transposed" (stored as [k, n]) at different speeds.
    """

    name = "torch"
    ops = tuple(registry.BUILT_IN["ops"])
    kinds = ("cpu", "gpu")

    def shape_refusal(self, workload: Workload, hardware: HardwareProfile) -> str:
        if workload.dims().get("dtype") == "i8":
            return "torch sums i8 products in i8, which overflows"
        return framework_conv.reads_past_the_image(workload, workload.layout) if isinstance(workload, Conv2d) else ""

    def space(self, workload: Workload, hardware: HardwareProfile) -> SearchSpace:
        from autotune.space import SearchSpace

        if hardware.kind == "gpu":  # where the host's threads compute nothing
            return SearchSpace(_layouts(workload))
        own = hardware.allowed_cpus
        counts = thread_counts(hardware)
        if not isinstance(workload, Linear):
            others = tuple(count for count in counts if count != own)
            return SearchSpace({"threads": others}) if others else SearchSpace({})
        layouts = tuple(
            layout
            for layout in (AS_GIVEN, StrideClass.CONTIGUOUS.value, StrideClass.TRANSPOSED.value)
            if layout != workload.weight_layout
        )
        return SearchSpace(
            {"weight": layouts, "threads": counts},
            constraints=(lambda params: params["weight"] != AS_GIVEN or params["threads"] != own,),
        )

    def build(self, workload: Workload, params: Params, constants: Constants) -> Built:
        threads = params.get("threads", 0)
        assert isinstance(threads, int)
        if isinstance(workload, Linear):
            built = _linear(workload, params.get("weight", AS_GIVEN), constants)
        elif isinstance(workload, Conv2d):
            built = framework_conv.default(workload, constants)
        else:
            built = Built(registry.op(workload.op).plain(workload, dict(constants)))
        return Built(limited(built.call, threads), built.workspace_bytes)


def _layouts(workload: Workload) -> dict[str, tuple[ParamValue, ...]]:
    """On a GPU: the weight's layout, other than the caller's; nothing of ops without one."""
    if not isinstance(workload, Linear):
        return {}
    layouts = (StrideClass.CONTIGUOUS.value, StrideClass.TRANSPOSED.value)
    return {"weight": tuple(layout for layout in layouts if layout != workload.weight_layout)}


def _linear(workload: Linear, layout: ParamValue, constants: Constants) -> Built:
    import torch.nn.functional as F

    given, bias = weight_and_bias(constants)
    weight = given
    if layout == StrideClass.CONTIGUOUS:
        weight = given.contiguous()
    elif layout == StrideClass.TRANSPOSED:
        weight = given.t().contiguous().t()
    activation = workload.activation

    def call(x: torch.Tensor) -> torch.Tensor:
        return apply_activation(F.linear(x, weight, bias), activation)

    return Built(call, 0 if weight.data_ptr() == given.data_ptr() else weight.numel() * weight.element_size())
