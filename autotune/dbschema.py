"""What readers (standard library) and writers (SQLAlchemy) of a database file agree on: the schema's revision,
the table that states it, and the sentences for a database that cannot be used. Standard library only.
"""

from __future__ import annotations

import os
import re

from autotune.errors import Incompatible, InvalidInput

SCHEMA_REVISION = "0002"
"""The revision this version reads and writes: the newest file in migrations/versions."""

VERSION_TABLE = "autotune_version"
"""Ours alone, so that another tool's alembic_version may be in the same database."""

_SQLITE_SENTENCES = (
    ("not a database", "{where} is not an SQLite database"),
    ("malformed", "{where} is damaged or truncated: restore it from a copy"),
    ("disk i/o", "{where} cannot be read (disk I/O error): it may be truncated, or its disk may be failing"),
    ("readonly", "{where} is read-only"),
    ("locked", "{where} stayed locked by another process: try again when that one is done"),
    ("disk is full", "{where} cannot grow: the disk is full"),
    ("unable to open", "{where} cannot be opened: check that the folder exists and that you may read it"),
)


def check_revision(found: str | None, where: str) -> None:
    """Returns when `found` is this version's schema; otherwise raises `Incompatible`, naming the remedy."""
    if found == SCHEMA_REVISION:
        return
    if found is None:
        raise Incompatible(f"{where} is not an autotune database")
    if is_older(found):
        raise Incompatible(
            f"{where} has schema {found}, this autotune needs {SCHEMA_REVISION}: run `autotune db upgrade`"
        )
    raise Incompatible(f"{where} was written by a newer autotune (schema {found}): upgrade autotune")


def is_older(found: str) -> bool:
    """Whether `found` is an earlier revision of ours, which an upgrade brings to this one."""
    return re.fullmatch(r"\d{4}", found) is not None and found < SCHEMA_REVISION


def sqlite_sentence(where: str, message: str) -> str:
    """One sentence for an SQLite error message about the database `where`."""
    lowered = message.lower()
    for mark, sentence in _SQLITE_SENTENCES:
        if mark in lowered:
            return sentence.format(where=where)
    first_line = message.strip().splitlines()[0] if message.strip() else "unknown error"
    return f"{where} cannot be used: {first_line}"


def sqlite_path(where: str | os.PathLike[str]) -> str | None:
    """The absolute file path of a path or `sqlite:///` URL; None for a URL of another kind of database.

    Raises `InvalidInput` for an empty path and for in-memory SQLite, which has no file.
    """
    text = os.fspath(where)
    scheme, separator, rest = text.partition("://")
    if separator and re.fullmatch(r"[a-z][a-z0-9+]*", scheme):
        if scheme.split("+")[0] != "sqlite":
            return None
        text = rest.removeprefix("/").partition("?")[0]
    if not text or text == ":memory:":
        raise InvalidInput(f"{os.fspath(where)!r} names no database file")
    return os.path.abspath(os.path.expanduser(text))
