"""The first five minutes: tunes layers of a real model on this machine, then uses the result from Python.

python scripts/demo.py
python scripts/demo.py --suite gpt2 --budget 5m
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="bert-base", help="what to tune (default bert-base)")
    parser.add_argument("--budget", default="2m", help="time for it (default 2m)")
    args = parser.parse_args()
    database = ROOT / "build" / "demo.sqlite"
    database.parent.mkdir(exist_ok=True)
    os.environ["AUTOTUNE_DB"] = str(database)

    from autotune.cli import main as autotune

    print(f"$ autotune sweep --suite {args.suite} --budget {args.budget}", flush=True)
    code = autotune(["sweep", "--suite", args.suite, "--budget", args.budget])
    if code != 0:
        return code
    print("\n$ autotune db best", flush=True)
    autotune(["db", "best"])
    show_from_python(args.suite)
    return 0


def show_from_python(suite: str) -> None:
    """Looks up the layer that gained most, builds its callable and times it beside F.linear."""
    import torch
    import torch.nn.functional as F

    import autotune
    from autotune import suites
    from autotune.ops.activations import apply_activation
    from autotune.ops.linear import Linear
    from autotune.stats import median, median_ratio

    linears = [w for w in suites.load(suite).workloads if isinstance(w, Linear)]
    layer = max(linears, key=lambda w: autotune.lookup(w).speedup or 0.0)
    answer = autotune.lookup(layer)
    weight = torch.randn(layer.n, layer.k)
    bias = torch.randn(layer.n) if layer.bias else None
    x = torch.randn(layer.m, layer.k)

    def plain(x: torch.Tensor) -> torch.Tensor:
        return apply_activation(F.linear(x, weight, bias), layer.activation)

    print("\nFrom Python:\n")
    print(f">>> answer = autotune.lookup({layer.spec!r})")
    print(f">>> answer.origin, str(answer.config)\n({answer.origin.value}, {str(answer.config)!r})")
    print(">>> linear = answer.build(weight, bias)   # in place of F.linear(x, weight, bias) and its activation")
    with torch.inference_mode():
        linear = answer.build(weight, bias)
        off = float((linear(x) - plain(x)).abs().max())
        times: list[int] = []
        base: list[int] = []
        from autotune.measure.pairs import repeats_for, sample_ns

        repeats = repeats_for(lambda: plain(x), 1_000_000)
        for _ in range(30):
            base.append(sample_ns(lambda: plain(x), repeats))
            times.append(sample_ns(lambda: linear(x), repeats))
    print(f"\ndefault {median(base) / 1e3:.0f} µs, ours {median(times) / 1e3:.0f} µs: "
          f"{median_ratio(base, times):.2f}x; largest difference {off:.1e}")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
