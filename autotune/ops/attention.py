"""attention: y = softmax(q · kᵀ / √d + mask) · v per head; grouped queries, causal masks, decoding steps."""

from __future__ import annotations

from autotune.dtypes import ITEMSIZE_BYTES, TORCH_NAMES, UNIT_ROUNDOFF, product_tolerance
from autotune.errors import InvalidInput
from autotune.noun import noun
from autotune.ops import Op
from autotune.types import Workload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import torch

    from autotune.ops import Kernel

LAYOUTS = ("bhsd", "bshd")
DTYPES = ("f64", "f32", "f16", "bf16")
REFERENCE_ELEMENTS = 1 << 22
"""Scores that the reference holds at once."""


@noun
class Attention(Workload):
    """Scaled dot-product attention: q [batch, heads, q_len, head_dim]; k, v [batch, kv_heads, kv_len, head_dim].

    Scores are scaled by 1/√head_dim. `kv_heads` divides `heads`: query head i reads key and value head
    i / (heads / kv_heads), as `enable_gqa` of torch has it. `causal`: the last query is at the last position, so query
    i sees the keys 0 … kv_len - q_len + i. That is a prompt where q_len = kv_len, a further part of a prompt where
    it is less, and masks nothing where q_len = 1: such a workload is the one without a mask. (torch's `is_causal`
    counts from the first position; both are the same where q_len = kv_len.)

    `layout`: how operands and result lie in memory, [batch, heads, positions, dim] or [batch, positions, heads, dim];
    their shape is the former in both cases.
    """

    op = "attention"
    minimum = {"heads": 1, "kv_heads": 1, "head_dim": 1}  # noqa: RUF012 - read-only
    choices = {"layout": LAYOUTS}  # noqa: RUF012 - read-only

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    causal: bool = False
    dtype: str = "f32"
    layout: str = "bhsd"

    def validate(self) -> None:
        if self.heads % self.kv_heads:
            raise InvalidInput(f"kv_heads={self.kv_heads} must divide heads={self.heads}")
        if self.dtype not in DTYPES:
            raise InvalidInput(f"attention is computed in {', '.join(DTYPES)}, not {self.dtype}")
        if self.causal and self.q_len > self.kv_len:
            raise InvalidInput(f"of q_len={self.q_len} queries the first would see none of kv_len={self.kv_len} keys")

    def __post_init__(self) -> None:
        if self.q_len == 1 and self.causal in (True, False):
            object.__setattr__(self, "causal", False)
        super().__post_init__()

    @property
    def group(self) -> int:
        """Query heads per key and value head."""
        return self.heads // self.kv_heads

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key that it sees, per head."""
        hidden = self.q_len * (self.q_len - 1) // 2 if self.causal else 0
        return self.q_len * self.kv_len - hidden

    @property
    def flops(self) -> int:
        return 4 * self.batch * self.heads * self.pairs * self.head_dim

    @property
    def bytes(self) -> int:
        rows = 2 * self.heads * self.q_len + 2 * self.kv_heads * self.kv_len
        return self.batch * rows * self.head_dim * ITEMSIZE_BYTES[self.dtype]

    @property
    def input_bytes(self) -> int:
        return self.bytes - self.output_bytes

    @property
    def output_bytes(self) -> int:
        return self.batch * self.heads * self.q_len * self.head_dim * ITEMSIZE_BYTES[self.dtype]

    @classmethod
    def of(cls, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False) -> Attention:
        """The workload of `F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)`; see `causal`.

        The layout is that of k, by the order of its strides: a part of a key/value cache has that of the cache.
        """
        names = {name: short for short, name in TORCH_NAMES.items()}
        dtype = str(q.dtype).removeprefix("torch.")
        found = f"{list(q.shape)}, {list(k.shape)} and {list(v.shape)}"
        fits = q.dim() == k.dim() == 4 and k.shape == v.shape and q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3]
        if not fits:
            raise InvalidInput(f"attention needs q [b, h, s, d] and k, v [b, h', s', d], not {found}")
        if not q.dtype == k.dtype == v.dtype or dtype not in names:
            raise InvalidInput(f"attention needs operands of one dtype, not {q.dtype}, {k.dtype} and {v.dtype}")
        batch, heads, q_len, head_dim = q.shape
        _, kv_heads, kv_len, _ = k.shape
        return cls(batch, heads, kv_heads, q_len, kv_len, head_dim, causal, names[dtype], layout_of(k))


class AttentionOp(Op):
    name = "attention"
    workload = Attention

    def constants(self, workload: Workload, seed: int) -> dict[str, torch.Tensor | None]:
        return {}

    def inputs(self, workload: Workload, seed: int) -> tuple[torch.Tensor, ...]:
        import torch

        w = attention(workload)
        random = torch.Generator().manual_seed(seed)
        dtype = getattr(torch, TORCH_NAMES[w.dtype])

        def drawn(heads: int, length: int) -> torch.Tensor:
            return in_layout(torch.randn((w.batch, heads, length, w.head_dim), generator=random).to(dtype), w.layout)

        return drawn(w.heads, w.q_len), drawn(w.kv_heads, w.kv_len), drawn(w.kv_heads, w.kv_len)

    def reference(
        self, workload: Workload, constants: dict[str, torch.Tensor | None], inputs: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        """Head by head and some rows at a time: the scores of all heads in f64 would not fit."""
        import torch

        q, k, v = inputs
        causal = attention(workload).causal
        batch, heads, q_len, head_dim = q.shape
        kv_heads, kv_len = k.shape[1:3]
        exact = torch.zeros((batch, heads, q_len, head_dim), dtype=torch.float64)
        rows = max(1, REFERENCE_ELEMENTS // max(kv_len, 1))
        last = torch.arange(q_len) + kv_len - q_len
        for b in range(batch):
            for h in range(heads):
                keys, values = (t[b, h * kv_heads // heads].to(torch.float64) for t in (k, v))
                for begin in range(0, q_len if kv_len else 0, rows):
                    part = slice(begin, begin + rows)
                    scores = q[b, h, part].to(torch.float64) @ keys.T * head_dim**-0.5
                    if causal:
                        scores.masked_fill_(torch.arange(kv_len) > last[part, None], float("-inf"))
                    exact[b, h, part] = torch.softmax(scores, -1) @ values
        return exact

    def magnitude(
        self, workload: Workload, constants: dict[str, torch.Tensor | None], inputs: tuple[torch.Tensor, ...]
    ) -> float:
        """A mean of kv_len values: the root mean square of v / √kv_len."""
        v = inputs[2]
        return float((v.double().square().mean() / v.shape[2]).sqrt()) if v.numel() else 0.0

    def plain(self, workload: Workload, constants: dict[str, Any]) -> Kernel:
        """`F.scaled_dot_product_attention`, its backend left to torch; where it is to be bshd, so is the result."""
        import torch.nn.functional as F

        w = attention(workload)
        mask, grouped, bshd = causal_mask(w), w.group > 1, w.layout == "bshd"

        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            causal, seen = mask(q, k)
            y = F.scaled_dot_product_attention(q, k, v, seen, is_causal=causal, enable_gqa=grouped)
            return in_layout(y, "bshd") if bshd else y

        return call

    def result_problem(self, workload: Workload, result: torch.Tensor) -> str:
        """torch's own result is [b, s, h, d] whatever the operands are, so that is right for bhsd, too."""
        w = attention(workload)
        if result.transpose(1, 2).is_contiguous() or (w.layout == "bhsd" and result.is_contiguous()):
            return ""
        return f"the result is not {w.layout}: its strides are {list(result.stride())}"

    def other_layouts(self, workload: Workload) -> tuple[Workload, ...]:
        w = attention(workload)
        return tuple(Attention.from_dims({**w.dims(), "layout": layout}) for layout in LAYOUTS if layout != w.layout)

    def check_constants(self, workload: Workload, constants: dict[str, Any]) -> None:
        if constants:
            raise InvalidInput("attention has no constant operands: call build() and pass q, k and v to the result")

    def acceptor(self, workload: Workload) -> Callable[..., bool]:
        """Any batch and lengths, so that one kernel serves a cache that grows; one query where it was tuned for one."""
        import torch

        w = attention(workload)
        heads, kv_heads, head_dim, causal, one = w.heads, w.kv_heads, w.head_dim, w.causal, w.q_len == 1
        dtype, grad_enabled = getattr(torch, TORCH_NAMES[w.dtype]), torch.is_grad_enabled

        def accepts(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
            if not (q.dtype is dtype and k.dtype is dtype and v.dtype is dtype):
                return False
            shape, keys = q.shape, k.shape
            return (
                len(shape) == len(keys) == 4
                and keys == v.shape
                and shape[0] == keys[0]
                and shape[1] == heads
                and keys[1] == kv_heads
                and shape[3] == head_dim == keys[3]
                and (shape[2] == 1) == one
                and (not causal or shape[2] <= keys[2])
                and not ((q.requires_grad or k.requires_grad or v.requires_grad) and grad_enabled())
            )

        return accepts

    def tolerance(self, workload: Workload) -> float:
        """That of two chained sums, and 4·u more: torch rounds scores and probabilities to the dtype, too."""
        w = attention(workload)
        return product_tolerance(w.head_dim + w.kv_len, w.dtype) + 4 * UNIT_ROUNDOFF[w.dtype]


def attention(workload: Workload) -> Attention:
    assert isinstance(workload, Attention)
    return workload


def layout_of(tensor: torch.Tensor) -> str:
    """The layout of a [b, h, s, d] tensor by the order of its strides; bhsd where both fit."""
    _, heads, length, _ = tensor.shape
    _, head, position, _ = tensor.stride()
    return "bshd" if 0 < head < position and heads > 1 and length > 1 else "bhsd"


def in_layout(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The [b, h, s, d] tensor stored as the layout says; itself when it is already."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2) if layout == "bshd" else tensor.contiguous()


def causal_mask(w: Attention) -> Callable[[torch.Tensor, torch.Tensor], tuple[bool, torch.Tensor | None]]:
    """(q, k) → what torch calls `is_causal`, and a mask where that would begin at the wrong position."""
    import torch

    masks: dict[tuple[int, int, torch.device], torch.Tensor] = {}

    def of(q: torch.Tensor, k: torch.Tensor) -> tuple[bool, torch.Tensor | None]:
        q_len, kv_len = q.shape[2], k.shape[2]
        if q_len == kv_len or q_len == 1:
            return q_len != 1, None
        made = masks.get((q_len, kv_len, q.device))
        if made is None:
            masks.clear()  # one of a size: of a prompt that comes in parts, each is another
            made = torch.ones((q_len, kv_len), dtype=torch.bool, device=q.device).tril(kv_len - q_len)
            masks[q_len, kv_len, q.device] = made
        return False, made

    return of if w.causal else lambda _q, _k: (False, None)
