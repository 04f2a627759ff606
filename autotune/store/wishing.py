"""The `wishes` table: what was looked up and never measured, leased to sweeps that grant it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from sqlalchemy import ColumnElement, Connection, Engine, and_, case, or_, select, update

from autotune import registry
from autotune.errors import InvalidInput, Unavailable
from autotune.store import Wish
from autotune.store.engine import insert
from autotune.store.schema import wishes
from autotune.types import utc_now

t = wishes.c


class Wishing:
    """The statements of one database."""

    def __init__(self, engine: Engine) -> None:
        statement = insert(engine, wishes)
        new = statement.excluded
        self._add = statement.on_conflict_do_update(
            index_elements=[t.workload_key, t.hardware_key],
            set_={
                "asked": t.asked + new.asked,
                "weight": case((new.weight > t.weight, new.weight), else_=t.weight),
                "last_asked_at": new.last_asked_at,
                "granted_at": None,
            },
        )

    def add(self, connection: Connection, found: Iterable[Wish]) -> None:
        now = utc_now()
        rows = [
            {
                "workload_key": wish.workload.key,
                "hardware_key": wish.hardware_key,
                "spec": wish.workload.spec,
                "asked": wish.asked,
                "weight": wish.weight,
                "first_asked_at": now,
                "last_asked_at": now,
                "taken_by": "",
                "taken_until": None,
                "granted_at": None,
            }
            for wish in sorted(found, key=lambda wish: (wish.workload.key, wish.hardware_key))
            if not wish.workload.is_empty
        ]
        if rows:
            connection.execute(self._add, rows)

    def open(self, connection: Connection, hardware_key: str | None) -> tuple[Wish, ...]:
        query = select(t.spec, t.hardware_key, t.asked, t.weight).where(_free())
        if hardware_key is not None:
            query = query.where(t.hardware_key.in_(("", hardware_key)))
        found = []
        for row in connection.execute(query.order_by(t.asked.desc(), t.workload_key, t.hardware_key)):
            try:
                workload = registry.parse_workload(row.spec)
            except (InvalidInput, Unavailable):  # an op that is not installed here
                continue
            found.append(Wish(workload, row.hardware_key, row.asked, row.weight))
        return tuple(found)

    def take(self, connection: Connection, wish: Wish, by: str, seconds: float) -> bool:
        until = utc_now() + timedelta(seconds=seconds)
        taken = update(wishes).where(_is(wish), _free()).values(taken_by=by, taken_until=until)
        return connection.execute(taken).rowcount == 1

    def grant(self, connection: Connection, wish: Wish) -> None:
        granted = update(wishes).where(_is(wish)).values(granted_at=utc_now(), taken_by="", taken_until=None)
        connection.execute(granted)


def _is(wish: Wish) -> ColumnElement[bool]:
    return and_(t.workload_key == wish.workload.key, t.hardware_key == wish.hardware_key)


def _free() -> ColumnElement[bool]:
    return and_(t.granted_at.is_(None), or_(t.taken_until.is_(None), t.taken_until < utc_now()))
