"""Wishes: workloads that were looked up and never measured; a view of the largest gains.

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

# Where tuning pays: time saved per call against the framework's default, the largest first.
TOP_GAINS = """
CREATE VIEW top_gains AS
SELECT op, workload, hardware, framework, algorithm, params, baseline_ns, expected_ns, speedup,
       baseline_ns - expected_ns AS saved_ns, workload_key, hardware_key, environment_key, config_key
FROM best_configs
WHERE beats_default = 1
ORDER BY baseline_ns - expected_ns DESC, workload_key
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
    for view in (TOP_GAINS, OPEN_WISHES):
        op.execute(view)
