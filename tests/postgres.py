"""Databases on a real PostgreSQL: on a server of the tests' own, or on the one that AUTOTUNE_TEST_POSTGRES names.

The variable holds the URL of a server where the user may create databases; each test gets one of its own there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import psycopg
from sqlalchemy import make_url

from autotune.store.embedded import PostgresServer


class Databases:
    """Makes and drops databases on one server."""

    def __init__(self) -> None:
        self._url = os.environ.get("AUTOTUNE_TEST_POSTGRES", "")
        self._server = None if self._url else PostgresServer(durable=False)
        self._numbers = count()

    def __enter__(self) -> Databases:
        if self._server is not None:
            self._server.start()
            self._url = self._server.url()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._server is not None:
            self._server.close()

    @contextmanager
    def new(self) -> Iterator[str]:
        """The URL of an empty database, dropped afterwards."""
        name = f"autotune_test_{os.getpid()}_{next(self._numbers)}"
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
            yield make_url(self._url).set(database=name).render_as_string(hide_password=False)
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def query(url: str, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Rows of one statement, committed; none for a statement that returns none."""
    with psycopg.connect(url) as connection:
        cursor = connection.execute(statement, values)  # type: ignore[call-overload]
        return cursor.fetchall() if cursor.description else []
