"""The tables, as the current revision has them; migrations/versions builds them and a test compares the two.

One set of tables for all ops: what is queried is a column, op-specific dims and params are canonical JSON text
under a hash. Every key column is NOT NULL ("" where a part is optional), so that an upsert always finds its row.
Sizes and counts are 64-bit; `workloads.flops` and `.bytes` of shapes beyond that are clamped to 2^63-1, which
loses nothing because a workload is always rebuilt from its dims. Times are UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Double,
    Index,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    TypeDecorator,
    text,
)


class UtcDateTime(TypeDecorator[datetime]):
    """Aware UTC in and out. SQLite keeps no zone: it stores `2026-01-31 09:30:00.000000`, which sorts as text."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value if value is None or value.tzinfo is UTC else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def sqlite_time(value: datetime) -> str:
    """An aware time as SQLite stores it."""
    utc = value if value.tzinfo is UTC else value.astimezone(UTC)
    return utc.isoformat(" ", "microseconds")[:26]  # without +00:00


metadata = MetaData()

workloads = Table(
    "workloads",
    metadata,
    Column("key", Text, primary_key=True, nullable=False, doc="hash of op and dims"),
    Column("op", Text, nullable=False, doc="linear, gemm, conv2d …"),
    Column("spec", Text, nullable=False, doc="the workload in words, as the commands take it"),
    Column("dims", Text, nullable=False, doc="its dimensions as JSON"),
    Column("dtype", Text, nullable=False, doc="dtype of its inputs"),
    Column("flops", BigInteger, nullable=False, doc="floating-point operations of one call"),
    Column("bytes", BigInteger, nullable=False, doc="bytes of operands and result, each once"),
    Column("tolerance", Double, doc="error budget of a lookup that names none; NULL when the op is not installed"),
    Column("default_config", Text, nullable=False, doc="key of the framework's own config; empty likewise"),
    info={"doc": "one op with its shapes, dtype and layout"},
)

hardware = Table(
    "hardware",
    metadata,
    Column("key", Text, primary_key=True, nullable=False, doc="hash of silicon and limits"),
    Column("kind", Text, nullable=False, doc="cpu or gpu"),
    Column("name", Text, nullable=False, doc="the vendor's name of it"),
    Column("vendor", Text, nullable=False, doc="who made it"),
    Column("arch", Text, nullable=False, doc="x86_64, aarch64, sm_90 …"),
    Column("allowed_cpus", BigInteger, nullable=False, doc="CPUs that a process may use"),
    Column("memory_bytes", BigInteger, nullable=False, doc="its memory"),
    Column(
        "profile",
        Text,
        nullable=False,
        doc="everything known of it as JSON: caches, ISA flags, measured peak and bandwidth",
    ),
    info={"doc": "one machine, as far as a process may use it"},
)

environments = Table(
    "environments",
    metadata,
    Column("key", Text, primary_key=True, nullable=False, doc="hash of the identity"),
    Column("framework", Text, nullable=False, doc="such as torch 2.13.0+cpu"),
    Column("compiler", Text, nullable=False, doc="such as g++ 12.2.0; empty without one"),
    Column("identity", Text, nullable=False, doc="everything that counts as JSON"),
    info={"doc": "one set of software: what a result depends on besides the machine"},
)

configs = Table(
    "configs",
    metadata,
    Column("key", Text, primary_key=True, nullable=False, doc="hash of the other columns"),
    Column("algorithm", Text, nullable=False, doc="its name; torch without parameters is the framework left alone"),
    Column("placement", Text, nullable=False, doc="cpu, cuda:0 …"),
    Column("params", Text, nullable=False, doc="parameters by name as JSON"),
    sqlite_with_rowid=False,
    info={"doc": "one way to compute: an algorithm with its parameters, on a device"},
)

benchmark_specs = Table(
    "benchmark_specs",
    metadata,
    Column("key", Text, primary_key=True, nullable=False, doc="hash of the spec"),
    Column("spec", Text, nullable=False, doc="warm-ups, pairs, budgets and limits as JSON"),
    info={"doc": "one way to measure"},
)

