"""Brings a database to this version's schema, with alembic and the files in migrations/.

alembic is imported only when there is something to do: opening a database that is at head needs none of it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, inspect, text

from autotune import paths
from autotune.dbschema import SCHEMA_REVISION, VERSION_TABLE, check_revision, is_older
from autotune.errors import Incompatible
from autotune.store.engine import describe, one_at_a_time, translated, writing
from autotune.store.schema import metadata

if TYPE_CHECKING:
    from alembic.config import Config

_ALEMBIC = threading.Lock()
"""alembic keeps the running migration in module globals: one at a time in a process."""


def current_revision(connection: Connection) -> str | None:
    """The revision the database is at; None when it has none of our tables."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found = connection.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}"))
    return None if found is None else str(found)


def head_revision() -> str:
    """The newest revision in migrations/; equals `dbschema.SCHEMA_REVISION`."""
    from alembic.script import ScriptDirectory

    return str(ScriptDirectory.from_config(alembic_config()).get_current_head())


def alembic_config(**attributes: Any) -> Config:
    """alembic's settings for our migrations; `attributes` (a connection, a target_metadata) reach env.py."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", paths.migrations_dir().replace("%", "%%"))
    config.attributes.update(attributes)
    return config


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Brings the database to `revision`, in one transaction: it is there as a whole or not at all.

    Several processes may do so at once; one does the work and the others find it done. Raises `Unavailable`
    when the database cannot be written, `Incompatible` when a newer version wrote it or when it has a table of
    that name which is not ours.
    """
    where = describe(engine.url)
    with _ALEMBIC, translated(where), writing(engine) as connection:
        one_at_a_time(connection)
        found = current_revision(connection)
        if found == SCHEMA_REVISION:
            return
        if found is None:
            taken = set(inspect(connection).get_table_names()) & set(metadata.tables)
            if taken:
                raise Incompatible(f"{where} has a table {min(taken)} of another program: use another database")
        elif not is_older(found):
            check_revision(found, where)
        from alembic import command
        from alembic.util import CommandError

        try:
            command.upgrade(alembic_config(connection=connection), revision)
        except CommandError as error:  # a revision that never was, or migrations/ is not complete
            raise Incompatible(f"{where} with schema {found or 'none'} cannot be upgraded: {error}") from error
