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


class Sdpa(Algorithm):
    """`backend`: "flash", blocks of queries and keys with an online softmax; "math", two products around a softmax."""

    name = "sdpa"
    ops = ("attention",)

    def space(self, workload: Workload, hardware: HardwareProfile) -> SearchSpace:
        backends = ("math",) if attention(workload).is_empty else CPU_BACKENDS
        threads = thread_counts(hardware)
        return SearchSpace(
            {"backend": backends, "threads": threads}, seeds=({"backend": backends[0], "threads": max(threads)},)
        )

    def build(self, workload: Workload, params: Params, constants: Constants) -> Built:
        w = attention(workload)
        threads = params["threads"]
        assert isinstance(threads, int)
        return Built(limited(_flash(w) if params["backend"] == "flash" else _math(w), threads))


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
