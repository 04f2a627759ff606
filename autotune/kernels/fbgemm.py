"""Dynamic 8-bit linear: the weight quantised once per output channel, each input tensor at every call."""

from __future__ import annotations

import math

from autotune.errors import InvalidInput
from autotune.kernels import Algorithm, Built, thread_counts
from autotune.kernels.framework import Framework
from autotune.kernels.operands import on_rows, weight_and_bias
from autotune.kernels.threads import limited
from autotune.ops.linear import Linear
from autotune.space import SearchSpace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import torch

    from autotune.kernels import Constants
    from autotune.space import Params
    from autotune.types import HardwareProfile, Workload

ENGINES = ("fbgemm", "onednn")
VNNI = ("avx512_vnni", "avx_vnni")
SMALLEST_RANGE = 1e-30
"""A row of weights below this counts as zero: the inverse of its scale would overflow f32."""


class FbgemmInt8(Algorithm):
    """`quantized::linear_dynamic`: f32 in and out, 8-bit products. Inexact, so its `error_bound` says by how much.

    `engine`: torch's quantised library. `reduce_range`: inputs in 7 bits instead of 8. Without VNNI the product is
    vpmaddubsw, which adds two u8·i8 products in a *saturating* 16-bit sum: 2·255·127 does not fit and
    2·127·127 does. So the space has 7 bits on such a machine and 8 on one with VNNI, never a choice.

    A weight with NaN or infinity is refused at build (`InvalidInput`): 8 bits cannot hold it. An input with
    one is computed by `F.linear` with the weight as given, since quantisation would turn it into plain numbers;
    finding out is one sum over the input.
    """

    name = "fbgemm_int8"
    ops = ("linear",)

    def shape_refusal(self, workload: Workload, hardware: HardwareProfile) -> str:
        dtype = workload.dims()["dtype"]
        if dtype != "f32":
            return f"dynamic 8-bit linear takes f32, not {dtype}"
        if hardware.arch not in ("x86_64", "AMD64") or "avx2" not in hardware.isa:
            return f"fbgemm needs an x86-64 machine with AVX2, not {hardware.arch}"
        return ""

    def software_refusal(self, workload: Workload) -> str:
        import torch

        if not set(ENGINES) & set(torch.backends.quantized.supported_engines):
            return f"this build of torch has none of {', '.join(ENGINES)}"
        return ""

    def space(self, workload: Workload, hardware: HardwareProfile) -> SearchSpace:
        import torch

        supported = torch.backends.quantized.supported_engines
        return SearchSpace(
            {
                "engine": tuple(engine for engine in ENGINES if engine in supported),
                "reduce_range": (not any(flag in hardware.isa for flag in VNNI),),
                "threads": thread_counts(hardware),
            }
        )

    def error_bound(self, workload: Workload) -> float:
        """What rounding to 7-bit inputs and 8-bit weights explains for operands without outliers, times two.

        A number rounded to a grid of step s errs by s/√12 rms. The step is range/127 for inputs (m·k numbers in
        one range) and largest/127 for a row of weights. For normally distributed numbers range ≈ 2·rms·√(2 ln mk)
        and largest ≈ rms·√(2 ln nk). A sum of k such products errs, relative to its own rms, by √(eₓ² + e_w²), and
        the worst of m·n results by √(2 ln mn) times that. Twice, because ReLU and its like halve the power of
        the result but not the error at its largest elements. Data with outliers (one input
        100 × the rms) errs more: this is a statement about the tuning data, not about every model.
        """
        assert isinstance(workload, Linear)
        m, n, k = workload.m, workload.n, workload.k

        def deviations(count: int) -> float:
            return math.sqrt(2 * math.log(max(count, 8)))

        of_input = 2 * deviations(m * k) / 127 / math.sqrt(12)
        of_weight = deviations(n * k) / 127 / math.sqrt(12)
        return 2 * deviations(m * n) * math.hypot(of_input, of_weight)

    def build(self, workload: Workload, params: Params, constants: Constants) -> Built:
        import torch
        import torch.nn.functional as F

        assert isinstance(workload, Linear)
        threads, reduce_range = params["threads"], params["reduce_range"]
        assert isinstance(threads, int)
        if workload.n == 0 or workload.k == 0:
            return Framework().build(workload, {"threads": threads}, constants)
        weight, bias = weight_and_bias(constants)
        if not bool(torch.isfinite(weight).all()):
            raise InvalidInput("a weight with NaN or infinity has no 8-bit form")
        packed = _pack(weight, bias, str(params["engine"]))
        relu = workload.activation == "relu"
        quantised = torch.ops.quantized
        linear = (quantised.linear_relu_dynamic if relu else quantised.linear_dynamic).default

        def product(rows: torch.Tensor) -> torch.Tensor:
            if not math.isfinite(float(rows.sum())):
                exact = F.linear(rows, weight, bias)
                return exact.relu_() if relu else exact
            return linear(rows, packed, reduce_range)  # type: ignore[no-any-return]  # operators are untyped

        call = on_rows(product, workload, "none" if relu else workload.activation)
        return Built(limited(call, threads), workload.n * (workload.k + 8))  # a byte per weight, scale and sum per row


def _pack(weight: torch.Tensor, bias: torch.Tensor | None, engine: str) -> Any:
    """The library's own object of the weight in 8 bits, one symmetric scale per row.

    torch's quantised engine is a setting of the process, so it is changed only here: the packed object remembers.
    """
    import warnings

    import torch

    largest = weight.abs().amax(1).to(torch.float64)
    scales = torch.where(largest > SMALLEST_RANGE, largest / 127, 1.0)
    zeros = weight.new_zeros(weight.shape[0], dtype=torch.int64)
    settings = torch.backends.quantized
    before = settings.engine
    try:
        settings.engine = engine
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch ≥ 2.13 warns once that quantised tensors will go
            quantised = torch.quantize_per_channel(weight.contiguous(), scales, zeros, 0, torch.qint8)
            return torch.ops.quantized.linear_prepack(quantised, bias)
    finally:
        settings.engine = before
