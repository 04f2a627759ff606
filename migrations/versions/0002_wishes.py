"""The queue of wishes, and views of gains, of the queue and of searches.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# What tuning gained: the served configs that beat the default, with the time that one call saves.
TOP_GAINS = """
CREATE VIEW top_gains AS
SELECT op, workload, hardware, framework, algorithm, params, placement, speedup, speedup_low, speedup_high,
       baseline_ns, expected_ns, baseline_ns - baseline_ns / speedup AS saved_ns, max_error, measured_at,
       workload_key, hardware_key, environment_key, config_key
FROM best_configs
WHERE beats_default = 1
"""

# What waits to be tuned. One that somebody took is listed with when the lease ends.
OPEN_WISHES = """
CREATE VIEW open_wishes AS
SELECT w.spec AS workload, h.name AS hardware, w.asked, w.weight, w.first_asked_at, w.last_asked_at, w.taken_by,
       w.taken_until, w.workload_key, w.hardware_key
FROM wishes AS w
LEFT JOIN hardware AS h ON h.key = w.hardware_key
WHERE w.granted_at IS NULL
"""

# Every search as it went: `trial` counts the measurements of one workload, machine and environment from 1, and
# `best_so_far` is the largest speed-up up to then.
SEARCH_HISTORY = """
CREATE VIEW search_history AS
SELECT w.op, w.spec AS workload, h.name AS hardware, e.framework,
       row_number() OVER (PARTITION BY m.workload_key, m.hardware_key, m.environment_key
                          ORDER BY m.measured_at, m.uid) AS trial,
       m.stage, m.status, c.algorithm, c.params, m.speedup, m.median_ns,
       max(m.speedup) OVER (PARTITION BY m.workload_key, m.hardware_key, m.environment_key
                            ORDER BY m.measured_at, m.uid) AS best_so_far,
       m.contended, m.measured_at, m.workload_key, m.hardware_key, m.environment_key, m.config_key
FROM measurements AS m
JOIN workloads AS w ON w.key = m.workload_key
JOIN hardware AS h ON h.key = m.hardware_key
JOIN environments AS e ON e.key = m.environment_key
JOIN configs AS c ON c.key = m.config_key
"""


def upgrade() -> None:
    op.create_table(
        "wishes",
        *(sa.Column(name, sa.Text, nullable=False) for name in ("workload_key", "hardware_key", "spec")),
        sa.Column("asked", sa.BigInteger, nullable=False),
        sa.Column("weight", sa.Double, nullable=False),
        sa.Column("first_asked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_asked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("taken_by", sa.Text, nullable=False),
        sa.Column("taken_until", sa.DateTime(timezone=True)),
        sa.Column("granted_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("workload_key", "hardware_key"),
        sqlite_with_rowid=False,
    )
    for view in (TOP_GAINS, OPEN_WISHES, SEARCH_HISTORY):
        op.execute(view)
