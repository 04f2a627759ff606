"""How alembic reaches the database: through the connection its caller passed in `config.attributes`.

`autotune.store.migrate` is that caller; there is no alembic.ini. Migrations import only alembic and sqlalchemy, so
that an old one still runs when the package has moved on. Logging is left as the program has it.
"""

from __future__ import annotations

from alembic import context

connection = context.config.attributes.get("connection")
if connection is None:
    raise RuntimeError("run migrations through autotune.store.migrate, which passes the connection")

context.configure(
    connection=connection,
    target_metadata=context.config.attributes.get("target_metadata"),  # only for writing a new revision
    version_table="autotune_version",  # other tools keep their own alembic_version in the same database
    render_as_batch=True,  # SQLite alters a table by copying it
)
with context.begin_transaction():
    context.run_migrations()
