"""The `best` table: one decided entry per (workload, hardware, environment, config).

It is a function of `measurements`, whatever order they arrive in and whoever adds them: the newest FINAL OK
measurement, unless a FINAL failure is newer. Newer means later, and for equal times the larger uid.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, Select, bindparam, delete, exists, select, tuple_

from autotune.store.engine import insert, one_at_a_time
from autotune.store.rows import choice_of, config_of
from autotune.store.schema import best, configs, measurements
from autotune.types import Choice, Stage, Status, TuningRecord

IDENTITY = ("workload_key", "hardware_key", "environment_key", "config_key")
_FINAL, _OK = Stage.FINAL.value, Status.OK.value


@dataclass(frozen=True)
class Final:
    """A stored measurement of stage FINAL: whether it succeeded, and the four keys of `IDENTITY`."""

    uid: str
    ok: bool
    identity: tuple[str, str, str, str]

    @classmethod
    def of(cls, record: TuningRecord) -> Final:
        keys = (record.workload.key, record.hardware.key, record.environment.key, record.config.key)
        return cls(record.uid, record.measurement.status is Status.OK, keys)


class Decisions:
    """The statements of one database, built once."""

    def __init__(self, engine: Engine) -> None:
        m = measurements.c
        later = measurements.alias("later").c
        failed_later = exists().where(
            *(later[name] == m[name] for name in IDENTITY),
            later.stage == _FINAL,
            later.status != _OK,
            tuple_(later.measured_at, later.uid) > tuple_(m.measured_at, m.uid),
        )
        figures = {
            "kernel_revision": m.kernel_revision,
            "expected_ns": m.median_ns,
            "baseline_ns": m.baseline_median_ns,
            "speedup": m.speedup,
            "speedup_low": m.speedup_low,
            "speedup_high": m.speedup_high,
            "max_error": m.max_error,
            "contended": m.contended,
            "measured_at": m.measured_at,
            "uid": m.uid,
        }
        known = (m[name].is_not(None) for name in ("median_ns", "baseline_median_ns", "speedup", "speedup_low"))
        entry = select(*(m[name] for name in IDENTITY), *figures.values()).where(
            m.uid == bindparam("of_uid"), m.stage == _FINAL, m.status == _OK, *known, ~failed_later
        )
        upsert = insert(engine, best).from_select([*IDENTITY, *figures], entry)
        self._decide = upsert.on_conflict_do_update(
            index_elements=[best.c[name] for name in IDENTITY],
            set_={name: upsert.excluded[name] for name in figures},
            where=tuple_(upsert.excluded.measured_at, upsert.excluded.uid) > tuple_(best.c.measured_at, best.c.uid),
        )
        self._withdraw = delete(best).where(
            *(best.c[name] == bindparam(f"of_{name}") for name in IDENTITY),
            exists().where(
                m.uid == bindparam("of_uid"),
                m.status != _OK,
                tuple_(m.measured_at, m.uid) > tuple_(best.c.measured_at, best.c.uid),
            ),
        )
        self._choices: Select[tuple[object, ...]] = (
            select(best, configs.c.algorithm, configs.c.params, configs.c.placement)
            .join_from(best, configs, configs.c.key == best.c.config_key)
            .where(*(best.c[name] == bindparam(f"of_{name}") for name in IDENTITY[:3]))
        )

    def update(self, connection: Connection, finals: Iterable[Final]) -> None:
        """Takes FINAL measurements into account that are in the table already, in the same transaction."""
        found = list(finals)
        if not found:
            return
        one_at_a_time(connection)
        succeeded = [{"of_uid": final.uid} for final in found if final.ok]
        failed = [
            {"of_uid": final.uid, **{f"of_{name}": key for name, key in zip(IDENTITY, final.identity, strict=True)}}
            for final in found
            if not final.ok
        ]
        if succeeded:
            connection.execute(self._decide, succeeded)
        if failed:
            connection.execute(self._withdraw, failed)

    def choices(self, connection: Connection, *identity: str) -> list[Choice]:
        """The decided entries of (workload, hardware, environment), in no order."""
        values = {f"of_{name}": value for name, value in zip(IDENTITY, identity, strict=False)}
        rows = connection.execute(self._choices, values)
        return [choice_of(config_of(row.algorithm, row.params, row.placement), row) for row in rows]
