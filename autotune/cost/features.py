"""Features of (workload, hardware, config): one place, for training and for lookup.

`Table` holds the numbers of configs, which do not depend on the workload and are made once; `FeatureSet.matrix` adds
workload, hardware and what arises between them, for all configs at once. Where a number has no meaning (a tile of
an algorithm without tiles) it is NaN, which trees treat as missing. Categories are one column each
("algorithm=tiled"): a value never seen has 0 in all of them, never another's code, and lookup does not predict for it.

The interactions, for a register tile of MR x NR over R x C results of depth D:

- tile efficiency: R·C / (⌈R/MR⌉·MR · ⌈C/NR⌉·NR), the useful share of the multiplications; by rows and by columns too.
- loads per multiplication: (MR + NR/lanes) / (MR · NR/lanes); share of the vector registers in use.
- units: what the split axis is cut into; per task; fill of the last wave: units / (⌈units/tasks⌉·tasks).
- panels: bytes of a KC x NR panel against L1, of an MC x KC block against L2, of constants and operands against L3.
- roofline: max(operations / peak of the threads used, bytes / bandwidth) (Williams, Waterman and Patterson, CACM
  52(4), 2009), with the operations an algorithm really does and the bytes that it moves beyond the operands.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.cost.views import View, view
from autotune.dtypes import ITEMSIZE_BYTES
from autotune.types import Config, HardwareProfile, Workload

VERSION = 2
"""Of the meaning of the features. A model made for another one is refused."""

Array = npt.NDArray[np.float32]

CLOCK_GHZ = 2.5
BANDWIDTH_GBS = 10.0
"""Assumed per core where nothing was measured: only their ratio between configs matters then."""

WORKLOAD = (
    "log2_rows", "log2_columns", "log2_depth", "log2_planes", "log2_flops", "log2_bytes", "log2_intensity",
    "rows_beyond_8", "columns_beyond_16", "depth_beyond_16", "itemsize_bytes",
)  # fmt: skip
HARDWARE = (
    "log2_cpus", "log2_l1_bytes", "log2_l2_bytes", "log2_l3_bytes", "vector_bytes", "log2_peak_gflops",
    "log2_bandwidth_gbs",
)  # fmt: skip
INTERACTIONS = (
    "tile_efficiency", "row_efficiency", "column_efficiency", "accumulators", "loads_per_multiply", "register_share",
    "cpu_share", "log2_units", "log2_units_per_task", "wave_fill", "log2_flops_per_task", "log2_panel_of_l1",
    "log2_block_of_l2", "log2_constants_of_l2", "log2_operands_of_l3", "work_share", "log2_extra_bytes_share",
    "log2_roofline_ns", "log2_roofline_of_default", "log2_depth_block", "log2_depth_blocks",
)  # fmt: skip


class Table:
    """Configs as columns of numbers: `numbers[name]` (NaN where a config has no such parameter), `texts[name]`."""

    def __init__(self, configs: Iterable[Config]) -> None:
        self.configs = tuple(configs)
        count = len(self.configs)
        numbers: dict[str, Array] = {}
        texts: dict[str, list[str]] = {"algorithm": [c.algorithm for c in self.configs]}
        for index, config in enumerate(self.configs):
            for name, value in flat(config):
                if isinstance(value, str):
                    texts.setdefault(name, [""] * count)[index] = value
                else:
                    if name not in numbers:
                        numbers[name] = np.full(count, np.nan, np.float32)
                    numbers[name][index] = value
        self.numbers = numbers
        self.texts = {name: np.array(values, dtype=object) for name, values in texts.items()}
        self._missing = np.full(count, np.nan, np.float32)

    def __len__(self) -> int:
        return len(self.configs)

    def number(self, name: str) -> Array:
        return self.numbers.get(name, self._missing)

    def equals(self, name: str, value: str) -> npt.NDArray[np.bool_]:
        found = self.texts.get(name)
        if found is None:
            return np.zeros(len(self), np.bool_)
        return np.asarray(found == value, np.bool_)


def flat(config: Config) -> list[tuple[str, float | str]]:
    """The parameters one by one; of a tuple, its items as name[0], name[1] … Texts stay texts."""
    found: list[tuple[str, float | str]] = []
    for name, value in config.params.items():
        if isinstance(value, tuple):
            found += [(f"{name}[{i}]", float(item)) for i, item in enumerate(value) if isinstance(item, (int, float))]
        elif isinstance(value, str):
            found.append((name, value))
        elif isinstance(value, (int, float)):
            found.append((name, float(value)))
    return found


class FeatureSet:
    """The features of one op's model: `names` in the order of the matrix's columns.

    `params`: numeric parameters; `extras`: what the op's view adds; `categories`: field → values seen in training, of
    the workload (dtype, layout, activation) and of configs (algorithm and text parameters).
    """

    def __init__(self, params: Sequence[str], extras: Sequence[str], categories: Mapping[str, Sequence[str]]) -> None:
        self.params, self.extras = tuple(params), tuple(extras)
        self.categories = {name: tuple(values) for name, values in sorted(categories.items())}
        self.names = (
            *WORKLOAD,
            *(f"op.{name}" for name in self.extras),
            *HARDWARE,
            *(f"param.{name}" for name in self.params),
            *INTERACTIONS,
            *(f"{field}={value}" for field, values in self.categories.items() for value in values),
        )
        self._order: list[int] | None = None

    @classmethod
    def of(cls, workloads: Iterable[Workload], configs: Iterable[Config]) -> FeatureSet:
        """What these workloads and configs call for."""
        params: set[str] = set()
        extras: set[str] = set()
        categories: dict[str, set[str]] = {"algorithm": set()}
        for workload in workloads:
            seen = view(workload)
            extras |= seen.extra.keys()
            for field, text in seen.categories.items():
                categories.setdefault(field, set()).add(text)
        for config in configs:
            categories["algorithm"].add(config.algorithm)
            for name, value in flat(config):
                if isinstance(value, str):
                    categories.setdefault(f"param.{name}", set()).add(value)
                else:
                    params.add(name)
        return cls(sorted(params), sorted(extras), {name: sorted(values) for name, values in categories.items()})

    def reordered(self, names: Sequence[str]) -> FeatureSet:
        """The same features with columns in that order; raises ValueError with a name that is missing or
        superfluous."""
        if sorted(names) != sorted(self.names):
            raise ValueError(next(iter(sorted(set(names) ^ set(self.names))), "one is there twice"))
        made = FeatureSet(self.params, self.extras, self.categories)
        if tuple(names) != self.names:
            where = {name: index for index, name in enumerate(self.names)}
            made._order, made.names = [where[name] for name in names], tuple(names)
        return made

    def unseen(self, workload: Workload) -> str:
        """The category of a workload that was not in training, as "dtype bf16"; "" when all were."""
        for field, value in view(workload).categories.items():
            if value not in self.categories.get(field, ()):
                return f"{field} {value}"
        return ""

    def knows(self, config: Config) -> bool:
        """Whether algorithm, parameters and their texts were all in training."""
        return config.algorithm in self.categories["algorithm"] and all(
            value in self.categories.get(f"param.{name}", ()) if isinstance(value, str) else name in self.params
            for name, value in flat(config)
        )

    def matrix(self, workload: Workload, hardware: HardwareProfile, table: Table) -> Array:
        """[len(table), len(names)] f32."""
        seen = view(workload)
        out = np.empty((len(table), len(self.names)), np.float32)
        fixed = [*_workload_numbers(workload, seen), *(seen.extra.get(name, math.nan) for name in self.extras)]
        fixed += hardware_numbers(hardware)
        out[:, : len(fixed)] = np.array(fixed, np.float32)
        at = len(fixed)
        for name in self.params:
            out[:, at] = table.number(name)
            at += 1
        for column in _interactions(workload, seen, hardware, table):
            out[:, at] = column
            at += 1
        for field, values in self.categories.items():
            own = seen.categories.get(field)
            for value in values:
                out[:, at] = table.equals(field.removeprefix("param."), value) if own is None else own == value
                at += 1
        return out if self._order is None else out[:, self._order]

    def workload_row(self, workload: Workload, hardware: HardwareProfile) -> Array:
        """[len(names)] with the config's columns missing: for what depends on the workload alone."""
        row: Array = self.matrix(workload, hardware, _NO_CONFIG)[0]
        return row

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "params": list(self.params),
            "extras": list(self.extras),
            "categories": {name: list(values) for name, values in self.categories.items()},
            "names": list(self.names),
        }


