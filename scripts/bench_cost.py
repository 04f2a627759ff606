"""How good and how fast the cost model is on results of our own: the figures of docs/cost-model.md.

python scripts/bench_cost.py --db results.sqlite [--db more.sqlite] [--any-revision]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from autotune import environment, hardware, registry
from autotune.cost import answer, evaluate, fit, model, train
from autotune.cost.dataset import Dataset, Group, collect
from autotune.cost.features import FeatureSet, Table
from autotune.cost.trees import Trees
from autotune.store.sql import open_store
from autotune.types import TuningRecord, Workload

CANDIDATES = 500
ROWS = 100_000
FIRST = "import autotune; a = autotune.lookup({!r}); assert a.origin == 'PREDICTED', a.reason"
ABLATIONS = {
    "objective: squared error": {"objective": "squared"},
    "objective: weighted by regret": {"objective": "regret"},
    "half the trees": {"trees": 60},
    "three members": {"members": 3},
}


def records(urls: Sequence[str]) -> Iterator[TuningRecord]:
    for url in urls:
        with open_store(url, create=False) as store:
            yield from store.records()


def quality(dataset: Dataset, options: fit.Options) -> None:
    summaries = {}
    for op in dataset.ops:
        problem = train.enough(dataset.of(op), op)
        if problem:
            print(problem)
            continue
        summaries[op] = evaluate.summarise(evaluate.evaluate(dataset, op, options), options.seed)
    print("\nlayer shapes unseen" + "".join(f"{op:>28}" for op in summaries))
    for name, cells in evaluate.table(summaries):
        print(f"{name:42}" + "".join(f"{cell:>24}" for cell in cells))


def ablations(dataset: Dataset) -> None:
    print("\nregret@1 / regret@4 of the ranking, layer shapes unseen")
    for op in dataset.ops:
        if train.enough(dataset.of(op), op):
            continue
        for name, changes in ABLATIONS.items():
            changed = replace(fit.Options(), **changes)  # type: ignore[arg-type]  # values fit their fields
            found = evaluate.summarise(evaluate.evaluate(dataset, op, changed))
            print(f"  {op:8} {name:32} {found.regret[1]:.3f} {found.regret[4]:.3f}")
        for objective in ("pairwise", "listwise", "expected"):
            first, fourth = ranking(dataset, op, objective)
            print(f"  {op:8} {f'objective: {objective}':32} {first:.3f} {fourth:.3f}")
        groups = dataset.of(op)
        random = np.random.default_rng(0)
        for share in (0.5, 0.75):
            shapes = sorted({repr(g.shape) for g in groups})
            kept = set(random.permutation(shapes)[: int(share * len(shapes))].tolist())
            few = replace(dataset, groups=[g for g in groups if repr(g.shape) in kept])
            if not train.enough(few.groups, op):
                found = evaluate.summarise(evaluate.evaluate(few, op, fit.Options()))
                print(f"  {op:8} {f'{share:.0%} of the layer shapes':32} {found.regret[1]:.3f} {found.regret[4]:.3f}")


def ranking(dataset: Dataset, op: str, objective: str) -> tuple[float, float]:
    """Regret at 1 and 4 of boosters that only rank."""
    groups, options = dataset.of(op), fit.Options(objective=objective)
    picks: list[tuple[float, float]] = []
    folds = fit.folds_of(groups, evaluate.OUTER_FOLDS, 1)
    for fold in sorted(set(folds.tolist())):
        rest = [g for g, f in zip(groups, folds, strict=True) if f != fold]
        made = FeatureSet.of([g.workload for g in rest], [c for g in rest for c in g.configs])
        rows = fit.rows_of(rest, made, 2, 0)
        ranker = [
            Trees(fit.boosted(rows.x, rows.y, rows.y, rows.group, options, seed), rows.x.shape[1]) for seed in range(3)
        ]
        picks += [_ranked(g, ranker, made) for g, f in zip(groups, folds, strict=True) if f == fold]
    logs = np.array(picks)
    return float(np.exp(logs[:, 0].mean())), float(np.exp(logs[:, 1].mean()))


def _ranked(group: Group, ranker: Sequence[Trees], made: FeatureSet) -> tuple[float, float]:
    x = made.matrix(group.workload, group.hardware, Table(group.configs))
    score = np.sum([trees.predict(x) for trees in ranker], axis=0)
    exact = np.flatnonzero(np.array(group.ratios) <= 1.0)
    label, best = np.array(group.labels), evaluate.best_label(group)
    order = exact[np.argsort(score[exact], kind="stable")]
    return max(0.0, label[order[0]] - best), max(0.0, label[order[:4]].min() - best)


def floor(dataset: Dataset) -> None:
    """How far labels of one config differ between screening and the decision: nobody can predict better than that."""
    gaps = []
    for group in dataset.groups:
        decided = [label for label, final in zip(group.labels, group.decided, strict=True) if final and label != 0]
        screened = [label for label, final in zip(group.labels, group.decided, strict=True) if not final]
        if decided and screened:
            gaps.append(max(0.0, min(decided) - min(screened)))
    if gaps:
        print(f"\nbest screened beats best decided by {np.exp(np.mean(gaps)) - 1:.1%}, which was luck")


def timings(dataset: Dataset, options: fit.Options) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.atm")
        begin = time.perf_counter()
        models = [
            train.train_op(op, dataset, options).model for op in dataset.ops if not train.enough(dataset.of(op), op)
        ]
        print(f"\ntraining on {dataset.rows:,} rows                 {time.perf_counter() - begin:8.1f} s")
        size = model.write(path, models, {})
        print(f"model file                                 {size / 1e6:8.2f} MB  (goal 5)")
        begin = time.perf_counter()
        many = enlarged(dataset)
        for op in many.ops:
            train.train_op(op, many, options)
        print(f"training on {many.rows:,} rows                {time.perf_counter() - begin:8.1f} s   (goal 60)")
        machine, software = hardware.detect(), environment.current()
        known = model.read(path)
        workload = next((w for w in near(dataset, known) if predicted(known, w)), None)
        if workload is None:
            print("nothing near the results is predicted on this machine: no timings of lookups")
            return
        one = known.ops[workload.op]
        configs = (one.portfolio.configs * 3)[:CANDIDATES]
        budget = registry.op(workload.op).tolerance(workload)
        table = Table(configs)
        made = best_ms(lambda: one.features.matrix(workload, machine, table))
        print(f"features of {CANDIDATES} candidates                 {made:8.2f} ms")
        rows = one.features.matrix(workload, machine, table)

        def ranked() -> None:
            short = np.argsort(one.members[0].predict(one.features.matrix(workload, machine, table)))[
                : answer.SHORTLIST
            ]
            one.predict_rows(rows[short], workload, machine, None)

        print(f"features and prediction of {CANDIDATES}             {best_ms(ranked):8.2f} ms  (goal 3)")
        whole = best_ms(lambda: answer.predict(known, workload, machine, software.key, budget))
        print(f"predicted lookup, not memoised             {whole:8.2f} ms")
        process(path, workload, folder)


def best_ms(call: object, runs: int = 50) -> float:
    assert callable(call)
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times)


def process(path: str, workload: Workload, folder: str) -> None:
    """The first predicted lookup of fresh processes, and a memoised one."""
    own = {"AUTOTUNE_MODEL": path, "AUTOTUNE_DB": os.path.join(folder, "none.sqlite")}
    env = {**{k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}, **own}
    differences = []
    for _ in range(10):
        took = []
        for code in ("pass", FIRST.format(workload.spec)):
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True, env=env)
            took.append(time.perf_counter() - begin)
        differences.append(took[1] - took[0])
    first = 1e3 * statistics.median(differences)
    print(f"first predicted lookup of a process        {first:8.0f} ms  (goal 350, beyond the interpreter)")
    os.environ.update(own)
    import autotune

    autotune.refresh()
    autotune.lookup(workload)
    begin = time.perf_counter()
    for _ in range(100_000):
        autotune.lookup(workload)
    print(f"memoised                                   {(time.perf_counter() - begin) * 10:8.2f} µs  (goal 2)")


def near(dataset: Dataset, known: model.Model) -> Iterator[Workload]:
    """Workloads between those of the results."""
    for group in dataset.groups:
        dims = dict(group.workload.dims())
        for name in ("n", "k", "c"):
            value = dims.get(name)
            if group.workload.op in known.ops and type(value) is int and dims.get("groups", 1) == 1:
                yield type(group.workload).from_dims({**dims, name: value * 5 // 4 // 8 * 8 or 8})


def predicted(known: model.Model, workload: Workload) -> bool:
    budget = registry.op(workload.op).tolerance(workload)
    return answer.predict(known, workload, hardware.detect(), environment.current().key, budget).config is not None


def enlarged(dataset: Dataset) -> Dataset:
    """The largest op's groups again and again, with labels a little different, up to `ROWS` rows."""
    op = max(dataset.ops, key=lambda name: sum(len(g.configs) for g in dataset.of(name)))
    random, groups, rows = np.random.default_rng(0), list[Group](), 0
    while rows < ROWS:
        for group in dataset.of(op):
            noise = random.normal(0, 0.02, len(group.labels))
            groups.append(replace(group, labels=tuple(float(v) for v in np.array(group.labels) + noise)))
            rows += len(group.labels)
    return replace(dataset, groups=groups)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", action="append", required=True, help="database file or URL; may be repeated")
    parser.add_argument("--any-revision", action="store_true", help="also learn from kernels of other revisions")
    parser.add_argument("--only", choices=("quality", "ablations", "timings"), help="only this part")
    args = parser.parse_args()
    begin = time.perf_counter()
    dataset = collect(records(args.db), args.any_revision)
    print(f"{dataset.rows:,} results of {len(dataset.groups)} workloads, read in {time.perf_counter() - begin:.1f} s")
    for why, count in dataset.left_out.most_common():
        print(f"  {count:,} records left out: {why}")
    if args.only in (None, "quality"):
        quality(dataset, fit.Options())
        floor(dataset)
    if args.only in (None, "ablations"):
        ablations(dataset)
    if args.only in (None, "timings"):
        timings(dataset, fit.Options())


if __name__ == "__main__":
    main()
