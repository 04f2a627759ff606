"""The PostgreSQL store: the contract on a real server, servers that cannot be used, and many processes at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import make_url

from autotune.cli import main
from autotune.dbschema import SCHEMA_REVISION
from autotune.errors import Incompatible, Unavailable
from autotune.ops.linear import Linear
from autotune.store import Store, engine
from autotune.store.embedded import PASSWORD, PostgresServer
from autotune.store.sql import SqlStore, open_store, upgrade_store
from autotune.types import Measurement, Status
from tests import store_samples as sample
from tests.postgres import query
from tests.store_contract import StoreContract
from tests.store_workers import add_batches
from tests.test_store_sqlite import processes, timed


class TestPostgres(StoreContract):
    @pytest.fixture
    def open_store(self, postgres_url: str) -> Callable[[], Store]:
        return lambda: open_store(postgres_url)


class TestPostgresByCopy(StoreContract):
    """The same with every batch sent by COPY, which is otherwise for large ones."""

    @pytest.fixture
    def open_store(self, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Store]:
        monkeypatch.setattr(engine, "COPY_FROM_ROWS", 1)
        return lambda: open_store(postgres_url)


def test_large_batches_are_stored_once_each(postgres_url: str) -> None:
    records = [sample.record(repetition=n, config=sample.config(n % 7)) for n in range(3 * engine.COPY_FROM_ROWS)]
    with open_store(postgres_url) as store:
        assert store.add(records[:-10]) == len(records) - 10
        assert store.add(records) == 10
        assert store.add([*records, *records]) == 0
        assert {record.uid for record in store.records()} == {record.uid for record in records}


# Servers that cannot be used


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"password": "not-it-at-all"}, "password authentication failed"),
        ({"username": "nobody_known", "password": "not-it-at-all"}, "password authentication failed"),
        ({"database": "no_such_database"}, 'database "no_such_database" does not exist'),
        ({"port": 1}, "refused"),
        ({"host": "no-such-host.invalid"}, "cannot be reached"),
    ],
)
def test_a_server_that_refuses_is_one_sentence_without_the_password(
    postgres_url: str, change: dict[str, Any], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = make_url(postgres_url).set(**change).render_as_string(hide_password=False)
    assert main(["db", "stats", "--db", url]) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert "postgresql://" in said.err
    assert len(said.err.strip().splitlines()) == 1
    assert "Traceback" not in said.err
    for secret in (PASSWORD, "not-it-at-all"):
        assert secret not in said.err + said.out


def test_a_server_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setattr(engine, "CONNECT_TIMEOUT_S", 2)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(1)  # accepts and says nothing
        with pytest.raises(Unavailable, match="cannot be reached"):
            open_store(f"postgresql://u:secret@127.0.0.1:{deaf.getsockname()[1]}/db")


def test_a_database_without_our_tables_is_not_taken_for_one(postgres_url: str) -> None:
    query(postgres_url, "CREATE TABLE other (id INTEGER)")
    with pytest.raises(Incompatible, match="not an autotune database"):
        open_store(postgres_url, create=False)
    open_store(postgres_url).close()  # another program's tables do not matter
    query(postgres_url, "SELECT id FROM other")


def test_tables_of_the_same_name_are_left_alone(postgres_url: str) -> None:
    query(postgres_url, "CREATE TABLE jobs (id INTEGER)")
    with pytest.raises(Incompatible, match="table jobs of another program"):
        open_store(postgres_url)


@pytest.mark.parametrize(("revision", "advice"), [("0000", "db upgrade"), ("9999", "upgrade autotune")])
def test_another_schema_on_the_server_is_named(postgres_url: str, revision: str, advice: str) -> None:
    open_store(postgres_url).close()
    query(postgres_url, "UPDATE autotune_version SET version_num = %s", (revision,))
    with pytest.raises(Incompatible, match=rf"schema {revision}.*{advice}"):
        open_store(postgres_url)


def test_upgrading_what_is_up_to_date_changes_nothing(postgres_url: str) -> None:
    open_store(postgres_url).close()
    assert upgrade_store(postgres_url) == (SCHEMA_REVISION, SCHEMA_REVISION)


def test_lookup_says_that_a_snapshot_is_needed(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import autotune
    from autotune.types import Origin

    monkeypatch.setenv("AUTOTUNE_DB", postgres_url)
    autotune.refresh()
    with pytest.warns(RuntimeWarning, match="snapshot") as warned:
        answers = [autotune.lookup(Linear(m, 3, 4)) for m in (1, 2)]
    assert [answer.origin for answer in answers] == [Origin.DEFAULT] * 2
    assert len(warned) == 1
    assert PASSWORD not in str(warned[0].message)


# Connections that end


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


def test_a_store_goes_on_after_the_server_was_away(own_server: PostgresServer) -> None:
    with open_store(own_server.url()) as store:
        store.add([sample.record()])
        own_server.stop("immediate")  # what a crash looks like
        with pytest.raises(Unavailable, match="cannot be reached"):
            store.add([sample.record(job="away")])
        own_server.start()
        assert store.add([sample.record(job="away"), sample.record()]) == 1
        assert store.stats().measurements == 2


@pytest.mark.parametrize("by_copy", [False, True])
def test_a_connection_cut_in_a_transaction_stores_nothing(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, by_copy: bool
) -> None:
    if by_copy:
        monkeypatch.setattr(engine, "COPY_FROM_ROWS", 1)
    with open_store(postgres_url) as store:
        assert isinstance(store, SqlStore)
        update = store._decisions.update

        def cut(connection: Any, records: Any) -> None:
            pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
            query(postgres_url, "SELECT pg_terminate_backend(%s)", (pid,))
            update(connection, records)

        with monkeypatch.context() as patched:
            patched.setattr(store._decisions, "update", cut)
            with pytest.raises(Unavailable):
                store.add([sample.record()])
        assert store.stats().measurements == 0
        assert store.add([sample.record()]) == 1


def test_what_goes_wrong_in_a_copy_is_one_sentence(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "COPY_FROM_ROWS", 1)
    with open_store(postgres_url) as store:
        store.add([sample.record()])
        query(postgres_url, "ALTER TABLE measurements ADD CONSTRAINT small CHECK (repetition < 5)")
        with pytest.raises(Unavailable, match="small"):
            store.add([sample.record(repetition=9)])
        assert store.add([sample.record(repetition=4)]) == 1


def test_of_equal_records_in_one_batch_the_first_counts(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "COPY_FROM_ROWS", 1)
    first = sample.record(sample.ok((50, 60)))
    others = [sample.record(sample.ok((n, n))) for n in range(70, 90)]
    with open_store(where) as store:
        assert store.add([first, *others]) == 1
        assert list(store.records()) == [first]


# Many processes, figures


def test_c23_c32_processes_that_start_at_once_store_everything_once(postgres_url: str) -> None:
    workers, batches, per_batch = 8, 3, 5
    with processes(workers) as pool:
        jobs = [pool.submit(add_batches, postgres_url, worker, batches, per_batch) for worker in range(workers)]
        added = [job.result() for job in jobs]
    assert sum(added) == workers * batches * per_batch + batches  # the shared ones once
    with open_store(postgres_url, create=False) as store:
        found = [record.uid for record in store.records()]
        assert len(found) == len(set(found)) == sum(added)
        assert len(store.choices(*sample.IDENTITY)) == per_batch + 1


def test_c25_figures_that_are_no_numbers_are_stored_alike_on_both(where: str) -> None:
    bad = (math.inf, -math.inf, math.nan, 0, -1)
    measurements = [*(timed(value, 1) for value in bad), *(timed(1, value) for value in bad), timed(1e-300, 1e300)]
    with open_store(where) as store:
        store.add([sample.record(m, repetition=n, config=sample.config(n)) for n, m in enumerate(measurements)])
        found = {record.repetition: record.measurement for record in store.records()}
        assert [found[n].status for n in range(len(bad) * 2)] == [Status.RUN_FAILED] * len(bad) * 2
        assert store.stats().by_status == {"OK": 1, "RUN_FAILED": len(bad) * 2}
        assert store.choices(*sample.IDENTITY) == ()
        assert all(found[n] == measured for n, measured in enumerate(measurements))


def test_c26_tuples_stay_tuples_in_a_new_process(where: str) -> None:
    with open_store(where) as store:
        store.add([sample.record(Measurement(Status.OK, "", (1, 2), (2, 4)))])
    with open_store(where) as store:
        (found,) = store.records()
        assert found.config == sample.CONFIG
        assert found.config.params["order"] == ("m", "n", ("k", 0.5))


def test_the_views_for_people_say_the_same_on_both(where: str) -> None:
    from sqlalchemy import text

    with open_store(where) as store:
        assert isinstance(store, SqlStore)
        store.add([sample.record(), sample.record(sample.failed(), config=sample.config(9))])
        with store.engine.connect() as connection:
            best = connection.execute(text("SELECT workload, speedup, beats_default FROM best_configs")).one()
            failure = connection.execute(text("SELECT status, message FROM failures")).one()
            coverage = connection.execute(text("SELECT measurements, ok, failed, decided FROM coverage")).one()
    assert tuple(best) == (sample.WORKLOAD.spec, 2.0, 1)
    assert tuple(failure) == ("RUN_FAILED", "segmentation fault")
    assert tuple(coverage) == (2, 1, 1, 1)
