"""First tables: workloads, hardware, environments, configs, measurements, decided entries and jobs.

Revision ID: 0001
Revises:
"""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# What lookup serves for each workload and machine: the fastest decided config that beats the default by 2 % and beyond
# its interval, on a quiet machine, with no more error than rounding explains; where none does (beats_default = 0), the
# default. For people: lookup also breaks ties, takes other error budgets and looks at kernel revisions.
BEST_CONFIGS = """
CREATE VIEW best_configs AS
SELECT w.op, w.spec AS workload, h.name AS hardware, h.allowed_cpus, e.framework, c.algorithm, c.params, c.placement,
       b.expected_ns, b.baseline_ns, b.speedup, b.speedup_low, b.speedup_high, b.beats_default, b.max_error,
       b.contended, b.kernel_revision, b.measured_at,
       b.workload_key, b.hardware_key, b.environment_key, b.config_key
FROM (
    SELECT ranked.*, row_number() OVER (
               PARTITION BY workload_key, hardware_key, environment_key
               ORDER BY beats_default DESC, is_default DESC, speedup DESC, config_key
           ) AS place
    FROM (
        SELECT d.*,
               CASE WHEN d.config_key <> v.default_config AND d.speedup >= 1.02 AND d.speedup_low > 1
                         AND d.max_error <= v.tolerance AND NOT d.contended THEN 1 ELSE 0 END AS beats_default,
               CASE WHEN d.config_key = v.default_config THEN 1 ELSE 0 END AS is_default
        FROM best AS d JOIN workloads AS v ON v.key = d.workload_key
    ) AS ranked
) AS b
JOIN workloads AS w ON w.key = b.workload_key
JOIN hardware AS h ON h.key = b.hardware_key
JOIN environments AS e ON e.key = b.environment_key
JOIN configs AS c ON c.key = b.config_key
WHERE b.place = 1
"""

FAILURES = """
CREATE VIEW failures AS
SELECT m.status, m.message, w.op, w.spec AS workload, c.algorithm, c.params, c.placement, h.name AS hardware,
       e.framework, m.stage, m.max_error, m.kernel_revision, m.job, m.measured_at, m.uid
FROM measurements AS m
JOIN workloads AS w ON w.key = m.workload_key
JOIN hardware AS h ON h.key = m.hardware_key
JOIN environments AS e ON e.key = m.environment_key
JOIN configs AS c ON c.key = m.config_key
WHERE m.status <> 'OK'
"""

COVERAGE = """
CREATE VIEW coverage AS
SELECT w.op, w.spec AS workload, h.name AS hardware, h.allowed_cpus, e.framework,
       m.measurements, m.configs, m.ok, m.failed,
       (SELECT count(*) FROM best AS b WHERE b.workload_key = m.workload_key AND b.hardware_key = m.hardware_key
            AND b.environment_key = m.environment_key) AS decided,
       (SELECT max(j.finished_at) FROM jobs AS j WHERE j.workload_key = m.workload_key
            AND j.hardware_key = m.hardware_key AND j.environment_key = m.environment_key) AS finished_at,
       m.last_measured_at, m.workload_key, m.hardware_key, m.environment_key
FROM (
    SELECT workload_key, hardware_key, environment_key,
           count(*) AS measurements, count(DISTINCT config_key) AS configs,
           sum(CASE WHEN status = 'OK' THEN 1 ELSE 0 END) AS ok,
           sum(CASE WHEN status = 'OK' THEN 0 ELSE 1 END) AS failed,
           max(measured_at) AS last_measured_at
    FROM measurements
    GROUP BY workload_key, hardware_key, environment_key
) AS m
JOIN workloads AS w ON w.key = m.workload_key
JOIN hardware AS h ON h.key = m.hardware_key
JOIN environments AS e ON e.key = m.environment_key
"""


def text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)


def count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False)


def figure(name: str, nullable: bool = True) -> sa.Column[float]:
    return sa.Column(name, sa.Double, nullable=nullable)


def flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean, nullable=False)


def time(name: str) -> sa.Column[datetime]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=False)


def upgrade() -> None:
    op.create_table(
        "workloads",
        *map(text, ("key", "op", "spec", "dims", "dtype")),
        *map(count, ("flops", "bytes")),
        figure("tolerance"),
        text("default_config"),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_table(
        "hardware",
        *map(text, ("key", "kind", "name", "vendor", "arch")),
        *map(count, ("allowed_cpus", "memory_bytes")),
        text("profile"),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_table(
        "environments", *map(text, ("key", "framework", "compiler", "identity")), sa.PrimaryKeyConstraint("key")
    )
    op.create_table(
        "configs",
        *map(text, ("key", "algorithm", "placement", "params")),
        sa.PrimaryKeyConstraint("key"),
        sqlite_with_rowid=False,
    )
    op.create_table("benchmark_specs", *map(text, ("key", "spec")), sa.PrimaryKeyConstraint("key"))
    identity = ("workload_key", "hardware_key", "environment_key")
    op.create_table(
        "measurements",
        *map(text, ("uid", *identity, "config_key", "spec_key", "kernel_revision", "stage", "status", "message")),
        *map(figure, ("median_ns", "baseline_median_ns", "speedup", "speedup_low", "speedup_high", "max_error")),
        *map(text, ("times_ns", "baseline_ns")),
        *map(count, ("prepare_ns", "build_ns", "workspace_bytes")),
        flag("contended"),
        text("job"),
        count("repetition"),
        text("source"),
        time("measured_at"),
        sa.PrimaryKeyConstraint("uid"),
    )
    ok = sa.text("status = 'OK'")
    op.create_index(
        "measurements_fastest", "measurements", [*identity, "median_ns"], sqlite_where=ok, postgresql_where=ok
    )
    op.create_index("measurements_identity", "measurements", [*identity, "config_key"])
    op.create_index("measurements_by_time", "measurements", ["measured_at", "uid"])
    op.create_table(
        "best",
        *map(text, (*identity, "config_key", "kernel_revision")),
        *(figure(n, False) for n in ("expected_ns", "baseline_ns", "speedup", "speedup_low", "speedup_high")),
        figure("max_error"),
        flag("contended"),
        time("measured_at"),
        text("uid"),
        sa.PrimaryKeyConstraint(*identity, "config_key"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "jobs",
        *map(text, (*identity, "space_key")),
        count("trials"),
        time("finished_at"),
        sa.PrimaryKeyConstraint(*identity, "space_key"),
        sqlite_with_rowid=False,
    )
    for view in (BEST_CONFIGS, FAILURES, COVERAGE):
        op.execute(view)