def _log2(value: float) -> float:
    return math.log2(value) if value > 0 else 0.0


def _workload_numbers(workload: Workload, seen: View) -> list[float]:
    flops, moved = float(workload.flops), float(workload.bytes)
    return [
        _log2(seen.rows), _log2(seen.columns), _log2(seen.depth), _log2(seen.planes), _log2(flops), _log2(moved),
        _log2(flops / moved) if moved else 0.0, seen.rows % 8 / 8, seen.columns % 16 / 16, seen.depth % 16 / 16,
        float(seen.itemsize),
    ]  # fmt: skip


def vector_bytes(hardware: HardwareProfile) -> int:
    """Width of the widest usable vectors."""
    return 64 if "avx512f" in hardware.isa else 32 if "avx2" in hardware.isa else 16


def hardware_numbers(hardware: HardwareProfile) -> list[float]:
    """In the order of `HARDWARE`."""
    peak, bandwidth = _peak_gflops(hardware, 4), _bandwidth_gbs(hardware)
    levels = [_log2(hardware.cache_bytes(level)) for level in (1, 2, 3)]
    return [_log2(hardware.allowed_cpus), *levels, float(vector_bytes(hardware)), _log2(peak), _log2(bandwidth)]


def _peak_gflops(hardware: HardwareProfile, itemsize: int) -> float:
    """Nominal, from vector width: two multiply-adds per cycle. Measured figures are on some profiles and not on others
    of one machine, and a feature may not jump with that."""
    return hardware.allowed_cpus * CLOCK_GHZ * 4 * vector_bytes(hardware) / max(itemsize, 4)


