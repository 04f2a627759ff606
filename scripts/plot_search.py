"""Pictures of a workload's measurements: the search, the distribution of times, a tile heat map, the roofline.

    python scripts/plot_search.py 'linear m=16 n=768 k=768 bias=1' --out search.svg
    python scripts/plot_search.py 'linear m=16 n=768 k=768 bias=1' --hardware 75d8 --out search.png

Four panels of one machine and environment: speed-up over trials with the best so far; how many took how long;
the best speed-up of each tile (of algorithms that have one); rate against arithmetic intensity under the machine's
roof, where it was probed. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from autotune import registry
from autotune.cli.common import open_database
from autotune.errors import AutotuneError, InvalidInput
from autotune.report.figure import pyplot, save
from autotune.report.history import Trial, history
from autotune.types import Stage, Workload

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#000000")


def tiles(trials: list[Trial]) -> dict[tuple[int, int], float]:
    """The best speed-up of each (rows, columns) tile."""
    best: dict[tuple[int, int], float] = {}
    for trial in trials:
        tile, speedup = trial.record.config.params.get("tile"), trial.record.measurement.speedup
        if isinstance(tile, tuple) and len(tile) == 2 and speedup:
            place = (int(str(tile[0])), int(str(tile[1])))
            best[place] = max(speedup, best.get(place, 0.0))
    return best


def draw(workload: Workload, trials: list[Trial], out: str) -> None:
    """Writes the picture; the suffix of `out` says its format."""
    figure, ((search, times), (heat, roof)) = pyplot().subplots(2, 2, figsize=(12, 9), layout="constrained")
    names = sorted({t.record.config.algorithm for t in trials})
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    ok = [t for t in trials if t.record.measurement.median_ns]
    _search(search, trials, ok, colours)
    for name in names:
        measured = [(t.record.measurement.median_ns or 0) / 1e3 for t in ok if t.record.config.algorithm == name]
        if measured:
            times.hist(measured, bins=20, alpha=0.6, color=colours[name], label=name)
    times.set(xlabel="median time, µs", ylabel="measurements", title="distribution of times")
    _heat(figure, heat, tiles(trials))
    _roofline(roof, workload, ok, colours)
    handles = [pyplot().Line2D([], [], marker="o", ls="", color=colours[name], label=name) for name in names]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False)
    figure.suptitle(f"{workload.spec}\n{trials[0].record.hardware.name}, {trials[0].record.environment.framework}")
    try:
        save(figure, out)
    finally:
        pyplot().close(figure)


def _search(axes: Any, trials: list[Trial], ok: list[Trial], colours: dict[str, str]) -> None:
    for t in ok:
        marker = "o" if t.record.stage is Stage.SCREEN else "*"
        axes.scatter(t.number, t.record.measurement.speedup, marker=marker, color=colours[t.record.config.algorithm])
    failed = [t.number for t in trials if not t.record.measurement.median_ns]
    axes.scatter(failed, [0.0] * len(failed), marker="x", color="#999999")
    axes.step([t.number for t in trials], [t.best for t in trials], where="post", color="black", lw=1)
    axes.axhline(1.0, color="#bbbbbb", lw=1)
    axes.set(xlabel="trial (× failed, ★ decided)", ylabel="speed-up", title="search, and the best so far")


def _heat(figure: Any, axes: Any, best: dict[tuple[int, int], float]) -> None:
    axes.set(xlabel="tile columns", ylabel="tile rows", title="best speed-up of each tile")
    rows, columns = sorted({r for r, _ in best}), sorted({c for _, c in best})
    if not best:
        axes.text(0.5, 0.5, "no algorithm with a tile", ha="center", transform=axes.transAxes)
        return
    image = axes.imshow([[best.get((r, c), float("nan")) for c in columns] for r in rows], aspect="auto")
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    figure.colorbar(image, ax=axes)


def _roofline(axes: Any, workload: Workload, ok: list[Trial], colours: dict[str, str]) -> None:
    intensity = workload.flops / max(workload.bytes, 1)
    for t in ok:
        rate = workload.flops / (t.record.measurement.median_ns or 1.0)
        axes.scatter(intensity, rate, color=colours[t.record.config.algorithm], alpha=0.6)
    profile = ok[0].record.hardware if ok else None
    peak = profile.peak_gflops.get(str(getattr(workload, "dtype", ""))) if profile else None
    if profile and peak and profile.bandwidth_gbs:
        ridge = peak / profile.bandwidth_gbs
        ends = [min(intensity, ridge) / 8, ridge, max(intensity, ridge) * 8]
        axes.plot(ends, [min(peak, x * profile.bandwidth_gbs) for x in ends], color="black", lw=1)
    axes.set(xlabel="flops per compulsory byte", ylabel="GFLOP/s", title="roofline", xscale="log", yscale="log")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", help="a workload's spec string")
    parser.add_argument("--out", default="search.svg", help="file to write; its suffix says svg, png or pdf")
    parser.add_argument("--hardware", default="", metavar="KEY", help="the beginning of a machine's key")
    parser.add_argument("--db", metavar="URL", help="database file or URL (default: $AUTOTUNE_DB, else the user's)")
    args = parser.parse_args(argv)
    try:
        workload = registry.parse_workload(args.workload)
        pyplot()
        with open_database(args.db) as store:
            found = [trials for (key, _), trials in history(store, workload).items() if key.startswith(args.hardware)]
        if not found:
            raise InvalidInput(f"nothing was measured for {workload.spec} on such a machine")
        trials = max(found, key=len)
        draw(workload, trials, args.out)
    except AutotuneError as error:
        print(f"plot_search: {error}", file=sys.stderr)
        return 2
    print(f"{args.out}: {len(trials)} measurements, best {trials[-1].best:.2f}x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
