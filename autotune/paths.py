"""Where db/, models/ and migrations/ are: beside the package in a checkout, in autotune/_data in a wheel."""

from __future__ import annotations

import os

from autotune import settings

_PACKAGE = os.path.dirname(os.path.abspath(__file__))


def data_dir(name: str) -> str:
    """The folder `name` ("db", "models" or "migrations") of this installation; it may not exist."""
    wheel = os.path.join(_PACKAGE, "_data", name)
    return wheel if os.path.isdir(wheel) else os.path.join(os.path.dirname(_PACKAGE), name)


def shipped_database() -> str:
    """The database shipped with this release; the file may not exist."""
    return os.path.join(_shipped("db"), "tuning.sqlite")


def shipped_model() -> str:
    """The cost model shipped with this release; the file may not exist."""
    return os.path.join(_shipped("models"), "model.atm")


def _shipped(name: str) -> str:
    instead = settings.shipped()
    return os.path.join(instead, name) if instead else data_dir(name)


def migrations_dir() -> str:
    return data_dir("migrations")


def package_file(*parts: str) -> str:
    """A file shipped inside the package, such as a kernel source or a suite."""
    return os.path.join(_PACKAGE, *parts)