def _bandwidth_gbs(hardware: HardwareProfile) -> float:
    return hardware.allowed_cpus * BANDWIDTH_GBS


def roofline_ns(workload: Workload, hardware: HardwareProfile) -> float:
    """Nominal time of the default: all CPUs, every operand moved once."""
    itemsize = view(workload).itemsize
    return max(workload.flops / _peak_gflops(hardware, itemsize), workload.bytes / _bandwidth_gbs(hardware), 1.0)


def _interactions(workload: Workload, seen: View, hardware: HardwareProfile, table: Table) -> list[Any]:
    """In the order of `INTERACTIONS`."""
    with np.errstate(all="ignore"):
        return _computed(workload, seen, hardware, table)


def _computed(workload: Workload, seen: View, hardware: HardwareProfile, t: Table) -> list[Any]:
    item, cpus = seen.itemsize, float(hardware.allowed_cpus)
    wino, direct = t.equals("algorithm", "winograd"), t.equals("algorithm", "depthwise")
    lanes = t.number("vector") / item
    mr, nr = t.number("tile[0]"), t.number("tile[1]")
    out_h, out_w, images, channels, filters, taps = _image(workload)
    m = t.number("m")
    tiles = images * np.ceil(out_h / m) * np.ceil(out_w / m)
    rows = np.where(wino, tiles, float(seen.rows))
    columns = np.where(wino, filters, float(seen.columns))
    depth = np.where(wino, channels, float(seen.depth))
    mr = np.where(direct, t.number("rows"), mr)
    nr = np.where(direct, t.number("columns"), nr)
    rows, columns = np.where(direct, out_h, rows), np.where(direct, out_w, columns)
    row_tiles, column_tiles = np.ceil(rows / mr), np.ceil(columns / nr)
    by_rows, by_columns = rows / (row_tiles * mr), columns / (column_tiles * nr)
    vectors = np.where(direct, nr, nr / lanes)
    accumulators = mr * vectors
    registers = 32.0 if vector_bytes(hardware) == 64 else 16.0
    threads = t.number("threads")
    threads = np.where(np.isnan(threads), cpus, threads)
    chunks = np.nan_to_num(t.number("chunks"), nan=1.0)
    tasks = threads * chunks
    units = _units(t, seen, rows, columns, row_tiles, column_tiles, depth)
    work = np.where(wino, (m + 2) ** 2 * tiles * channels * filters * 2 / max(workload.flops, 1), 1.0)
    kc = t.number("kc")
    kc = np.where(np.isnan(kc) | (kc == 0), depth, np.minimum(kc, depth))
    mc = t.number("mc")
    mc = np.where(np.isnan(mc), t.number("block"), mc)
    mc = np.where(np.isnan(mc) | (mc == 0), rows, np.minimum(mc, rows))
    nc = t.number("nc")
    nc = np.where(np.isnan(nc) | (nc == 0), columns, np.minimum(nc, columns))
    panel, block = kc * nr * item, np.minimum(mc, rows) * kc * item
    constants = np.where(wino, (m + 2) ** 2 / max(taps, 1.0), 1.0) * depth * np.where(wino, taps, 1.0) * filters * item
    extra = _extra_bytes(t, workload, seen, wino, tiles, m, channels, filters, out_h * out_w * images, taps)
    l1, l2, l3 = (float(max(hardware.cache_bytes(level), 1)) for level in (1, 2, 3))
    share = threads / cpus
    moved = workload.bytes + extra
    time = np.maximum(
        workload.flops * work / (_peak_gflops(hardware, item) * share), moved / (_bandwidth_gbs(hardware) * share)
    )
    return [
        by_rows * by_columns, by_rows, by_columns, accumulators, (mr + vectors) / accumulators,
        (accumulators + vectors + 1) / registers, share, np.log2(units), np.log2(units / tasks),
        units / (np.ceil(units / tasks) * tasks), np.log2(workload.flops * work / tasks), np.log2(panel / l1),
        np.log2(block / l2), np.log2(constants / l2), np.log2(moved / l3), work,
        np.log2(1 + extra / max(workload.bytes, 1)),
        np.log2(time), np.log2(time / roofline_ns(workload, hardware)), np.log2(kc), np.log2(np.ceil(depth / kc)),
    ]  # fmt: skip


