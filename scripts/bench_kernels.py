"""Ours against every torch option, per shape, in interleaved pairs; prints the table and the geometric means.

For each workload of the suites: the config that `autotune.lookup` answers, and each of torch's own ways, timed in
adjacent pairs with the default in one process. Those ways are, for linear layers, the prepacked products of oneDNN
and MKL; for convolutions, the other memory format, oneDNN's prepacked and fused convolution, NNPACK, and unfold
with a product. One of them counts as the best only within the default error budget.

    python scripts/bench_kernels.py --max-m 64
    python scripts/bench_kernels.py --op gemm --pairs 40
    python scripts/bench_kernels.py --op conv2d --suite resnet18 --batch 1
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import autotune
from autotune import hardware, registry, suites
from autotune.measure import Task
from autotune.measure.local import LocalRunner
from autotune.ops.conv2d import Conv2d
from autotune.stats import geometric_mean
from autotune.types import Answer, BenchmarkSpec, Config, HardwareProfile, Measurement, Stage, Status, Workload

RESNETS = ("resnet18", "resnet50")

TORCH_OPTIONS: dict[str, dict[str, Config]] = {
    "linear": {"onednn": Config("onednn_packed"), "mkl": Config("mkl_packed")},
    "gemm": {},
    "conv2d": {
        "layout": Config("torch_other_layout"),
        "onednn": Config("onednn_conv", {"weight": "packed"}),
        "fused": Config("onednn_conv", {"weight": "plain"}),
        "nnpack": Config("nnpack"),
        "unfold": Config("unfold_mm"),
    },
}
"""Per op, torch's own ways by a short name; `threads` is filled in where there is such a parameter."""


@dataclass
class Line:
    """One shape: what lookup answers and each of torch's options, measured in pairs with the default."""

    workload: Workload
    answer: Answer
    ours: Measurement
    others: dict[str, Measurement]
    tolerance: float = field(default=0.0)

    @property
    def gain(self) -> float:
        return self.ours.speedup or 0.0

    @property
    def best_option(self) -> tuple[str, float]:
        """The fastest of torch's options within the error budget, the default among them, over the default."""
        found = {"default": 1.0}
        for name, measured in self.others.items():
            if measured.status is Status.OK and (measured.max_error or 0.0) <= self.tolerance:
                found[name] = measured.speedup or 0.0
        name = max(found, key=lambda name: found[name])
        return name, found[name]

    @property
    def gain_over_best(self) -> float:
        return self.gain / self.best_option[1]


def workloads(op: str, names: list[str], max_m: int | None, batch: int | None) -> list[Workload]:
    found = [w for name in names for w in suites.load(name).workloads if w.op == op]
    kept = [w for w in found if max_m is None or getattr(w, "m", 0) <= max_m]
    return list(dict.fromkeys(w for w in kept if batch is None or getattr(w, "n", batch) == batch))


def classes(op: str) -> dict[str, Callable[[Workload], bool]]:
    """Kinds of layer whose geometric means are told apart."""
    if op != "conv2d":
        return {}
    resnet = {w for name in RESNETS for w in suites.load(name).workloads}

    def square(w: Workload) -> bool:
        return isinstance(w, Conv2d) and w in resnet and w.r == w.s == 3 and w.strides == (1, 1)

    return {
        "3x3 stride 1 of ResNet": square,
        "depthwise": lambda w: isinstance(w, Conv2d) and w.is_depthwise,
        "1x1": lambda w: isinstance(w, Conv2d) and w.is_pointwise and w.groups == 1,
        "batch 1": lambda w: isinstance(w, Conv2d) and w.n == 1,
        "batch 8": lambda w: isinstance(w, Conv2d) and w.n == 8,
    }


def options(workload: Workload, profile: HardwareProfile) -> dict[str, Config]:
    """torch's options that apply to this workload, on all allowed CPUs."""
    found = {}
    for name, config in TORCH_OPTIONS[workload.op].items():
        algorithm = registry.algorithm(config.algorithm)
        if algorithm.refusal(workload, profile):
            continue
        space = algorithm.space(workload, profile)
        threads = {"threads": profile.allowed_cpus} if "threads" in space.parameters else {}
        params = {**config.params, **threads}
        if space.contains(params):
            found[name] = Config(config.algorithm, params)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", default="linear", choices=sorted(TORCH_OPTIONS), help="which op (default linear)")
    parser.add_argument("--suite", action="append", help="a suite; may be repeated (default: all)")
    parser.add_argument("--max-m", type=int, help="only workloads with at most this many rows")
    parser.add_argument("--batch", type=int, help="only convolutions of this many images")
    parser.add_argument("--pairs", type=int, default=40, help="pairs per shape and option (default 40)")
    parser.add_argument("--json", action="store_true", help="one JSON object per shape")
    args = parser.parse_args()

    profile = hardware.detect()
    spec = replace(BenchmarkSpec(), final_pairs=args.pairs, max_final_pairs=args.pairs, final_budget_s=20.0)
    lines: list[Line] = []
    if not args.json:
        names = f"{'best torch':<9} {'':>5}"
        print(f"{'workload':<100} {'default':>9} {names} {'ours':>9} {'gain':>6} {'on best':>7}  config")
    with LocalRunner() as runner:
        for workload in workloads(args.op, args.suite or list(suites.names()), args.max_m, args.batch):
            task = Task(workload, profile, spec, seed=7)
            answer = autotune.lookup(workload)
            line = Line(
                workload,
                answer,
                runner.measure(task, answer.config, Stage.FINAL),
                {name: runner.measure(task, c, Stage.FINAL) for name, c in options(workload, profile).items()},
                registry.op(workload.op).tolerance(workload),
            )
            lines.append(line)
            report(args.json, line)
    for name, belongs in {"all": lambda _: True, **classes(args.op)}.items():
        chosen = [line for line in lines if belongs(line.workload)]
        if chosen:
            print(summary(name, chosen))


def summary(name: str, lines: list[Line]) -> str:
    gains = [line.gain for line in lines]
    on_best = geometric_mean([line.gain_over_best for line in lines])
    slower = [line.workload.spec for line in lines if line.gain < 0.98]
    which = f": {'; '.join(slower)}" if slower and name == "all" else ""
    return (
        f"{name}: {len(lines)} shapes: geomean {geometric_mean(gains):.2f}x the default, {on_best:.2f}x the best of "
        f"torch's options; worst {min(gains):.2f}x; {len(slower)} below 0.98x{which}"
    )


def report(as_json: bool, line: Line) -> None:
    found, (option, on_default) = line.ours, line.best_option
    if as_json:
        told = {
            "workload": line.workload.spec,
            "origin": line.answer.origin.value,
            "config": str(line.answer.config),
            "default_ns": found.baseline_median_ns,
            "ours_ns": found.median_ns,
            "speedup": found.speedup,
            "workspace_bytes": found.workspace_bytes,
            "contended": found.contended,
            "best_option": option,
            "best_option_speedup": on_default,
            **{name: m.speedup for name, m in line.others.items()},
        }
        print(json.dumps(told), flush=True)
        return
    mark = "*" if found.contended else " "
    print(
        f"{line.workload.spec:<100} {(found.baseline_median_ns or 0) / 1e3:7.0f}µs {option:<9} {on_default:4.2f}x "
        f"{(found.median_ns or 0) / 1e3:7.0f}µs {line.gain:5.2f}x{mark}{line.gain_over_best:6.2f}x  "
        f"{line.answer.config} [{line.answer.origin.value}]",
        flush=True,
    )


if __name__ == "__main__":
    main()
