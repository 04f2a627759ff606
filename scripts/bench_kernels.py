"""Ours against every torch option, per shape, in interleaved pairs; prints the table and the geometric means.

For each workload of the suites: the config that `autotune.lookup` answers, and each of torch's own ways, timed in
adjacent pairs with the default in one process. Those ways are, for linear layers, the prepacked products of oneDNN
and MKL; for convolutions, the other memory format, oneDNN's prepacked and fused convolution, NNPACK, and unfold
with a product; for attention, its backends and two products around a softmax; for embedding bags, gathering and
reducing. One of them counts as the best only within the default error budget.

    python scripts/bench_kernels.py --max-m 64
    python scripts/bench_kernels.py --op gemm --pairs 40
    python scripts/bench_kernels.py --op conv2d --suite resnet18 --batch 1
    python scripts/bench_kernels.py --op conv2d --json > lines.jsonl
    python scripts/bench_kernels.py --op conv2d --summarise lines.jsonl
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

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
    "attention": {
        "flash": Config("sdpa", {"backend": "flash"}),
        "math": Config("sdpa", {"backend": "math"}),
        "matmul": Config("matmul_attention"),
    },
    "embedding_bag": {"gather": Config("gather_reduce")},
}
"""Per op, torch's own ways by a short name; `threads` is filled in where there is such a parameter."""


@dataclass(frozen=True)
class Line:
    """One shape: what lookup answers and the fastest of torch's options, each in pairs with the default.

    Times are in ns. `options`: speed-up over the default of each option that ran; `best_option` names the fastest
    within the error budget, the default among them.
    """

    workload: str
    origin: str
    config: str
    default_ns: float
    ours_ns: float
    gain: float
    workspace_bytes: int
    contended: bool
    best_option: str
    best_gain: float
    options: dict[str, float]

    @property
    def gain_over_best(self) -> float:
        return self.gain / self.best_gain


def line_of(answer: Answer, ours: Measurement, others: dict[str, Measurement]) -> Line:
    tolerance = registry.op(answer.workload.op).tolerance(answer.workload)
    ran = {name: m for name, m in others.items() if m.status is Status.OK}
    within = {name: m.speedup or 0.0 for name, m in ran.items() if (m.max_error or 0.0) <= tolerance}
    within["default"] = 1.0
    best = max(within, key=lambda name: within[name])
    return Line(
        answer.workload.spec,
        answer.origin.value,
        str(answer.config),
        ours.baseline_median_ns or 0.0,
        ours.median_ns or 0.0,
        ours.speedup or 0.0,
        ours.workspace_bytes,
        ours.contended,
        best,
        within[best],
        {name: m.speedup or 0.0 for name, m in ran.items()},
    )


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
    parser.add_argument(
        "--quick", action="store_true", help="fewer pairs of what is slow: 4 s each, hopeless ones 3 pairs"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per shape, and no summary")
    parser.add_argument("--summarise", nargs="+", metavar="FILE", help="measure nothing: sum up the lines of --json")
    parser.add_argument("--markdown", action="store_true", help="with --summarise: a table for documentation, too")
    args = parser.parse_args()

    lines = read(args.summarise) if args.summarise else list(measured(args))
    if args.summarise and (args.suite or args.batch or args.max_m):
        specs = {w.spec for w in workloads(args.op, args.suite or list(suites.names()), args.max_m, args.batch)}
        lines = [line for line in lines if line.workload in specs]
    if args.markdown:
        print("\n".join(markdown(lines)), end="\n\n")
    for name, belongs in {"all": lambda _: True, **classes(args.op)}.items():
        chosen = [line for line in lines if belongs(registry.parse_workload(line.workload))]
        if chosen and not (args.json and not args.summarise):
            print(summary(name, chosen))


def measured(args: argparse.Namespace) -> Iterator[Line]:
    """Measures shape by shape and tells of each."""
    profile = hardware.detect()
    spec = replace(BenchmarkSpec(), final_pairs=args.pairs, max_final_pairs=args.pairs, final_budget_s=20.0)
    stage = Stage.FINAL
    if args.quick:
        spec, stage = replace(spec, screen_pairs=args.pairs, screen_budget_s=4.0), Stage.SCREEN
    if not args.json:
        names = f"{'best torch':<9} {'':>5}"
        print(f"{'workload':<100} {'default':>9} {names} {'ours':>9} {'gain':>6} {'on best':>7}  config")
    with LocalRunner() as runner:
        for workload in workloads(args.op, args.suite or list(suites.names()), args.max_m, args.batch):
            task = Task(workload, profile, spec, seed=7)
            answer = autotune.lookup(workload)
            ours = runner.measure(task, answer.config, stage)
            others = {name: runner.measure(task, c, stage) for name, c in options(workload, profile).items()}
            line = line_of(answer, ours, others)
            print(json.dumps(asdict(line)) if args.json else told(line), flush=True)
            yield line


def read(paths: list[str]) -> list[Line]:
    """The lines of earlier runs with --json; of several of one shape the last."""
    found: dict[str, Line] = {}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for text in file:
                line = Line(**json.loads(text))
                found[line.workload] = line
    return list(found.values())


def summary(name: str, lines: list[Line]) -> str:
    gains = [line.gain for line in lines]
    on_best = geometric_mean([line.gain_over_best for line in lines])
    slower = [line.workload for line in lines if line.gain < 0.98]
    which = f": {'; '.join(slower)}" if slower and name == "all" else ""
    return (
        f"{name}: {len(lines)} shapes: geomean {geometric_mean(gains):.2f}x the default, {on_best:.2f}x the best of "
        f"torch's options; worst {min(gains):.2f}x; {len(slower)} below 0.98x{which}"
    )


def markdown(lines: list[Line]) -> Iterator[str]:
    """A row per shape; what all have in common is left out of its name."""
    yield "| layer | torch's default | best of torch's options | ours | speed-up | by |"
    yield "|---|---|---|---|---|---|"
    for line in lines:
        op, *words = line.workload.split()
        spec = (
            " ".join(word for word in words if word not in ("dtype=f32", "bias=1")) if op == "conv2d" else line.workload
        )
        yield (
            f"| `{spec}` | {line.default_ns / 1e3:.0f} µs | {line.best_option} {line.best_gain:.2f}x | "
            f"{line.ours_ns / 1e3:.0f} µs | {line.gain:.2f}x | `{line.config.split()[0]}` |"
        )


def told(line: Line) -> str:
    mark = "*" if line.contended else " "
    return (
        f"{line.workload:<100} {line.default_ns / 1e3:7.0f}µs {line.best_option:<9} {line.best_gain:4.2f}x "
        f"{line.ours_ns / 1e3:7.0f}µs {line.gain:5.2f}x{mark}{line.gain_over_best:6.2f}x  "
        f"{line.config} [{line.origin}]"
    )


if __name__ == "__main__":
    main()
