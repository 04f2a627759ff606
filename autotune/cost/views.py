"""How each op looks to the cost model: as a product of matrices, with what a convolution adds to that.

A new op gets a function here; one without is described by its operations and bytes alone.
"""

from __future__ import annotations

from math import log2

from autotune.dtypes import ITEMSIZE_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.types import Workload


class View:
    """A workload in numbers. Products per result: `depth`; results: `planes` matrices of `rows` by `columns`."""

    __slots__ = ("categories", "columns", "depth", "extra", "itemsize", "planes", "rows", "shape")

    def __init__(self, rows: int, columns: int, depth: int, planes: int, itemsize: int) -> None:
        self.rows, self.columns, self.depth, self.planes, self.itemsize = rows, columns, depth, planes, itemsize
        self.extra: dict[str, float] = {}
        self.categories: dict[str, str] = {}
        self.shape: tuple[object, ...] = ()


def view(workload: Workload) -> View:
    """The view of a workload; never raises for a valid one."""
    make = _VIEWS.get(workload.op, _other)
    made = make(workload)
    made.categories.setdefault("dtype", str(getattr(workload, "dtype", "")))
    return made


def shape_of(workload: Workload) -> tuple[object, ...]:
    """What makes a layer: its sizes without batch, rows, dtype and epilogue. Splits keep equal ones together."""
    return (workload.op, *view(workload).shape)


def distance(a: View, b: View) -> float:
    """Octaves between two workloads of an op: |log2| ratios of sizes summed, other differences count one each."""
    total = 0.0
    for name in _SIZES:
        x, y = getattr(a, name), getattr(b, name)
        total += abs(log2(max(x, 1)) - log2(max(y, 1)))
    for name in a.extra.keys() | b.extra.keys():
        total += 0.5 * min(abs(a.extra.get(name, 0.0) - b.extra.get(name, 0.0)), 4.0)
    for name in a.categories.keys() | b.categories.keys():
        total += 1.0 if a.categories.get(name) != b.categories.get(name) else 0.0
    return total


def place(seen: View, extras: Sequence[str]) -> list[float]:
    """A view as a point, in which `distance` is that of its coordinates, the extras' at most 2 each."""
    sizes = [log2(max(getattr(seen, name), 1)) for name in _SIZES]
    return sizes + [0.5 * seen.extra.get(name, 0.0) for name in extras]


_SIZES = ("rows", "columns", "depth", "planes")


def _linear(w: Workload) -> View:
    d = w.dims()
    made = View(int(w.m), int(w.n), int(w.k), 1, ITEMSIZE_BYTES[str(d["dtype"])])  # type: ignore[attr-defined]  # one of that op
    made.extra = {"bias": float(bool(d.get("bias", False)))}
    made.categories = {
        "layout": str(d.get("weight_layout", "contiguous")),
        "activation": str(d.get("activation", "none")),
    }
    made.shape = (made.columns, made.depth)
    return made


def _gemm(w: Workload) -> View:
    d = w.dims()
    made = View(int(w.m), int(w.n), int(w.k), int(w.batch), ITEMSIZE_BYTES[str(d["dtype"])])  # type: ignore[attr-defined]  # one of that op
    layouts = (str(d.get("a_layout", "contiguous")), str(d.get("b_layout", "contiguous")))
    made.categories = {"layout": "|".join(layouts)}
    made.shape = (made.rows, made.columns, made.depth)
    return made


def _conv2d(workload: Workload) -> View:
    from autotune.ops.conv2d import conv

    w = conv(workload)
    pixels, per_group = w.out_h * w.out_w, w.k // w.groups
    if w.layout == "channels_last":
        made = View(pixels * w.n, per_group, w.depth, w.groups, ITEMSIZE_BYTES[w.dtype])
    else:
        made = View(per_group, pixels, w.depth, w.groups * w.n, ITEMSIZE_BYTES[w.dtype])
    made.extra = {
        "images": log2(max(w.n, 1)), "channels": log2(w.c), "filters": log2(w.k), "height": log2(max(w.h, 1)),
        "width": log2(max(w.w, 1)), "filter_h": float(w.r), "filter_w": float(w.s), "stride_h": float(w.strides[0]),
        "stride_w": float(w.strides[1]), "dilation": float(max(w.dilations)), "groups": log2(w.groups),
        "padded": float(any(w.sides)), "pointwise": float(w.is_pointwise), "depthwise": float(w.is_depthwise),
        "bias": float(w.bias), "residual": float(w.residual),
    }  # fmt: skip
    made.categories = {"layout": w.layout, "activation": w.activation}
    made.shape = (w.c, w.h, w.w, w.k, w.r, w.s, w.strides, w.sides, w.dilations, w.groups)
    return made


def _attention(workload: Workload) -> View:
    """Scores: rows are the queries that share keys, columns the keys."""
    from autotune.ops.attention import attention

    w = attention(workload)
    made = View(w.group * w.q_len, w.kv_len, w.head_dim, w.batch * w.kv_heads, ITEMSIZE_BYTES[w.dtype])
    made.extra = {"group": log2(w.group), "queries": log2(max(w.q_len, 1)), "causal": float(w.causal)}
    made.categories = {"layout": w.layout}
    made.shape = (w.heads, w.kv_heads, w.head_dim, w.kv_len, w.causal)
    return made


def _embedding_bag(workload: Workload) -> View:
    """A sparse matrix of bags by rows, `pooling` entries in each line, times the table."""
    from autotune.ops.embedding_bag import embedding_bag

    w = embedding_bag(workload)
    made = View(w.bags, w.dim, w.pooling, 1, ITEMSIZE_BYTES[w.dtype])
    table = max(w.rows * w.dim * made.itemsize, 1)
    made.extra = {
        "table_rows": log2(w.rows), "table_bytes": log2(table), "weighted": float(w.weighted),
        "index_bytes": 8.0 if w.index == "i64" else 4.0,
    }  # fmt: skip
    made.categories = {"mode": w.mode, "lengths": w.lengths, "distribution": w.distribution}
    made.shape = (w.rows, w.dim, w.pooling, w.mode, w.lengths)
    return made


def _other(w: Workload) -> View:
    made = View(0, 0, 0, 0, ITEMSIZE_BYTES.get(str(getattr(w, "dtype", "")), 4))
    made.shape = (w.spec,)
    return made


_VIEWS = {
    "linear": _linear,
    "gemm": _gemm,
    "conv2d": _conv2d,
    "attention": _attention,
    "embedding_bag": _embedding_bag,
}
