"""The page that stands beside a shipped database: what it holds, and what each table and column means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from sqlalchemy import inspect, select

from autotune import suites
from autotune.report.coverage import coverage
from autotune.report.served import served
from autotune.stats import geometric_mean
from autotune.store import schema
from autotune.store.sql import SqlStore


def schema_page(store: SqlStore, how: str) -> str:
    """The page as Markdown. `how`: the command that made the file."""
    return "\n".join((*_contents(store, how), *_tables(), *_views(store))) + "\n"


def _contents(store: SqlStore, how: str) -> Iterator[str]:
    stats, found = store.stats(), list(served(store))
    yield from (
        "# The shipped tuning database",
        "",
        f"`tuning.sqlite` holds {stats.measurements:,} measurements of {stats.configs:,} configs for "
        f"{stats.workloads:,} workloads. This page is generated with it, by",
        "",
        f"    {how}",
        "",
        "Only what was measured here, undisturbed, by kernels as they are in this release is kept; failures are, too.",
        "",
        "| op | machine | workloads | decided | faster than the default | geometric mean |",
        "|---|---|---|---|---|---|",
    )
    machines = {profile.key: profile for profile in store.hardware()}
    tried = Counter((op, key) for op, key in _tried(store))
    for (op, key), count in sorted(tried.items()):
        gains = [s.choice.speedup for s in found if s.workload.op == op and s.hardware.key == key]
        faster = sum(gain > 1 for gain in gains)
        mean = f"{geometric_mean(gains):.2f}x" if gains else "–"
        machine = f"{machines[key].name}, {machines[key].allowed_cpus} CPUs"
        yield f"| {op} | {machine} | {count} | {len(gains)} | {faster} | {mean} |"
    yield from ("", "| status | measurements |", "|---|---|")
    for status, count in stats.by_status.items():
        yield f"| {status} | {count:,} |"
    winners = Counter((s.workload.op, s.choice.config.algorithm) for s in found)
    yield from ("", "| op | what is served | workloads |", "|---|---|---|")
    for (op, algorithm), count in sorted(winners.items(), key=lambda item: (item[0][0], -item[1], item[0][1])):
        yield f"| {op} | `{algorithm}` | {count} |"
    yield from ("", "| suite | machine | tuned | one pass over its layers |", "|---|---|---|---|")
    for line in coverage(found, machines.values(), suites.names()):
        yield f"| {line.suite} | {line.hardware.name} | {line.tuned} of {line.workloads} | {line.speedup:.2f}x |"
    yield from ("", "| software |", "|---|")
    for software in store.environments():
        libraries = ", ".join(software.libraries)
        yield f"| {software.framework}, {libraries}, {software.compiler or 'no compiler'} |"


def _tried(store: SqlStore) -> Iterator[tuple[str, str]]:
    m, w = schema.measurements.c, schema.workloads.c
    query = select(w.op, m.hardware_key, m.workload_key).join_from(
        schema.measurements, schema.workloads, w.key == m.workload_key
    )
    for row in store.stream(query.distinct())[1]:
        yield row.op, row.hardware_key


def _tables() -> Iterator[str]:
    yield from (
        "",
        "## Tables",
        "",
        "Keys are 32 hex digits and join the tables; times are in ns, sizes in bytes. How to ask: "
        "[Reading the database](../docs/database.md).",
    )
    for table in schema.metadata.tables.values():
        yield from (
            "",
            f"### {table.name}",
            "",
            f"A row is {table.info['doc']}.",
            "",
            "| column | type | |",
            "|---|---|---|",
        )
        for column in table.columns:
            mark = "**" if column.primary_key else ""
            yield f"| {mark}{column.name}{mark} | {column.type!s} | {column.doc} |"


def _views(store: SqlStore) -> Iterator[str]:
    yield from ("", "## Views", "", "| view | columns |", "|---|---|")
    found = inspect(store.engine)
    for name in sorted(found.get_view_names()):
        yield f"| {name} | {', '.join(column['name'] for column in found.get_columns(name))} |"
