"""torch's attention backends by name, without the choice that `F.scaled_dot_product_attention` makes at each call."""

from __future__ import annotations

from autotune.kernels import Algorithm, Built, thread_counts
from autotune.kernels.threads import limited
from autotune.ops.attention import Attention, attention, causal_mask, in_layout
from autotune.space import SearchSpace

TYPE_CHECKING = False
if TYPE_CHECKING:
    import torch

    from autotune.kernels import Constants
    from autotune.ops import Kernel
    from autotune.space import Params
    from autotune.types import HardwareProfile, Workload

CPU_BACKENDS = ("flash", "math")
GPU_BACKENDS = {
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "math": "MATH",
}
"""Ours → the name in torch.nn.attention.SDPBackend."""


class Sdpa(Algorithm):
    """`backend`: "flash", blocks of queries and keys with an online softmax; "math", two products around a softmax.

    On GPUs also "efficient" (memory-efficient attention) and "cudnn"; torch says at the first call what each of them
    does not take, and that is the candidate's failure.
    """

    name = "sdpa"
    ops = ("attention",)
    kinds = ("cpu", "gpu")

    def space(self, workload: Workload, hardware: HardwareProfile) -> SearchSpace:
        if hardware.kind == "gpu":
            return SearchSpace({"backend": gpu_backends(attention(workload))})
        backends = ("math",) if attention(workload).is_empty else CPU_BACKENDS
        threads = thread_counts(hardware)
        return SearchSpace(
            {"backend": backends, "threads": threads}, seeds=({"backend": backends[0], "threads": max(threads)},)
        )

    def build(self, workload: Workload, params: Params, constants: Constants) -> Built:
        w = attention(workload)
        if "threads" not in params:
            return Built(_on_gpu(w, GPU_BACKENDS[str(params["backend"])]))
        threads = params["threads"]
        assert isinstance(threads, int)
        return Built(limited(_flash(w) if params["backend"] == "flash" else _math(w), threads))


def gpu_backends(w: Attention) -> tuple[str, ...]:
    """Those that may take it: fused ones want 16 bits and no mask that is given as a tensor, or no groups."""
    if w.is_empty or w.dtype == "f64":
        return ("math",)
    masked = w.causal and w.q_len != w.kv_len
    fused = () if masked or w.dtype == "f32" else ("flash", "cudnn")
    return (*fused, *(("efficient",) if w.group == 1 else ()), "math")


def _on_gpu(w: Attention, backend: str) -> Kernel:
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    chosen = [getattr(SDPBackend, backend)]
    mask, grouped, bshd = causal_mask(w), w.group > 1, w.layout == "bshd"

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        causal, seen = mask(q, k)
        with sdpa_kernel(chosen):
            y = F.scaled_dot_product_attention(q, k, v, seen, is_causal=causal, enable_gqa=grouped)
        return in_layout(y, "bshd") if bshd else y

    return call


def _flash(w: Attention) -> Kernel:
    import torch

    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    mask, otherwise = causal_mask(w), _math(w)

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if not q.numel() or not k.numel():  # the operator divides by the number of them
            return otherwise(q, k, v)
        causal, added = _added(*mask(q, k), q)
        result: torch.Tensor = flash(unit(q), unit(k), unit(v), 0.0, causal, attn_mask=added)[0]
        return result

    return call


def _math(w: Attention) -> Kernel:
    import torch

    plain = torch.ops.aten._scaled_dot_product_attention_math.default
    mask, grouped, bshd = causal_mask(w), w.group > 1, w.layout == "bshd"

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        causal, added = _added(*mask(q, k), q)
        result: torch.Tensor = plain(q, k, v, added, 0.0, causal, enable_gqa=grouped)[0]
        return in_layout(result, "bshd") if bshd else result

    return call


def _added(causal: bool, seen: torch.Tensor | None, q: torch.Tensor) -> tuple[bool, torch.Tensor | None]:
    """The operators take what is added to the scores, not what is seen."""
    if seen is None:
        return causal, None
    return causal, q.new_zeros(seen.shape).masked_fill_(~seen, float("-inf"))


def unit(tensor: torch.Tensor) -> torch.Tensor:
    """The operator reads rows whose elements are side by side."""
    tensor = tensor.resolve_neg()
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
