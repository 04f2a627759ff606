"""Orders, batches and ends of jobs as JSON between the driver and its nodes. No pickle of ours travels or is kept."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from typing import Any

from autotune import registry
from autotune.job import Batch, JobEnd, JobOrder, Limits
from autotune.measure.wire import config_from_json, config_to_json, measurement_from_json, measurement_to_json
from autotune.types import BenchmarkSpec, Environment, HardwareProfile, Stage, TuningRecord, Workload


def order_to_json(order: JobOrder) -> str:
    return json.dumps(
        {
            "workload": _workload_to_json(order.workload),
            "spec": order.spec.to_json(),
            "limits": asdict(order.limits),
            "seconds": order.seconds,
            "again": order.again,
            "known": [_record_to_json(record) for record in order.known],
            "specs": {record.spec.key: record.spec.to_json() for record in order.known},
            "neighbours": [config_to_json(config) for config in order.neighbours],
            "finished": order.finished,
        }
    )


def order_from_json(text: str, hardware: HardwareProfile, environment: Environment) -> JobOrder:
    """The order as the node of that hardware and environment sees it: known records are of its own kind."""
    data = json.loads(text)
    workload = _workload_from_json(data["workload"])
    specs = {key: BenchmarkSpec.from_json(spec) for key, spec in data["specs"].items()}
    return JobOrder(
        workload,
        BenchmarkSpec.from_json(data["spec"]),
        Limits(**data["limits"]),
        data["seconds"],
        data["again"],
        tuple(_record_from_json(record, workload, hardware, environment, specs) for record in data["known"]),
        tuple(config_from_json(config) for config in data["neighbours"]),
        tuple((str(key), int(trials)) for key, trials in data["finished"]),
    )


def batch_to_json(batch: Batch) -> dict[str, Any]:
    return {
        "records": [_record_to_json(record) for record in batch.records],
        "trials": batch.trials,
        "best": batch.best,
    }


def batch_from_json(
    data: dict[str, Any], order: JobOrder, hardware: HardwareProfile, environment: Environment
) -> Batch:
    specs = {order.spec.key: order.spec}
    records = [_record_from_json(r, order.workload, hardware, environment, specs) for r in data["records"]]
    return Batch(tuple(records), data["trials"], data["best"])


def end_to_json(end: JobEnd) -> dict[str, Any]:
    return asdict(end)


def end_from_json(data: dict[str, Any]) -> JobEnd:
    return JobEnd(**data)


def _record_to_json(record: TuningRecord) -> dict[str, Any]:
    """What changes from record to record of one job; workload, hardware and environment are the job's."""
    return {
        "config": config_to_json(record.config),
        "spec": record.spec.key,
        "measurement": measurement_to_json(record.measurement),
        "kernel_revision": record.kernel_revision,
        "stage": record.stage.value,
        "job": record.job,
        "repetition": record.repetition,
        "source": record.source,
        "measured_at": record.measured_at.isoformat(),
    }


def _record_from_json(
    data: dict[str, Any],
    workload: Workload,
    hardware: HardwareProfile,
    environment: Environment,
    specs: dict[str, BenchmarkSpec],
) -> TuningRecord:
    return TuningRecord(
        workload,
        config_from_json(data["config"]),
        hardware,
        environment,
        specs[data["spec"]],
        measurement_from_json(data["measurement"]),
        data["kernel_revision"],
        Stage(data["stage"]),
        data["job"],
        data["repetition"],
        data["source"],
        datetime.fromisoformat(data["measured_at"]),
    )


def _workload_to_json(workload: Workload) -> dict[str, Any]:
    return {"op": workload.op, "dims": workload.dims()}


def _workload_from_json(data: dict[str, Any]) -> Workload:
    return registry.op(data["op"]).workload.from_dims(data["dims"])
