"""Compares what the formulas say of Triton configs with what the compiler makes of them, on a published GPU.

    python scripts/bench_compile.py --target h200 --out facts.jsonl --minutes 3

Draws configs from the default spaces, those included that the formulas keep out, compiles each and adds a line to
the file. Started again it goes on where it was; `--minutes 0` only sums up. It exits with 1 when a formula refused a
config that fits, or let too many through that do not. Needs triton, and no GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

from autotune import registry
from autotune.hardware.published import find
from autotune.kernels.triton import TritonAlgorithm
from autotune.kernels.triton.compiling import CompileLimits, compiler, facts_of
from autotune.space import Constraint
from autotune.types import Workload

SHAPES = (
    *(f"linear m={m} n=4096 k=4096 bias=1" for m in (1, 16, 512)),
    "linear m=4 n=14336 k=4096 activation=silu",
    "linear m=1024 n=768 k=3072 bias=1 activation=gelu",
    "linear m=100 n=4099 k=4104",
    "gemm m=4096 n=4096 k=4096",
    "gemm m=4096 n=4096 k=4096 b_layout=transposed",
    "gemm m=4096 n=4096 k=4096 a_layout=transposed",
    "gemm m=197 n=197 k=64 batch=12 b_layout=transposed",
    "gemm m=333 n=555 k=777",
    *(
        f"conv2d {shape} layout={layout}"
        for layout in ("channels_last", "nchw")
        for shape in (
            "n=8 c=64 h=56 w=56 k=64 r=3 s=3 padding=1 bias=1 activation=relu",
            "n=8 c=512 h=7 w=7 k=512 r=3 s=3 padding=1 residual=1",
            "n=8 c=256 h=56 w=56 k=128 r=1 s=1 stride=2",
            "n=8 c=3 h=224 w=224 k=64 r=7 s=7 stride=2 padding=3",
            "n=8 c=96 h=28 w=28 k=96 r=3 s=3 padding=1 groups=4",
        )
    ),
)
MINIMUM_CAUGHT = 0.95


def loosened(algorithm: TritonAlgorithm) -> TritonAlgorithm:
    """The same with a space that does not ask the formula."""

    def fits(self: TritonAlgorithm, workload: Workload, arch: str) -> Constraint:
        return lambda params: True

    made: TritonAlgorithm = type("Loosened", (type(algorithm),), {"fits": fits})()
    return made


def draws(arch_of: Any, names: list[str], dtypes: list[str], seed: int, start: int) -> Iterator[tuple[int, Any]]:
    """(number, (algorithm, workload, params)) from `start` on, the same for the same seed."""
    algorithms = [a for name in names if isinstance(a := registry.algorithm(name), TritonAlgorithm)]
    number = start
    while True:
        random = Random(f"{seed}:{number}")
        algorithm = random.choice(algorithms)
        specs = [spec for spec in SHAPES if spec.partition(" ")[0] in algorithm.ops]
        workload = registry.parse_workload(f"{random.choice(specs)} dtype={random.choice(dtypes)}")
        params = None
        if not algorithm.shape_refusal(workload, arch_of):
            params = loosened(algorithm).space(workload, arch_of).sample(random)
        yield number, (algorithm, workload, params)
        number += 1


def compare(number: int, item: Any, arch: str, limits: CompileLimits) -> dict[str, Any]:
    algorithm, workload, params = item
    line: dict[str, Any] = {"number": number, "algorithm": algorithm.name, "workload": workload.spec, "arch": arch}
    if params is None:
        return line
    refused = algorithm.over_limit(workload, params, arch)
    needs = algorithm.needs(workload, params, arch)
    facts = facts_of(algorithm, workload, params, arch, limits)
    return line | {
        "params": params,
        "refused": refused,
        "by_formula": needs.shared_bytes,
        "by_compiler": max(each.shared_bytes for each in facts),
        "registers": max(each.registers for each in facts),
        "stack_bytes": max(each.stack_bytes for each in facts),
        "problem": next((each.problem for each in facts if each.problem), ""),
        "over_limit": next((each.over_limit for each in facts if each.over_limit), ""),
        "needs_registers": needs.registers,
    }


def spilled(line: dict[str, Any]) -> bool:
    """Whether a refusal for registers was right: the sums alone did not fit them."""
    return bool(line["stack_bytes"]) and "registers" in line["refused"]


def sum_up(lines: list[dict[str, Any]]) -> bool:
    """Prints the comparison per architecture and algorithm; whether it is as it must be."""
    good = True
    for arch, name in sorted({(line["arch"], line["algorithm"]) for line in lines}):
        compiled = [
            line
            for line in lines
            if (line["arch"], line["algorithm"]) == (arch, name) and "params" in line and not line["problem"]
        ]
        failed = [
            line
            for line in lines
            if (line["arch"], line["algorithm"]) == (arch, name) and line.get("problem") and not line["refused"]
        ]
        beyond = [line for line in compiled if line["over_limit"] or spilled(line)]
        caught = [line for line in beyond if line["refused"]]
        wrong = [line for line in compiled if line["refused"] and not line["over_limit"] and not spilled(line)]
        exact = sum(line["by_formula"] == line["by_compiler"] for line in compiled)
        share = len(caught) / len(beyond) if beyond else 1.0
        good = good and not wrong and share >= MINIMUM_CAUGHT
        print(
            f"{arch} {name}: {len(compiled)} compiled, shared memory exact for {exact}; {len(beyond)} exceed a limit,"
            f" the formula refuses {len(caught)} of them ({share:.1%}) and {len(wrong)} that fit;"
            f" {len(failed)} that it admits did not compile"
        )
        for line in (*wrong, *failed, *(line for line in beyond if not line["refused"]))[:8]:
            print(
                "   ", line["workload"], line["params"], line["by_formula"], line["by_compiler"], line["problem"][:99]
            )
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="h200")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--algorithm", action="append", help="default: all of Triton's")
    parser.add_argument("--dtype", action="append", help="default: bf16, f16 and f32")
    args = parser.parse_args()
    gpu = find(args.target)
    print(f"{gpu.profile.name}, {gpu.profile.arch}, {compiler()}")
    lines = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    deadline = time.monotonic() + 60 * args.minutes
    start = 1 + max((line["number"] for line in lines if line["arch"] == gpu.profile.arch), default=-1)
    names = args.algorithm or [n for n in registry.names("algorithms") if n.startswith("triton")]
    source = draws(gpu.profile, names, args.dtype or ["bf16", "f16", "f32"], args.seed, start)
    with args.out.open("a") as out, ThreadPoolExecutor(args.jobs) as pool:
        while time.monotonic() < deadline:
            some = [next(source) for _ in range(4 * args.jobs)]
            for line in pool.map(lambda one: compare(one[0], one[1], gpu.profile.arch, CompileLimits()), some):
                print(json.dumps(line), file=out, flush=True)
                lines.append(line)
    return 0 if sum_up(lines) else 1


if __name__ == "__main__":
    sys.exit(main())
