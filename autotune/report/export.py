"""A table or view as CSV, JSON lines or Parquet, a row at a time."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import chain, islice
from typing import IO, Any

from sqlalchemy import Select, literal_column, select, table, text

from autotune.errors import InvalidInput, Unavailable
from autotune.store.schema import configs, environments, hardware, measurements, workloads
from autotune.store.sql import SqlStore

ROWS_PER_GROUP = 10_000


def query(kind: str) -> Select[Any]:
    """What is exported: measurements with what their keys stand for, or a view for people."""
    if kind != "measurements":
        name = {"best": "best_configs", "failures": "failures"}[kind]
        return select(literal_column("*")).select_from(table(name))
    m = measurements.c
    parts = [c for c in m if c.name not in ("times_ns", "baseline_ns")]
    described = (
        workloads.c.op,
        workloads.c.spec.label("workload"),
        hardware.c.name.label("hardware"),
        environments.c.framework,
        configs.c.algorithm,
        configs.c.params,
        configs.c.placement,
    )
    return (
        select(*described, *parts, m.times_ns, m.baseline_ns)
        .join_from(measurements, workloads, workloads.c.key == m.workload_key)
        .join(hardware, hardware.c.key == m.hardware_key)
        .join(environments, environments.c.key == m.environment_key)
        .join(configs, configs.c.key == m.config_key)
        .order_by(text("measured_at, uid"))
    )


def export(store: SqlStore, kind: str, form: str, out: IO[Any]) -> int:
    """Writes to a text file, or for parquet a binary one; returns the number of rows. Raises `Unavailable`."""
    names, rows = store.stream(query(kind))
    if form == "parquet":
        return _parquet(names, rows, out)
    return (_csv if form == "csv" else _json)(names, rows, out)


def _csv(names: Sequence[str], rows: Iterator[Sequence[Any]], out: IO[str]) -> int:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    count = 0
    for count, row in enumerate(rows, 1):  # noqa: B007 - the last value is the number of rows
        writer.writerow(map(_plain, row))
    return count


def _json(names: Sequence[str], rows: Iterator[Sequence[Any]], out: IO[str]) -> int:
    count = 0
    for count, row in enumerate(rows, 1):  # noqa: B007 - likewise
        out.write(json.dumps(dict(zip(names, map(_plain, row), strict=True)), ensure_ascii=False) + "\n")
    return count


def _parquet(names: Sequence[str], rows: Iterator[Sequence[Any]], out: IO[bytes]) -> int:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise Unavailable("Parquet needs pyarrow: pip install 'autotune[parquet]', or export csv or json") from None
    first = list(islice(rows, ROWS_PER_GROUP))
    if not first:
        raise InvalidInput("there is nothing to export: an empty Parquet file would have no types")
    kinds = [next((type(v) for row in first if (v := row[at]) is not None), str) for at in range(len(names))]
    types = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64()}
    schema = pyarrow.schema(
        [(name, types.get(kind, pyarrow.string())) for name, kind in zip(names, kinds, strict=True)]
    )
    rest = iter(lambda: list(islice(rows, ROWS_PER_GROUP)), [])
    count = 0
    with parquet.ParquetWriter(out, schema, compression="zstd") as writer:
        for group in chain([first], rest):
            columns = [[_plain(row[at]) for row in group] for at in range(len(names))]
            arrays = [pyarrow.array(values, kind) for values, kind in zip(columns, schema.types, strict=True)]
            writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))
            count += len(group)
    return count


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
