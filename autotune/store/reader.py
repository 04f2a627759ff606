"""Rows back to records, a page at a time, so that no transaction stays open while the caller works."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, Row, Table, bindparam, select, tuple_

from autotune.store import rows
from autotune.store.engine import translated
from autotune.store.schema import benchmark_specs, configs, environments, hardware, measurements, workloads
from autotune.types import BenchmarkSpec, Config, Environment, HardwareProfile, Stage, TuningRecord, Workload

PAGE = 2_000

_RECORDS = (
    select(
        measurements,
        workloads.c.op,
        workloads.c.dims,
        configs.c.algorithm,
        configs.c.params,
        configs.c.placement,
    )
    .join_from(measurements, workloads, workloads.c.key == measurements.c.workload_key)
    .join(configs, configs.c.key == measurements.c.config_key)
)
_AFTER = tuple_(measurements.c.measured_at, measurements.c.uid) > tuple_(
    bindparam("after_time", type_=measurements.c.measured_at.type), bindparam("after_uid")
)


class Reader:
    """Reads one database; equal nouns of its records are one object."""

    def __init__(self, engine: Engine, where: str) -> None:
        self._engine = engine
        self._where = where
        self._hardware: dict[str, HardwareProfile] = {}  # machines, environments and specs are few
        self._environments: dict[str, Environment] = {}
        self._specs: dict[str, BenchmarkSpec] = {}
        self._configs: rows.Rebuilt[Config] = rows.Rebuilt()
        self._workloads: rows.Rebuilt[Workload | None] = rows.Rebuilt()

    def records(self, wanted: Mapping[str, str]) -> Iterator[TuningRecord]:
        """Records whose columns have these values, oldest first; those of ops not installed are passed over."""
        m = measurements.c
        query = (
            _RECORDS.where(*(m[name] == value for name, value in wanted.items()))
            .order_by(m.measured_at, m.uid)
            .limit(PAGE)
        )
        page = query
        position: dict[str, Any] = {}
        while True:
            with translated(self._where), self._engine.connect() as connection:
                found = connection.execute(page, position).all()
                self._load(connection, found)
            for row in found:
                record = self._record(row)
                if record is not None:
                    yield record
            if len(found) < PAGE:
                return
            page, position = query.where(_AFTER), {"after_time": found[-1].measured_at, "after_uid": found[-1].uid}

    def workloads(self) -> tuple[Workload, ...]:
        found = (rows.workload_of(row.op, row.dims) for row in self._all(workloads, "op", "spec"))
        return tuple(workload for workload in found if workload is not None)

    def hardware(self) -> tuple[HardwareProfile, ...]:
        return tuple(rows.hardware_of(row.profile) for row in self._all(hardware, "name", "key"))

    def environments(self) -> tuple[Environment, ...]:
        return tuple(rows.environment_of(row.identity) for row in self._all(environments, "framework", "key"))

    def _all(self, table: Table, *order: str) -> list[Row[Any]]:
        with translated(self._where), self._engine.connect() as connection:
            return list(connection.execute(select(table).order_by(*(table.c[name] for name in order))))

    def _load(self, connection: Connection, found: Sequence[Row[Any]]) -> None:
        """Machines, environments and specs of these rows that are not known yet."""

        def texts(column: str, known: Mapping[str, object], table: Table) -> Iterator[tuple[str, str]]:
            missing = {row._mapping[column] for row in found} - known.keys()
            if missing:  # few: the rows of a page share them
                key, text = table.c.key, list(table.c)[-1]
                rows_found = connection.execute(select(key, text).where(key.in_(sorted(missing))))
                yield from ((row[0], row[1]) for row in rows_found)

        for key, text in texts("hardware_key", self._hardware, hardware):
            self._hardware[key] = rows.hardware_of(text)
        for key, text in texts("environment_key", self._environments, environments):
            self._environments[key] = rows.environment_of(text)
        for key, text in texts("spec_key", self._specs, benchmark_specs):
            self._specs[key] = rows.spec_of(text)

    def forget_hardware(self) -> None:
        """Profiles are read anew: one may have been replaced by one with measured figures."""
        self._hardware.clear()

    def _record(self, row: Row[Any]) -> TuningRecord | None:
        workload = self._workloads.get(row.workload_key, rows.workload_of, row.op, row.dims)
        if workload is None:
            return None
        return TuningRecord(
            workload=workload,
            config=self._configs.get(row.config_key, rows.config_of, row.algorithm, row.params, row.placement),
            hardware=self._hardware[row.hardware_key],
            environment=self._environments[row.environment_key],
            spec=self._specs[row.spec_key],
            measurement=rows.measurement_of(row),
            kernel_revision=row.kernel_revision,
            stage=Stage(row.stage),
            job=row.job,
            repetition=row.repetition,
            source=row.source,
            measured_at=row.measured_at,
        )
