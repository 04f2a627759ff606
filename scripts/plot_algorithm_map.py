"""The algorithm map: which algorithm wins over channels and image size, drawn from the tuning database.

Each tuned convolution is one mark: across, the side of its result in pixels; up, the geometric mean of its channels
in and out; the colour is the algorithm that won on this machine, the size how much it gained over torch's
default, which is grey where it stays. One panel per kind of layer. Needs matplotlib.

    python scripts/plot_algorithm_map.py --out map.svg
    python scripts/plot_algorithm_map.py --batch 8 --layout channels_last --out map.png

A suite that fills the map evenly, to be tuned with `autotune sweep --suite grid.toml`:

    title = "a grid of 3x3 layers"
    [[layer]]
    name = "3x3"
    workload = "conv2d n=1 c={c} h={h} w={h} k={c} r=3 s=3 padding=1 bias=1 activation=relu"
    c = [16, 32, 64, 128, 256, 512]
    h = [7, 14, 28, 56, 112]
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import Any

from autotune import decide, environment, hardware, registry, settings
from autotune.errors import AutotuneError, InvalidInput
from autotune.ops.conv2d import LAYOUTS, Conv2d
from autotune.report.figure import pyplot, save
from autotune.store import Store
from autotune.store.sql import open_store

PANELS = ("3x3, stride 1", "1x1", "depthwise", "other")
DEFAULT = "torch (default)"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#000000")
"""Okabe and Ito's, which colour-blind readers tell apart; in order of the algorithms' names."""


LARGEST = 4.0
"""Speed-ups above this are drawn as this: a mark of its true size would cover its neighbours."""


@dataclass(frozen=True)
class Mark:
    """One decided workload. `size`: geometric mean of the result's height and width; `channels`: of c and k."""

    panel: str
    size: float
    channels: float
    algorithm: str
    speedup: float


def panel_of(w: Conv2d) -> str:
    if w.is_depthwise:
        return "depthwise"
    if w.is_pointwise and w.groups == 1:
        return "1x1"
    plain = w.strides == w.dilations == (1, 1) and w.groups == 1
    return "3x3, stride 1" if plain and w.r == w.s == 3 else "other"


def marks(store: Store, batch: int, layout: str, dtype: str) -> list[Mark]:
    """The winners on this machine, as `autotune.lookup` would choose them."""
    profile, software, op = hardware.detect(), environment.current(), registry.op("conv2d")
    found = []
    for w in store.workloads():
        if not isinstance(w, Conv2d) or (w.n, w.layout, w.dtype) != (batch, layout, dtype):
            continue
        best = decide.eligible(store.choices(w.key, profile.key, software.key), op.default(w), op.tolerance(w))
        if best:
            stays = best[0].config == op.default(w)
            name = DEFAULT if stays else best[0].config.algorithm
            size, channels = (w.out_h * w.out_w) ** 0.5, (w.c * w.k) ** 0.5
            found.append(Mark(panel_of(w), size, channels, name, best[0].speedup))
    return found


def draw(found: list[Mark], title: str, out: str) -> None:
    """Writes the picture; the suffix of `out` says its format."""
    figure = pyplot().figure(figsize=(11, 8.5), layout="constrained")
    names = sorted({mark.algorithm for mark in found} - {DEFAULT})
    colours = {DEFAULT: "#bbbbbb", **{name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}}
    panels = [panel for panel in PANELS if any(mark.panel == panel for mark in found)]
    rows, columns = (len(panels) + 1) // 2, min(len(panels), 2)
    for index, panel in enumerate(panels, 1):
        axes: Any = figure.add_subplot(rows, columns, index)
        inside = [mark for mark in found if mark.panel == panel]
        for mark in sorted(inside, key=lambda mark: -mark.speedup):  # small marks above large ones
            axes.scatter(
                mark.size,
                mark.channels,
                s=60 * min(mark.speedup, LARGEST) ** 2,
                color=colours[mark.algorithm],
                alpha=0.75,
                lw=0.5,
                edgecolor="black",
            )
        axes.set(xlabel="side of the result, pixels", ylabel="√(channels in · channels out)")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_title(f"{panel} ({len(inside)})")
        axes.grid(alpha=0.3)
    handles = [pyplot().Line2D([], [], marker="o", ls="", color=colours[name], label=name) for name in colours]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(title)
    save(figure, out)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="algorithm_map.svg", help="file to write; its suffix says svg, png or pdf")
    parser.add_argument("--batch", type=int, default=1, help="convolutions of this many images (default 1)")
    parser.add_argument("--layout", default="nchw", choices=LAYOUTS, help="of the image (default nchw)")
    parser.add_argument("--dtype", default="f32", help="element type (default f32)")
    parser.add_argument("--db", metavar="URL", help="database file or URL (default: $AUTOTUNE_DB, else the user's)")
    args = parser.parse_args(argv)
    try:
        pyplot()
        with open_store(args.db or settings.database()) as store:
            found = marks(store, args.batch, args.layout, args.dtype)
        what = f"batch {args.batch}, {args.layout}, {args.dtype}"
        if not found:
            raise InvalidInput(f"no convolution ({what}) was tuned on this machine: autotune sweep --suite resnet18")
        draw(found, f"Fastest algorithm on {hardware.detect().name}: {what}", args.out)
    except AutotuneError as error:
        print(f"plot_algorithm_map: {error}", file=sys.stderr)
        return 2
    counts = {name: sum(mark.algorithm == name for mark in found) for name in sorted({m.algorithm for m in found})}
    print(f"{args.out}: {len(found)} layers; " + ", ".join(f"{name} {count}" for name, count in counts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
