"""embedding_bag: y[bag] = sum, mean or maximum of the rows of a constant table that the bag's indices name."""

from __future__ import annotations

import math

from autotune.dtypes import ITEMSIZE_BYTES, TORCH_NAMES, product_tolerance
from autotune.errors import InvalidInput
from autotune.noun import noun
from autotune.ops import Op
from autotune.ops.constants import check_weight_and_bias
from autotune.types import Workload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import torch

    from autotune.ops import Kernel

MODES = ("sum", "mean", "max")
LENGTHS = ("fixed", "ragged")
INDEXES = {"i64": "int64", "i32": "int32"}
DISTRIBUTIONS = ("uniform", "zipf")
DTYPES = ("f64", "f32", "f16", "bf16")

COLD_BYTES = 128 << 20
"""Rows that timing goes through before it comes back to one, at most: more than caches hold."""

MOST_SETS = 512


@noun
class EmbeddingBag(Workload):
    """Lookups in a table of `rows` by `dim`: `bags` results, of `pooling` rows each.

    `lengths`: "fixed" bags have exactly `pooling` indices, [bags, pooling]; "ragged" ones `pooling` on average, none to
    2 · pooling, concatenated, with the offset at which each bag begins. An empty bag gives zeros. `weighted`: each
    row is multiplied by a weight of its lookup (sums only). `index`: type of indices and offsets. `distribution`: how
    the indices fall, which decides what caches hold: "uniform", or "zipf", where the row of rank r is looked up 1/r
    as often as the first (Zipf's law with exponent 1).
    """

    op = "embedding_bag"
    minimum = {"rows": 1}  # noqa: RUF012 - read-only
    choices = {"mode": MODES, "lengths": LENGTHS, "index": tuple(INDEXES), "distribution": DISTRIBUTIONS}  # noqa: RUF012 - read-only

    rows: int
    dim: int
    bags: int
    pooling: int
    mode: str = "sum"
    weighted: bool = False
    lengths: str = "fixed"
    dtype: str = "f32"
    index: str = "i64"
    distribution: str = "uniform"

    def validate(self) -> None:
        if self.weighted and self.mode != "sum":
            raise InvalidInput(f"weights per lookup go with mode=sum only, not {self.mode}")
        if self.dtype not in DTYPES:
            raise InvalidInput(f"embedding_bag is computed in {', '.join(DTYPES)}, not {self.dtype}")
        if self.index == "i32" and self.rows > 2**31:
            raise InvalidInput(f"i32 indices do not reach rows={self.rows}")

    @property
    def lookups(self) -> int:
        """Rows read, on average where bags are ragged."""
        return self.bags * self.pooling

    @property
    def flops(self) -> int:
        return self.lookups * self.dim * (2 if self.weighted else 1)

    @property
    def bytes(self) -> int:
        """Each row that may be named is read once: the table, or as many rows as there are lookups."""
        item = ITEMSIZE_BYTES[self.dtype]
        return min(self.lookups, self.rows) * self.dim * item + self._call_bytes

    @property
    def operand_bytes(self) -> int:
        return self.rows * self.dim * ITEMSIZE_BYTES[self.dtype] + self._call_bytes

    @property
    def _call_bytes(self) -> int:
        """Indices, offsets, weights and the result."""
        item, index = ITEMSIZE_BYTES[self.dtype], 8 if self.index == "i64" else 4
        offsets = self.bags * index if self.lengths == "ragged" else 0
        return self.lookups * (index + item * self.weighted) + offsets + self.bags * self.dim * item

    @property
    def input_bytes(self) -> int:
        return self._call_bytes - self.output_bytes

    @property
    def output_bytes(self) -> int:
        return self.bags * self.dim * ITEMSIZE_BYTES[self.dtype]

    @classmethod
    def of(
        cls,
        weight: torch.Tensor,
        indices: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
        mode: str = "mean",
        distribution: str = "uniform",
    ) -> EmbeddingBag:
        """The workload of `F.embedding_bag(indices, weight, offsets, mode=mode, per_sample_weights=…)`.

        weight [rows, dim]; indices [bags, pooling], or [lookups] with offsets [bags].
        """
        names = {name: short for short, name in TORCH_NAMES.items()}
        dtype, index = (str(t.dtype).removeprefix("torch.") for t in (weight, indices))
        if weight.dim() != 2 or dtype not in names:
            raise InvalidInput(f"embedding_bag needs a table [rows, dim], not {weight.dtype} {list(weight.shape)}")
        if index not in INDEXES.values():
            raise InvalidInput(f"embedding_bag needs int64 or int32 indices, not {index}")
        if (indices.dim(), offsets is not None) not in ((2, False), (1, True)):
            found = f"{list(indices.shape)} {'with' if offsets is not None else 'without'} offsets"
            raise InvalidInput(f"embedding_bag needs indices [bags, pooling], or [lookups] and offsets, not {found}")
        if offsets is None:
            bags, pooling = indices.shape
        else:
            bags, pooling = len(offsets), math.ceil(len(indices) / max(len(offsets), 1))
        rows, dim = weight.shape
        return cls(
            rows, dim, bags, pooling, mode, per_sample_weights is not None, LENGTHS[offsets is not None],
            names[dtype], "i64" if index == "int64" else "i32", distribution,
        )  # fmt: skip


