"""Fixtures that keep every test apart from the user's own database and cache, and from other tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.postgres import Databases

PLUGIN = Path(__file__).parent / "plugin"
DEVICE_PLUGIN = Path(__file__).parent / "device_plugin"


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiled kernels of the whole session in one folder of its own."""
    root = tmp_path_factory.getbasetemp().parent / "autotune-cache"  # shared by parallel test processes
    before = os.environ.get("AUTOTUNE_CACHE")
    os.environ["AUTOTUNE_CACHE"] = str(root)
    yield
    if before is None:
        del os.environ["AUTOTUNE_CACHE"]
    else:
        os.environ["AUTOTUNE_CACHE"] = before


@pytest.fixture(autouse=True)
def _own_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test sees the user's database or the shipped one; lookups start with nothing remembered."""
    from autotune import online

    monkeypatch.setenv("AUTOTUNE_SHIPPED", str(tmp_path / "shipped"))
    monkeypatch.setenv("AUTOTUNE_DB", str(tmp_path / "user" / "tuning.sqlite"))
    online.refresh()
    yield
    online.refresh()


@pytest.fixture(scope="session")
def databases() -> Iterator[Databases]:
    """New databases on a real PostgreSQL server: started for this test process, or the one that is named."""
    with Databases() as databases:
        yield databases


@pytest.fixture
def postgres_url(databases: Databases) -> Iterator[str]:
    """The URL of an empty database on a real PostgreSQL server."""
    with databases.new() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database that does not exist yet or is empty: a file, then one on a real PostgreSQL server."""
    if request.param == "sqlite":
        return str(tmp_path / "tuning.sqlite")
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package in tests/plugin, installed: its entry points are found here and in child processes."""
    with _installed(monkeypatch, PLUGIN):
        yield


@pytest.fixture
def device_plugin(plugin: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package in tests/device_plugin beside it: a simulated device, here and in child processes."""
    with _installed(monkeypatch, DEVICE_PLUGIN):
        yield


@contextmanager
def _installed(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[None]:
    from autotune import registry

    monkeypatch.syspath_prepend(str(folder))
    path = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(folder), path))))
    registry.forget()
    yield
    for module in folder.glob("*.py"):
        sys.modules.pop(module.stem, None)
    registry.forget()


@contextmanager
def without_privileges() -> Iterator[None]:
    """File permissions do not bind root: become nobody for a while."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.fixture
def readable(tmp_path: Path) -> Iterator[Path]:
    """A folder that anybody may read and nobody but its owner may write."""
    parents = [p for p in (tmp_path, *tmp_path.parents) if p.stat().st_mode & 0o005 != 0o005]
    modes = [p.stat().st_mode for p in parents]
    for parent in parents:
        parent.chmod(parent.stat().st_mode | 0o055)
    yield tmp_path
    for parent, mode in zip(parents, modes, strict=True):
        parent.chmod(mode)
