"""The store that waits: the contract, and a real server that goes away and comes back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.errors import Incompatible, Unavailable
from autotune.store import Store
from autotune.store.embedded import PostgresServer
from autotune.store.patient import PatientStore
from autotune.store.sql import open_store
from tests import store_samples as sample
from tests.store_contract import StoreContract


class TestPatient(StoreContract):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> Callable[[], Store]:
        return lambda: PatientStore(lambda: open_store(tmp_path / "tuning.sqlite"))


def test_a_server_that_comes_back_is_waited_for() -> None:
    said: list[str] = []
    with (
        PostgresServer() as server,
        PatientStore(lambda: open_store(server.url()), 60, said.append) as store,
    ):
        store.add([sample.record()])
        server.stop("immediate")
        restart = threading.Timer(1.0, server.start)
        restart.start()
        assert store.add([sample.record(), sample.record(job="while it was away")]) == 1
        restart.join()
        assert store.stats().measurements == 2
    assert len(said) == 1
    assert "waiting up to 60 s" in said[0]


def test_patience_ends(tmp_path: Path) -> None:
    calls = 0

    def opener() -> Store:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise Unavailable("away")
        return open_store(tmp_path / "tuning.sqlite")

    store = PatientStore(opener, patience_s=0.5)
    assert store._store is not None
    store.close()
    begin = time.monotonic()
    with pytest.raises(Unavailable, match="away"):
        store.add([sample.record()])
    assert calls > 2
    assert time.monotonic() - begin < 30


def test_what_waiting_does_not_cure_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="does not exist"):
        PatientStore(lambda: open_store(tmp_path / "missing" / "x.sqlite"), patience_s=3600)
    (tmp_path / "empty").touch()
    with pytest.raises(Incompatible):
        PatientStore(lambda: open_store(tmp_path / "empty", create=False), patience_s=3600)
