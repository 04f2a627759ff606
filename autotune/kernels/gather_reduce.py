"""Embedding bags as a torch user writes them: gather the rows, then reduce. The classical baseline, buffer and all."""

from __future__ import annotations

from autotune.dtypes import ITEMSIZE_BYTES
from autotune.kernels import Algorithm, Built, thread_counts
from autotune.kernels.threads import limited
from autotune.ops.embedding_bag import EmbeddingBag, embedding_bag, lengths_of, split
from autotune.space import SearchSpace

TYPE_CHECKING = False
if TYPE_CHECKING:
    import torch

    from autotune.kernels import Constants
    from autotune.ops import Kernel
    from autotune.space import Params
    from autotune.types import HardwareProfile, Workload

LARGEST_BUFFER_BYTES = 256 << 20


class GatherReduce(Algorithm):
    """`F.embedding`, then sum, mean or maximum: over a dimension for fixed bags, over segments for ragged ones.

    Sums of 16-bit rows go through torch's own reductions, which add up in f32. One row per bag is a gather alone.
    """

    name = "gather_reduce"
    ops = ("embedding_bag",)

    def shape_refusal(self, workload: Workload, hardware: HardwareProfile) -> str:
        w = embedding_bag(workload)
        buffer = _buffer_bytes(w)
        if buffer > LARGEST_BUFFER_BYTES:
            most = LARGEST_BUFFER_BYTES >> 20
            return f"its buffer of rows would take {buffer >> 20} MiB, and {most} MiB is the most it may"
        if w.dtype in ("f16", "bf16") and (w.weighted or w.lengths == "ragged"):
            return f"products and segments would be rounded to {w.dtype} one by one"
        return ""

    def space(self, workload: Workload, hardware: HardwareProfile) -> SearchSpace:
        return SearchSpace({"threads": thread_counts(hardware)}, seeds=({"threads": hardware.allowed_cpus},))

    def build(self, workload: Workload, params: Params, constants: Constants) -> Built:
        w = embedding_bag(workload)
        threads, weight = params["threads"], constants["weight"]
        assert isinstance(threads, int)
        assert weight is not None
        kernel = _ragged(w, weight.detach()) if w.lengths == "ragged" else _fixed(w, weight.detach())
        return Built(limited(kernel, threads), _buffer_bytes(w))


def _buffer_bytes(w: EmbeddingBag) -> int:
    return w.lookups * w.dim * ITEMSIZE_BYTES[w.dtype]


def _fixed(w: EmbeddingBag, table: torch.Tensor) -> Kernel:
    import torch
    import torch.nn.functional as F

    mode, weighted = w.mode, w.weighted

    def call(indices: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        rows = F.embedding(indices, table)
        if weighted:
            return torch.bmm(rest[-1][:, None], rows)[:, 0]
        if indices.shape[1] == 1:
            return rows[:, 0]
        if mode == "max":
            return rows.amax(1) if indices.shape[1] else rows.new_zeros(rows.shape[0], rows.shape[2])
        return rows.sum(1) if mode == "sum" or not indices.shape[1] else rows.mean(1)

    return call


def _ragged(w: EmbeddingBag, table: torch.Tensor) -> Kernel:
    import torch
    import torch.nn.functional as F

    mode = w.mode

    def call(indices: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        _, _, weights = split(w, (indices, *rest))
        bags, lengths = lengths_of(indices, rest[0])
        rows = F.embedding(indices, table)
        if weights is not None:
            rows = rows * weights[:, None]
        if not rows.numel():
            return table.new_zeros(bags, table.shape[1])
        reduced = torch.segment_reduce(rows, mode, lengths=lengths, axis=0)
        return reduced if mode == "sum" else reduced.masked_fill_((lengths == 0)[:, None], 0)

    return call
