"""What a lookup is worth for layers that were never swept: the 200 of unseen.toml, of models that no suite has.

Step one, `--truth`: an ordinary sweep of the 200 finds each shape's best config, in a database of its own that no
lookup reads; it goes on where it was when it is stopped. Step two: for each shape, the predicted answer, the default
and the best known are timed in interleaved pairs, and the table printed: how far the answer is from the best (regret),
how many answers are more than 2 % slower than the default, how many stayed with it; intervals are bootstrapped over
shapes. A shape that the database or model of the lookup does know is an error: it would not be unseen.

    python scripts/bench_unseen.py --truth unseen.sqlite --budget 10m
    python scripts/bench_unseen.py --against unseen.sqlite --json > lines.jsonl
    python scripts/bench_unseen.py --summarise lines.jsonl
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np

import autotune
from autotune import environment, hardware, suites
from autotune.errors import AutotuneError
from autotune.measure import Task
from autotune.measure.local import LocalRunner
from autotune.report.served import served
from autotune.store.sql import open_store
from autotune.types import BenchmarkSpec, Origin, Stage

SHAPES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "unseen.toml")
SLOWER = 0.98
"""An answer with less than this of the default's speed counts as slower."""

BOOTSTRAPS = 2000


@dataclass(frozen=True)
class Line:
    """One shape: speed-ups over the default, now, of the answer and of the best known; `best` is never below 1."""

    workload: str
    origin: str
    config: str
    reason: str
    answer: float
    stated: float
    best: float
    best_config: str
    contended: bool

    @property
    def regret(self) -> float:
        return max(self.best, self.answer) / self.answer


def measured(against: str, pairs: int) -> Iterator[Line]:
    here = hardware.detect()
    software = environment.current(here.kind)
    spec = replace(BenchmarkSpec(), final_pairs=pairs, max_final_pairs=pairs, final_budget_s=10.0)
    with open_store(against, create=False) as store:
        truth = {s.workload: s for s in served(store, hardware_key=here.key) if s.environment.key == software.key}
    with LocalRunner() as runner:
        for workload in suites.load(SHAPES).workloads:
            if workload not in truth:
                continue
            answer = autotune.lookup(workload)
            if answer.origin is Origin.EXACT:
                raise AutotuneError(
                    f"{workload.spec} was measured: it is not unseen; set AUTOTUNE_DB to another database"
                )
            task = Task(workload, here, spec, seed=11)
            best = truth[workload]
            speedups, contended = {best.default: 1.0}, False
            for config in dict.fromkeys((answer.config, best.choice.config)):
                if config not in speedups:
                    result = runner.measure(task, config, Stage.FINAL)
                    contended |= result.contended
                    speedups[config] = result.speedup or 0.0
            if not speedups[answer.config]:
                raise AutotuneError(f"{workload.spec}: {answer.config} was answered and does not run")
            yield Line(
                workload.spec, answer.origin.value, str(answer.config), answer.reason, speedups[answer.config],
                answer.speedup or 1.0, max(1.0, speedups[best.choice.config]), str(best.choice.config), contended,
            )  # fmt: skip


def summary(lines: list[Line]) -> str:
    """The table of figures, with 95 % bootstrap intervals over shapes."""
    random = np.random.default_rng(0)
    logs = np.log([line.regret for line in lines])
    slower = np.array([line.answer < SLOWER for line in lines], float)
    picks = random.integers(0, len(lines), (BOOTSTRAPS, len(lines)))
    low, high = np.exp(np.quantile(logs[picks].mean(axis=1), (0.025, 0.975)))
    least, most = np.quantile(slower[picks].mean(axis=1), (0.025, 0.975))
    gains = np.log([line.answer for line in lines])
    best = np.log([line.best for line in lines])
    predicted = sum(line.origin == Origin.PREDICTED.value for line in lines)
    rows = [
        ("shapes, answered by prediction", f"{len(lines)}, {predicted}"),
        ("regret, geometric mean", f"{math.exp(logs.mean()):.3f} ({low:.3f} to {high:.3f})"),
        ("regret, 95th percentile and worst", f"{np.exp(np.quantile(logs, 0.95)):.2f}, {np.exp(logs.max()):.2f}"),
        ("more than 2 % slower than the default", f"{slower.mean():.1%} ({least:.1%} to {most:.1%})"),
        ("speed-up of the answers, of the best known", f"{math.exp(gains.mean()):.2f}x, {math.exp(best.mean()):.2f}x"),
        ("measured while something else ran", f"{sum(line.contended for line in lines)}"),
    ]
    worst = sorted(lines, key=lambda line: -line.regret)[:5]
    told = [f"{name:45} {value}" for name, value in rows]
    return "\n".join([*told, *(f"  {w.regret:.2f}: {w.workload}: {w.config}, best {w.best_config}" for w in worst)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--truth", metavar="DATABASE", help="sweep the shapes into this database")
    parser.add_argument("--budget", default="30m", help="of that sweep (default 30m); run again to go on")
    parser.add_argument("--against", metavar="DATABASE", help="measure answers against the best of that database")
    parser.add_argument("--pairs", type=int, default=30, help="pairs per config (default 30)")
    parser.add_argument("--json", action="store_true", help="one JSON object per shape, and no summary")
    parser.add_argument("--summarise", nargs="+", metavar="FILE", help="measure nothing: sum up the lines of --json")
    args = parser.parse_args()
    if args.truth:
        command = [sys.executable, "-m", "autotune", "sweep", "--db", args.truth, "--suite", SHAPES]
        command += ["--budget", args.budget]
        return subprocess.run(command).returncode
    lines: list[Line] = []
    try:
        if args.against:
            for line in measured(args.against, args.pairs):
                lines.append(line)
                if args.json:
                    print(json.dumps(asdict(line)), flush=True)
                else:
                    print(f"{line.answer:5.2f}x of {line.best:5.2f}x {line.workload:90} {line.config}", flush=True)
        for path in args.summarise or ():
            with open(path, encoding="utf-8") as file:
                lines += [Line(**json.loads(text)) for text in file]
    except (AutotuneError, OSError) as error:
        print(f"bench_unseen.py: {error}", file=sys.stderr)
        return 2
    if lines and not (args.json and not args.summarise):
        print(summary(lines))
    elif not lines:
        print("no shape has a known best: sweep with --truth first", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
