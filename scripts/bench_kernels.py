"""Ours against every torch option, per shape, in interleaved pairs; prints the table and the geometric means.

For each workload of the suites: the config that `autotune.lookup` answers, and each of torch's own ways (the default,
prepacked oneDNN, prepacked MKL), each timed in adjacent pairs with the default in one process.

    python scripts/bench_kernels.py --max-m 64
    python scripts/bench_kernels.py --op gemm --pairs 40
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

import autotune
from autotune import hardware, suites
from autotune.measure import Task
from autotune.measure.local import LocalRunner
from autotune.stats import geometric_mean
from autotune.types import BenchmarkSpec, Config, Measurement, Origin, Stage, Status, Workload

TORCH_OPTIONS: dict[str, tuple[Config, ...]] = {
    "linear": (Config("onednn_packed", {"threads": 0}), Config("mkl_packed", {"threads": 0})),
    "gemm": (),
}


def workloads(op: str, names: list[str], max_m: int | None) -> list[Workload]:
    found = [w for name in names for w in suites.load(name).workloads if w.op == op]
    kept = [w for w in found if max_m is None or getattr(w, "m", 0) <= max_m]
    return list(dict.fromkeys(kept))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", default="linear", help="linear or gemm")
    parser.add_argument("--suite", action="append", help="a suite; may be repeated (default: all)")
    parser.add_argument("--max-m", type=int, help="only workloads with at most this many rows")
    parser.add_argument("--pairs", type=int, default=40, help="pairs per shape and option (default 40)")
    parser.add_argument("--json", action="store_true", help="one JSON object per shape")
    args = parser.parse_args()

    profile = hardware.detect()
    spec = replace(BenchmarkSpec(), final_pairs=args.pairs, max_final_pairs=args.pairs, final_budget_s=20.0)
    ours: list[float] = []
    against: list[float] = []
    slower: list[str] = []
    options = [c.algorithm for c in TORCH_OPTIONS[args.op]]
    if not args.json:
        print(
            f"{'workload':<62} {'default':>9} {'ours':>9} {'speed-up':>8} "
            + " ".join(f"{o:>14}" for o in options)
            + "  config"
        )
    with LocalRunner() as runner:
        for workload in workloads(args.op, args.suite or list(suites.names()), args.max_m):
            task = Task(workload, profile, spec, seed=7)
            answer = autotune.lookup(workload)
            config = answer.config
            found = runner.measure(task, config, Stage.FINAL)
            others = {
                c.algorithm: runner.measure(task, own_threads(c, profile.allowed_cpus), Stage.FINAL)
                for c in TORCH_OPTIONS[args.op]
            }
            speedup = ratio(found)
            ours.append(speedup)
            best_other = max([1.0, *(ratio(m) for m in others.values() if m.status is Status.OK)])
            against.append(speedup / best_other)
            if speedup < 0.98:
                slower.append(workload.spec)
            report(args.json, workload, answer.origin, config, found, others)
    print(
        f"{len(ours)} shapes: geomean {geometric_mean(ours):.2f}x the default, "
        f"{geometric_mean(against):.2f}x the best of torch's options; worst {min(ours, default=1.0):.2f}x; "
        f"{len(slower)} below 0.98x{': ' + '; '.join(slower) if slower else ''}"
    )


def own_threads(config: Config, threads: int) -> Config:
    return Config(config.algorithm, {**config.params, "threads": threads})


def ratio(measurement: Measurement) -> float:
    return measurement.speedup if measurement.speedup is not None else 0.0


def report(
    as_json: bool,
    workload: Workload,
    origin: Origin,
    config: Config,
    found: Measurement,
    others: dict[str, Measurement],
) -> None:
    if as_json:
        line = {
            "workload": workload.spec,
            "origin": origin.value,
            "config": str(config),
            "default_ns": found.baseline_median_ns,
            "ours_ns": found.median_ns,
            "speedup": found.speedup,
            "contended": found.contended,
            **{name: m.speedup for name, m in others.items()},
        }
        print(json.dumps(line), flush=True)
        return
    mark = "*" if found.contended else ""
    columns = " ".join(
        f"{ratio(m):13.2f}x" if m.status is Status.OK else f"{m.status.value:>14}" for m in others.values()
    )
    print(
        f"{workload.spec:<62} {(found.baseline_median_ns or 0) / 1e3:7.0f}µs {(found.median_ns or 0) / 1e3:7.0f}µs "
        f"{ratio(found):7.2f}x{mark} {columns}  {config} [{origin.value}]",
        flush=True,
    )


if __name__ == "__main__":
    main()