measurements = Table(
    "measurements",
    metadata,
    Column(
        "uid",
        Text,
        primary_key=True,
        nullable=False,
        doc="hash of everything that makes this measurement itself: stored twice is stored once",
    ),
    Column("workload_key", Text, nullable=False, doc="what was computed"),
    Column("hardware_key", Text, nullable=False, doc="where"),
    Column("environment_key", Text, nullable=False, doc="with what software"),
    Column("config_key", Text, nullable=False, doc="how"),
    Column("spec_key", Text, nullable=False, doc="how it was timed"),
    Column(
        "kernel_revision",
        Text,
        nullable=False,
        doc="hash of the kernel's sources: results of other revisions are never served",
    ),
    Column("stage", Text, nullable=False, doc="screen (a few pairs) or final (many, decides)"),
    Column("status", Text, nullable=False, doc="OK, NOT_APPLICABLE, BUILD_FAILED, RUN_FAILED, TIMEOUT or WRONG_RESULT"),
    Column("message", Text, nullable=False, doc="why there is no time"),
    Column("median_ns", Double, doc="median time of a call"),
    Column("baseline_median_ns", Double, doc="the same of the default beside it"),
    Column("speedup", Double, doc="median of the paired ratios default / candidate; above 1 is faster"),
    Column(
        "speedup_low", Double, doc="95 % bootstrap interval of it, of finals"
    ),  # the interval is computed for stage final only: it costs milliseconds
    Column("speedup_high", Double, doc="its upper end"),
    Column("max_error", Double, doc="largest error of an element against f64"),
    Column("times_ns", Text, nullable=False, doc="raw times per call, as JSON"),
    Column("baseline_ns", Text, nullable=False, doc="raw times of the default, each next to its neighbour above"),
    Column("prepare_ns", BigInteger, nullable=False, doc="packing or converting constants, once"),
    Column("build_ns", BigInteger, nullable=False, doc="compiling or loading, once"),
    Column("workspace_bytes", BigInteger, nullable=False, doc="what the kernel holds beyond operands and result"),
    Column("contended", Boolean, nullable=False, doc="something else was using the machine: never served"),
    Column("job", Text, nullable=False, doc="the tuning job: hash of the candidates it chose from"),
    Column(
        "repetition", BigInteger, nullable=False, doc="counts repeated measurements of a config in one job and stage"
    ),
    Column("source", Text, nullable=False, doc="measured, or the format it was imported from"),
    Column("measured_at", UtcDateTime, nullable=False, doc="when, in UTC"),
    info={"doc": "one candidate that was tried, failures included; everything else follows from these"},
)

_OK = text("status = 'OK'")

Index(
    "measurements_fastest",
    measurements.c.workload_key,
    measurements.c.hardware_key,
    measurements.c.environment_key,
    measurements.c.median_ns,
    sqlite_where=_OK,
    postgresql_where=_OK,
)
# what is already known of a job, and whether a config failed after it succeeded
Index(
    "measurements_identity",
    measurements.c.workload_key,
    measurements.c.hardware_key,
    measurements.c.environment_key,
    measurements.c.config_key,
)
# all records, oldest first, a page at a time
Index("measurements_by_time", measurements.c.measured_at, measurements.c.uid)

best = Table(
    "best",
    metadata,
    Column("workload_key", Text, nullable=False, doc="as in measurements"),
    Column("hardware_key", Text, nullable=False, doc="as in measurements"),
    Column("environment_key", Text, nullable=False, doc="as in measurements"),
    Column("config_key", Text, nullable=False, doc="as in measurements"),
    Column("kernel_revision", Text, nullable=False, doc="as in measurements"),
    Column("expected_ns", Double, nullable=False, doc="median time of a call"),
    Column("baseline_ns", Double, nullable=False, doc="the default's, beside it"),
    Column("speedup", Double, nullable=False, doc="median of the paired ratios"),
    Column("speedup_low", Double, nullable=False, doc="95 % bootstrap interval of it"),
    Column("speedup_high", Double, nullable=False, doc="its upper end"),
    Column("max_error", Double, doc="as in measurements; NULL: not known, hence within no error budget"),
    Column("contended", Boolean, nullable=False, doc="as in measurements"),
    Column("measured_at", UtcDateTime, nullable=False, doc="as in measurements"),
    Column("uid", Text, nullable=False, doc="the measurement that decided"),
    PrimaryKeyConstraint("workload_key", "hardware_key", "environment_key", "config_key"),
    sqlite_with_rowid=False,
    info={"doc": "one decided config of a workload, machine and environment: the latest measurement that decides"},
)

jobs = Table(
    "jobs",
    metadata,
    Column("workload_key", Text, nullable=False, doc="as in measurements"),
    Column("hardware_key", Text, nullable=False, doc="as in measurements"),
    Column("environment_key", Text, nullable=False, doc="as in measurements"),
    Column("space_key", Text, nullable=False, doc="hash of the candidates it chose from"),
    Column("trials", BigInteger, nullable=False, doc="how many it tried"),
    Column("finished_at", UtcDateTime, nullable=False, doc="when, in UTC"),
    PrimaryKeyConstraint("workload_key", "hardware_key", "environment_key", "space_key"),
    sqlite_with_rowid=False,
    info={"doc": "one finished tuning job: these candidates were searched to the end"},
)

wishes = Table(
    "wishes",
    metadata,
    Column("workload_key", Text, nullable=False, doc="what is wanted"),
    Column("hardware_key", Text, nullable=False, doc="on which machine; empty for any"),
    Column("spec", Text, nullable=False, doc="the workload in words"),
    Column("asked", BigInteger, nullable=False, doc="how often it was asked for"),
    Column("weight", Double, nullable=False, doc="how often its model runs it"),
    Column("first_asked_at", UtcDateTime, nullable=False, doc="when first, in UTC"),
    Column("last_asked_at", UtcDateTime, nullable=False, doc="when last"),
    Column("taken_by", Text, nullable=False, doc="who is at it; empty while nobody is"),
    Column("taken_until", UtcDateTime, doc="until when it is theirs"),
    Column("granted_at", UtcDateTime, doc="when it was tuned"),
    PrimaryKeyConstraint("workload_key", "hardware_key"),
    sqlite_with_rowid=False,
    info={"doc": "one workload that somebody wants tuned"},
)
