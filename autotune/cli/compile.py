"""`autotune compile`: what the GPU kernels become on a published GPU, on any machine."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Any

from autotune import hardware, registry, suites
from autotune.cli.common import add_command, add_json, print_json, print_table, seconds, size
from autotune.dtypes import ITEMSIZE_BYTES
from autotune.errors import InvalidInput
from autotune.hardware.published import PUBLISHED, PublishedGpu, find
from autotune.kernels.triton import TritonAlgorithm
from autotune.kernels.triton.compiling import CompileLimits, compiler, facts_of
from autotune.kernels.triton.facts import CompileFacts
from autotune.types import Config, Workload


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "compile",
        run,
        "Compiles the GPU kernels for a published GPU, without one, and says what each config takes of it.",
        "autotune compile --target h200 --suite llama-3-8b-decode --dtype bf16 --limit 2",
    )
    names = ", ".join(gpu.name for gpu in PUBLISHED)
    parser.add_argument("workload", nargs="*", help="spec strings of workloads")
    parser.add_argument("--target", required=True, metavar="GPU", help=f"one of {names}")
    parser.add_argument("--suite", action="append", default=[], help="a model suite or a TOML file, may be repeated")
    parser.add_argument("--op", help="only workloads of this op")
    parser.add_argument("--dtype", choices=sorted(ITEMSIZE_BYTES), help="instead of the workloads' own element type")
    parser.add_argument(
        "--limit", type=int, default=4, metavar="N", help="configs per workload and algorithm, seeds first (default 4)"
    )
    parser.add_argument("--timeout", default="60s", metavar="T", help="for one compilation (default 60s)")
    add_json(parser)


@dataclass(frozen=True)
class Row:
    """A config on the target: the facts of each of its launches."""

    workload: Workload
    config: Config
    facts: tuple[CompileFacts, ...]

    @property
    def verdict(self) -> str:
        return next((each.verdict for each in self.facts if each.verdict != "fits"), "fits")

    @property
    def fits(self) -> bool:
        return self.verdict == "fits"

    def worst(self) -> dict[str, Any]:
        """Over the launches."""
        return {
            "shared_bytes": max(each.shared_bytes for each in self.facts),
            "registers": max(each.registers for each in self.facts),
            "stack_bytes": max(each.stack_bytes for each in self.facts),
            "occupancy": min(each.occupancy for each in self.facts),
        }


def run(args: argparse.Namespace) -> int:
    gpu = find(args.target)
    if args.limit < 1:
        raise InvalidInput(f"--limit must be at least 1, not {args.limit}")
    limits = CompileLimits(seconds=seconds(args.timeout))
    compiler()  # says what is missing before anything is begun
    workloads = list(_workloads(args))
    configs = [
        (algorithm, workload, params)
        for workload in workloads
        for algorithm in _algorithms(workload, gpu)
        for params in _some(algorithm, workload, gpu, args.limit)
    ]
    if not configs:
        raise InvalidInput(f"no Triton kernel computes any of these {len(workloads)} workloads on {gpu.name}")
    with ThreadPoolExecutor(hardware.detect().allowed_cpus) as pool:
        rows = pool.map(
            lambda item: Row(
                item[1],
                Config(item[0].name, item[2], "cuda"),
                facts_of(item[0], item[1], item[2], gpu.profile.arch, limits),
            ),
            configs,
        )
        return _print_json(gpu, rows) if args.json else _print(gpu, list(rows))


def _workloads(args: argparse.Namespace) -> Iterator[Workload]:
    given = [registry.parse_workload(spec) for spec in args.workload]
    for name in args.suite:
        given += suites.load(name).workloads
    if not given:
        raise InvalidInput("name a workload or a --suite to compile for")
    for workload in dict.fromkeys(given):
        if args.op in (None, workload.op) and not workload.is_empty:
            yield type(workload).from_dims({**workload.dims(), "dtype": args.dtype}) if args.dtype else workload


def _algorithms(workload: Workload, gpu: PublishedGpu) -> Iterator[TritonAlgorithm]:
    for algorithm in registry.algorithms(workload.op):
        if isinstance(algorithm, TritonAlgorithm) and not algorithm.shape_refusal(workload, gpu.profile):
            yield algorithm


def _some(algorithm: TritonAlgorithm, workload: Workload, gpu: PublishedGpu, limit: int) -> list[dict[str, Any]]:
    """The author's suggestions, then a fixed draw from the space."""
    space = algorithm.space(workload, gpu.profile)
    found = [dict(seed) for seed in space.seeds[:limit]]
    random = Random(workload.key)
    for _ in range(4 * limit):
        drawn = space.sample(random) if len(found) < limit else None
        if drawn is not None and drawn not in found:
            found.append(drawn)
    return found


def _print_json(gpu: PublishedGpu, rows: Iterable[Row]) -> int:
    shown = [
        {
            "workload": row.workload.spec,
            "algorithm": row.config.algorithm,
            "params": dict(row.config.params),
            "verdict": row.verdict,
            **row.worst(),
            "launches": [each.to_json() for each in row.facts],
        }
        for row in rows
    ]
    print_json({"target": gpu.name, "arch": gpu.profile.arch, "compiler": compiler(), "configs": shown})
    return 0


def _print(gpu: PublishedGpu, rows: list[Row]) -> int:
    for workload in dict.fromkeys(row.workload for row in rows):
        cells = []
        for row in (row for row in rows if row.workload == workload):
            worst = row.worst()
            params = " ".join(f"{name}={value}" for name, value in row.config.params.items())
            taken = (size(worst["shared_bytes"]), worst["registers"], worst["stack_bytes"])
            occupancy = f"{100 * worst['occupancy']:.0f} %" if row.fits else "–"
            cells.append((f"{row.config.algorithm} {params}", *taken, occupancy, row.verdict))
        print_table(workload.spec, ("config", "shared", "registers", "stack bytes", "occupancy", "verdict"), cells)
    failed = sum(any(each.problem for each in row.facts) for row in rows)
    fitting = sum(row.fits for row in rows)
    spilling = sum(row.fits and row.worst()["stack_bytes"] > 0 for row in rows)
    limits = gpu.limits
    print(
        f"{len(rows)} configs for {gpu.profile.name} ({limits.arch}, {size(limits.shared_per_block_bytes)} of shared"
        f" memory per block), by {compiler()}: {fitting} fit, {spilling} of them use memory for registers;"
        f" {len(rows) - fitting - failed} exceed a limit, {failed} did not compile"
    )
    return 0
