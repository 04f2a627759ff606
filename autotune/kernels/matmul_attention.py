"""Attention as a torch user writes it: product, softmax, product; heads that share keys are rows of one product."""

from __future__ import annotations

from autotune.dtypes import ITEMSIZE_BYTES
from autotune.kernels import Algorithm, Built, thread_counts
from autotune.kernels.threads import limited
from autotune.ops.attention import Attention, attention, in_layout
from autotune.space import SearchSpace

TYPE_CHECKING = False
if TYPE_CHECKING:
    import torch

    from autotune.kernels import Constants
    from autotune.ops import Kernel
    from autotune.space import Params
    from autotune.types import HardwareProfile, Workload

LARGEST_SCORES_BYTES = 256 << 20


class MatmulAttention(Algorithm):
    """softmax(q · kᵀ) · v in batches of products, the scores written out once; keys are not repeated for a group."""

    name = "matmul_attention"
    ops = ("attention",)

    def shape_refusal(self, workload: Workload, hardware: HardwareProfile) -> str:
        w = attention(workload)
        scores = _scores_bytes(w)
        if scores > LARGEST_SCORES_BYTES:
            most = LARGEST_SCORES_BYTES >> 20
            return f"its scores would take {scores >> 20} MiB, and {most} MiB is the most they may"
        return ""

    def space(self, workload: Workload, hardware: HardwareProfile) -> SearchSpace:
        return SearchSpace({"threads": thread_counts(hardware)}, seeds=({"threads": hardware.allowed_cpus},))

    def build(self, workload: Workload, params: Params, constants: Constants) -> Built:
        w = attention(workload)
        threads = params["threads"]
        assert isinstance(threads, int)
        return Built(limited(_kernel(w), threads), _scores_bytes(w))


def _scores_bytes(w: Attention) -> int:
    return w.batch * w.heads * w.q_len * w.kv_len * ITEMSIZE_BYTES[w.dtype]


def _kernel(w: Attention) -> Kernel:
    import torch

    group, kv_heads, scale, causal = w.group, w.kv_heads, w.head_dim**-0.5, w.causal
    bshd = w.layout == "bshd"

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        batch, heads, q_len, head_dim = q.shape
        kv_len = k.shape[2]
        rows = (q * scale).reshape(batch, kv_heads, group * q_len, head_dim)
        scores = rows @ k.transpose(2, 3)
        if causal and q_len > 1:
            hidden = torch.ones((q_len, kv_len), dtype=torch.bool).triu_(kv_len - q_len + 1)
            scores.view(batch, kv_heads, group, q_len, kv_len).masked_fill_(hidden, float("-inf"))
        y = (torch.softmax(scores, -1) @ v).view(batch, heads, q_len, head_dim)
        return in_layout(y, "bshd") if bshd else y

    return call
