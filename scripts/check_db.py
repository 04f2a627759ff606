"""Whether a tuning database is what it claims to be: its own consistency, and its winners measured again.

First every check of `autotune db verify`. Then a random sample of the winners that this machine and software would be
served is measured again in interleaved pairs with the default, beside the runners-up. A winner stands when it is
within 5 % of the fastest of them, the default among them. Exit code 1 when a check fails.

    python scripts/check_db.py
    python scripts/check_db.py --db tuning.sqlite --sample 100 --pairs 40 --seed 1
    python scripts/check_db.py --sample 0
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from random import Random

from autotune import environment, hardware, paths, registry
from autotune.cli.common import open_database
from autotune.errors import AutotuneError
from autotune.measure import Task
from autotune.measure.local import LocalRunner
from autotune.report.served import Served, served
from autotune.report.verify import verify
from autotune.stats import median
from autotune.store.sql import SqlStore
from autotune.types import BenchmarkSpec, Config, Stage, Status

STANDS_WITHIN = 0.05
RUNNERS_UP = 2


@dataclass(frozen=True)
class Again:
    """A winner measured again: its speed-up then and now, and the fastest of its rivals now, the default 1.0."""

    served: Served
    then: float
    now: float
    fastest: float
    contended: bool

    @property
    def stands(self) -> bool:
        return self.now >= self.fastest * (1 - STANDS_WITHIN)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", default=paths.shipped_database(), help="default: the shipped database")
    parser.add_argument("--sample", type=int, default=40, help="winners measured again (default 40); 0 for none")
    parser.add_argument("--pairs", type=int, default=40, help="pairs per config (default 40)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (default 0)")
    args = parser.parse_args()
    try:
        with open_database(args.db) as store:
            sound = consistent(store)
            found = sample(store, args.sample, args.seed)
        if args.sample:
            report([*again(found, args.pairs, args.seed)])
    except AutotuneError as error:
        print(f"check_db.py: {error}", file=sys.stderr)
        return 2
    return 0 if sound else 1


def consistent(store: SqlStore) -> bool:
    """Prints every check; False when one found an error."""
    sound = True
    for finding in verify(store):
        state = "ok" if not finding.count else "WRONG" if finding.is_error else "note"
        sound = sound and state != "WRONG"
        print(f"{state:5} {finding.check}" + (f": {finding.count:,}" if finding.count else ""))
        for example in finding.examples:
            print(f"        {example}")
    return sound


def sample(store: SqlStore, count: int, seed: int) -> list[Served]:
    """Winners that this machine with its software would be served; the default is none."""
    here = hardware.detect()
    software = environment.current(here.kind)
    found = [s for s in served(store, hardware_key=here.key) if s.environment.key == software.key and not s.is_default]
    return Random(seed).sample(found, min(count, len(found)))


def again(found: list[Served], pairs: int, seed: int) -> list[Again]:
    spec = replace(BenchmarkSpec(), final_pairs=pairs, max_final_pairs=pairs, final_budget_s=10.0)
    out = []
    with LocalRunner() as runner:
        for s in found:
            task = Task(s.workload, s.hardware, spec, seed=seed + 1)
            rivals = [c.config for c in s.decided if c.config not in (s.default, s.choice.config)][:RUNNERS_UP]
            tolerance, contended = registry.op(s.workload.op).tolerance(s.workload), False
            speedups: dict[Config, float] = {}
            for config in (s.choice.config, *rivals):
                measured = runner.measure(task, config, Stage.FINAL)
                contended |= measured.contended
                if measured.status is Status.OK and (measured.max_error or 0.0) <= tolerance:
                    speedups[config] = measured.speedup or 0.0
            now, fastest = speedups.get(s.choice.config, 0.0), max((1.0, *speedups.values()))
            one = Again(s, s.choice.speedup, now, fastest, contended)
            out.append(one)
            mark = "" if one.stands else "  FELL" + (" (machine busy)" if contended else "")
            print(f"{one.then:5.2f}x then {one.now:5.2f}x now  {s.workload.spec}  {s.choice.config}{mark}", flush=True)
    return out


def report(found: list[Again]) -> None:
    if not found:
        print("no winner was measured on this machine with this software: nothing to measure again")
        return
    quiet = [one for one in found if not one.contended]
    for name, some in (("all", found), ("on a quiet machine", quiet)):
        if some:
            stand = sum(one.stands for one in some) / len(some)
            ratio = median([one.now / one.then for one in some])
            slower = sum(one.now < 0.98 for one in some)
            print(
                f"{name}: {len(some)} winners, {stand:.1%} within {STANDS_WITHIN:.0%} of the fastest; speed-up now "
                f"over then, median {ratio:.2f}; {slower} below 0.98x the default"
            )


if __name__ == "__main__":
    sys.exit(main())