class EmbeddingBagOp(Op):
    """A kernel is called with indices, then offsets if bags are ragged, then weights if there are any."""

    name = "embedding_bag"
    workload = EmbeddingBag
    constant_names = ("weight",)

    def constants(self, workload: Workload, seed: int) -> dict[str, torch.Tensor | None]:
        import torch

        w = embedding_bag(workload)
        random = torch.Generator().manual_seed(2 * seed)
        table = torch.empty((w.rows, w.dim), dtype=getattr(torch, TORCH_NAMES[w.dtype]))
        return {"weight": table.normal_(generator=random)}  # in place: a table may be most of the memory

    def inputs(self, workload: Workload, seed: int) -> tuple[torch.Tensor, ...]:
        import torch

        w = embedding_bag(workload)
        random = torch.Generator().manual_seed(2 * seed + 1)
        index = getattr(torch, INDEXES[w.index])
        shape: tuple[int, ...] = (w.bags, w.pooling)
        made = []
        if w.lengths == "ragged":
            lengths = torch.randint(0, 2 * w.pooling + 1, (w.bags,), generator=random)
            ends = lengths.cumsum(0)
            made.append((ends - lengths).to(index))
            shape = (int(ends[-1]) if w.bags else 0,)
        indices = drawn_indices(w, shape, random).to(index)
        if w.weighted:
            made.append(torch.randn(shape, generator=random).to(getattr(torch, TORCH_NAMES[w.dtype])))
        return indices, *made

    def input_sets(self, workload: Workload) -> int:
        w = embedding_bag(workload)
        item = ITEMSIZE_BYTES[w.dtype]
        once = max(1, w.lookups * w.dim * item)
        return min(MOST_SETS, 2 + min(COLD_BYTES, 2 * w.rows * w.dim * item) // once)

    def reference(
        self, workload: Workload, constants: dict[str, torch.Tensor | None], inputs: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        import torch

        w = embedding_bag(workload)
        indices, offsets, weights = split(w, inputs)
        table = constants["weight"]
        assert table is not None
        rows = table[indices.reshape(-1).long()].to(torch.float64)  # those looked up, not the table
        if weights is not None:
            rows *= weights.reshape(-1, 1).to(torch.float64)
        bags, lengths = lengths_of(indices, offsets)
        bag_of = torch.repeat_interleave(torch.arange(bags), lengths)
        exact = torch.zeros((bags, table.shape[1]), dtype=torch.float64)
        if w.mode == "max":
            return exact.scatter_reduce_(0, bag_of[:, None].expand(rows.shape), rows, "amax", include_self=False)
        exact.index_add_(0, bag_of, rows)
        return exact / lengths.clamp(min=1)[:, None] if w.mode == "mean" else exact

    def magnitude(
        self, workload: Workload, constants: dict[str, torch.Tensor | None], inputs: tuple[torch.Tensor, ...]
    ) -> float:
        """rms of the rows (some of them), times √pooling for sums, over it for means."""
        w = embedding_bag(workload)
        indices, _, weights = split(w, inputs)
        table = constants["weight"]
        assert table is not None
        if not indices.numel() or not w.dim:
            return 0.0
        typical = float(table[indices.reshape(-1)[:4096].long()].double().square().mean().sqrt())
        if weights is not None:
            typical *= float(weights.double().square().mean().sqrt())
        power: float = {"sum": 0.5, "mean": -0.5, "max": 0.0}[w.mode]
        return float(typical * max(w.pooling, 1) ** power)

    def plain(self, workload: Workload, constants: dict[str, Any]) -> Kernel:
        """`F.embedding_bag`, except where there is nothing to add up, which some of its kernels do not survive."""
        import torch.nn.functional as F

        w = embedding_bag(workload)
        table: torch.Tensor = constants["weight"].detach()
        mode, dim = w.mode, w.dim
        ragged, weighted = w.lengths == "ragged", w.weighted

        def call(indices: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
            offsets = rest[0] if ragged else None
            weights = rest[-1] if weighted else None
            if not indices.numel() or not dim:
                return table.new_zeros(len(indices) if offsets is None else len(offsets), dim)
            y: torch.Tensor = F.embedding_bag(indices, table, offsets, mode=mode, per_sample_weights=weights)
            return y

        return call

    def result_dtype(self, workload: Workload, inputs: tuple[torch.Tensor, ...]) -> torch.dtype:
        import torch

        dtype: torch.dtype = getattr(torch, TORCH_NAMES[embedding_bag(workload).dtype])
        return dtype

    def check_constants(self, workload: Workload, constants: dict[str, Any]) -> None:
        w = embedding_bag(workload)
        check_weight_and_bias(w.spec, constants, (w.rows, w.dim), w.dim, w.dtype, False)

    def acceptor(self, workload: Workload) -> Callable[..., bool]:
        """Any number of bags and indices."""
        import torch

        w = embedding_bag(workload)
        ragged, weighted = w.lengths == "ragged", w.weighted
        count, dims = 1 + ragged + weighted, 1 if ragged else 2
        index, dtype = getattr(torch, INDEXES[w.index]), getattr(torch, TORCH_NAMES[w.dtype])
        grad_enabled = torch.is_grad_enabled

        def accepts(*inputs: torch.Tensor) -> bool:
            if len(inputs) != count:
                return False
            indices, weights = inputs[0], inputs[-1]
            if indices.dtype is not index or indices.dim() != dims:
                return False
            if ragged and (inputs[1].dtype is not index or inputs[1].dim() != 1):
                return False
            return not weighted or (
                weights.dtype is dtype
                and weights.shape == indices.shape
                and not (weights.requires_grad and grad_enabled())
            )

        return accepts

    def tolerance(self, workload: Workload) -> float:
        """Of the longest sum there may be."""
        w = embedding_bag(workload)
        return product_tolerance(2 * w.pooling if w.lengths == "ragged" else w.pooling, w.dtype)


def embedding_bag(workload: Workload) -> EmbeddingBag:
    assert isinstance(workload, EmbeddingBag)
    return workload


def split(
    w: EmbeddingBag, inputs: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """(indices, offsets or None, weights or None)."""
    return inputs[0], inputs[1] if w.lengths == "ragged" else None, inputs[-1] if w.weighted else None


def lengths_of(indices: torch.Tensor, offsets: torch.Tensor | None) -> tuple[int, torch.Tensor]:
    """Number of bags, and how many indices each has (int64)."""
    import torch

    if offsets is None:
        bags, pooling = indices.shape
        return bags, torch.full((bags,), pooling)
    ends = torch.cat((offsets[1:].long(), torch.tensor([indices.numel()])))[: len(offsets)]
    return len(offsets), ends - offsets.long()


def drawn_indices(w: EmbeddingBag, shape: tuple[int, ...], random: torch.Generator) -> torch.Tensor:
    """Random int64 indices of that shape, distributed as the workload says."""
    import torch

    if w.distribution == "uniform":
        return torch.randint(0, w.rows, shape, generator=random)
    # The rank, by the inverse of the distribution: log(rank) is nearly uniform. Ranks are spread over the table by a
    # large prime, for popular rows are not neighbours.
    uniform = torch.rand(shape, generator=random, dtype=torch.float64)
    rank = ((w.rows + 1.0) ** uniform).long().sub_(1).clamp_(0, w.rows - 1)
    return (rank * (2_654_435_761 % w.rows or 1)).remainder_(w.rows)
