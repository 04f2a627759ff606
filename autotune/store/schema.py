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
    Column("key", Text, primary_key=True, nullable=False),
    Column("op", Text, nullable=False),
    Column("spec", Text, nullable=False),
    Column("dims", Text, nullable=False),
    Column("dtype", Text, nullable=False),
    Column("flops", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("tolerance", Double),  # the op's default error budget; NULL when the op is not installed
    Column("default_config", Text, nullable=False),  # key of the framework's own config; "" likewise
)

hardware = Table(
    "hardware",
    metadata,
    Column("key", Text, primary_key=True, nullable=False),
    Column("kind", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("vendor", Text, nullable=False),
    Column("arch", Text, nullable=False),
    Column("allowed_cpus", BigInteger, nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("profile", Text, nullable=False),
)

environments = Table(
    "environments",
    metadata,
    Column("key", Text, primary_key=True, nullable=False),
    Column("framework", Text, nullable=False),
    Column("compiler", Text, nullable=False),
    Column("identity", Text, nullable=False),
)

configs = Table(
    "configs",
    metadata,
    Column("key", Text, primary_key=True, nullable=False),
    Column("algorithm", Text, nullable=False),
    Column("placement", Text, nullable=False),
    Column("params", Text, nullable=False),
    sqlite_with_rowid=False,
)

benchmark_specs = Table(
    "benchmark_specs",
    metadata,
    Column("key", Text, primary_key=True, nullable=False),
    Column("spec", Text, nullable=False),
)

measurements = Table(
    "measurements",
    metadata,
    Column("uid", Text, primary_key=True, nullable=False),
    Column("workload_key", Text, nullable=False),
    Column("hardware_key", Text, nullable=False),
    Column("environment_key", Text, nullable=False),
    Column("config_key", Text, nullable=False),
    Column("spec_key", Text, nullable=False),
    Column("kernel_revision", Text, nullable=False),
    Column("stage", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("median_ns", Double),
    Column("baseline_median_ns", Double),
    Column("speedup", Double),
    Column("speedup_low", Double),  # the interval is computed for stage final only: it costs milliseconds
    Column("speedup_high", Double),
    Column("max_error", Double),
    Column("times_ns", Text, nullable=False),
    Column("baseline_ns", Text, nullable=False),
    Column("prepare_ns", BigInteger, nullable=False),
    Column("build_ns", BigInteger, nullable=False),
    Column("workspace_bytes", BigInteger, nullable=False),
    Column("contended", Boolean, nullable=False),
    Column("job", Text, nullable=False),
    Column("repetition", BigInteger, nullable=False),
    Column("source", Text, nullable=False),
    Column("measured_at", UtcDateTime, nullable=False),
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
    Column("workload_key", Text, nullable=False),
    Column("hardware_key", Text, nullable=False),
    Column("environment_key", Text, nullable=False),
    Column("config_key", Text, nullable=False),
    Column("kernel_revision", Text, nullable=False),
    Column("expected_ns", Double, nullable=False),
    Column("baseline_ns", Double, nullable=False),
    Column("speedup", Double, nullable=False),
    Column("speedup_low", Double, nullable=False),
    Column("speedup_high", Double, nullable=False),
    Column("max_error", Double),  # NULL: not known, hence within no error budget
    Column("contended", Boolean, nullable=False),
    Column("measured_at", UtcDateTime, nullable=False),
    Column("uid", Text, nullable=False),
    PrimaryKeyConstraint("workload_key", "hardware_key", "environment_key", "config_key"),
    sqlite_with_rowid=False,
)

jobs = Table(
    "jobs",
    metadata,
    Column("workload_key", Text, nullable=False),
    Column("hardware_key", Text, nullable=False),
    Column("environment_key", Text, nullable=False),
    Column("space_key", Text, nullable=False),
    Column("trials", BigInteger, nullable=False),
    Column("finished_at", UtcDateTime, nullable=False),
    PrimaryKeyConstraint("workload_key", "hardware_key", "environment_key", "space_key"),
    sqlite_with_rowid=False,
)

wishes = Table(
    "wishes",
    metadata,
    Column("workload_key", Text, nullable=False),
    Column("hardware_key", Text, nullable=False),  # "" for any machine
    Column("spec", Text, nullable=False),
    Column("asked", BigInteger, nullable=False),
    Column("weight", Double, nullable=False),
    Column("first_asked_at", UtcDateTime, nullable=False),
    Column("last_asked_at", UtcDateTime, nullable=False),
    Column("taken_by", Text, nullable=False),  # "" while nobody has it
    Column("taken_until", UtcDateTime),
    Column("granted_at", UtcDateTime),
    PrimaryKeyConstraint("workload_key", "hardware_key"),
    sqlite_with_rowid=False,
)