def _image(workload: Workload) -> tuple[float, ...]:
    """(out_h, out_w, images, channels, filters, taps) of a convolution; NaN of anything else, the weight's columns
    aside."""
    if workload.op != "conv2d":
        return math.nan, math.nan, math.nan, math.nan, float(view(workload).columns), 1.0
    from autotune.ops.conv2d import conv

    w = conv(workload)
    return float(w.out_h), float(w.out_w), float(w.n), float(w.c), float(w.k), float(w.r * w.s)


def _units(t: Table, seen: View, rows: Any, columns: Any, row_tiles: Any, column_tiles: Any, depth: Any) -> Any:
    """What the split axis is cut into; without one, rows."""
    channels_last = seen.categories.get("layout") == "channels_last"
    units = np.where(t.equals("algorithm", "depthwise"), seen.planes * 1.0, np.full(len(t), np.nan))
    if channels_last:
        units = np.where(t.equals("algorithm", "depthwise"), row_tiles, units)
    per_pixel = seen.planes * (row_tiles if channels_last else column_tiles)
    per_channel = seen.planes * (column_tiles if channels_last else row_tiles)
    for value, count in (
        ("m", row_tiles), ("n", column_tiles), ("k", np.ceil(depth / 128)),
        ("batch", np.full(len(t), float(seen.planes))),
        ("pixels", per_pixel), ("channels", per_channel), ("tiles", row_tiles),
    ):  # fmt: skip
        units = np.where(t.equals("split", value), count, units)
    units = np.where(t.equals("algorithm", "stream_kv"), seen.planes * t.number("splits"), units)
    channels_of_winograd = t.equals("algorithm", "winograd") & t.equals("split", "channels")
    return np.where(channels_of_winograd, column_tiles, units)


def _extra_bytes(
    t: Table, workload: Workload, seen: View, wino: Any, tiles: Any, m: Any, channels: float, filters: float,
    pixels: float, taps: float,
) -> Any:  # fmt: skip
    """Bytes moved beyond the operands: transformed tiles, patches written out, conversions of the layout."""
    extra = np.zeros(len(t), np.float32)
    if workload.op == "attention":
        return _attention_bytes(t, workload)
    if workload.op == "embedding_bag":
        from autotune.ops.embedding_bag import embedding_bag

        gathered = 2 * embedding_bag(workload).lookups * seen.columns * seen.itemsize
        return np.where(t.equals("algorithm", "gather_reduce"), float(gathered), extra)
    if workload.op != "conv2d":
        return extra
    item = seen.itemsize
    from autotune.ops.conv2d import conv

    w = conv(workload)
    image, result = float(w.n * w.c * w.h * w.w), pixels * filters
    converted = 2 * (image + result) * item
    extra = np.where(wino, 2 * (m + 2) ** 2 * tiles * (channels + filters) * item, extra)
    patches = 0.0 if w.is_pointwise and w.strides == (1, 1) else 2 * channels * taps * pixels * item
    extra = np.where(t.equals("algorithm", "unfold_mm"), patches, extra)
    extra = np.where(t.equals("algorithm", "torch_other_layout"), converted, extra)
    packed = t.equals("algorithm", "onednn_conv") & t.equals("weight", "packed") & (w.layout == "nchw")
    return np.where(packed, converted, extra)


def _attention_bytes(t: Table, workload: Workload) -> Any:
    """Scores that are written out, softened and read again; the f32 parts of split keys, written and read."""
    from autotune.ops.attention import attention

    w = attention(workload)
    rows = float(w.batch * w.heads * w.q_len)
    whole = t.equals("algorithm", "matmul_attention") | t.equals("backend", "math")
    splits = np.nan_to_num(t.number("split")) + np.nan_to_num(t.number("splits"))
    parts = np.where(splits > 1, 8 * splits * rows * (w.head_dim + 2), 0.0)
    return np.where(whole, 4 * rows * w.kv_len * ITEMSIZE_BYTES[w.dtype], parts)


_NO_CONFIG = Table([Config("-")])
