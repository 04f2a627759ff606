"""Tasks, configs and measurements as JSON lines between the sweep and its worker process. No pickle."""

from __future__ import annotations

from typing import Any

from autotune import registry
from autotune.measure import Task
from autotune.types import BenchmarkSpec, Config, HardwareProfile, Measurement, Status


def task_to_json(task: Task) -> dict[str, Any]:
    return {
        "op": task.workload.op,
        "dims": task.workload.dims(),
        "hardware": task.hardware.to_json(),
        "spec": task.spec.to_json(),
        "seed": task.seed,
        "device": task.device,
    }


def task_from_json(data: dict[str, Any]) -> Task:
    return Task(
        registry.op(data["op"]).workload.from_dims(data["dims"]),
        HardwareProfile.from_json(data["hardware"]),
        BenchmarkSpec.from_json(data["spec"]),
        data["seed"],
        data["device"],
    )


def config_to_json(config: Config) -> dict[str, Any]:
    return {"algorithm": config.algorithm, "params": dict(config.params), "placement": config.placement}


def config_from_json(data: dict[str, Any]) -> Config:
    return Config(data["algorithm"], data["params"], data["placement"])


def measurement_to_json(measurement: Measurement) -> dict[str, Any]:
    return {
        "status": measurement.status.value,
        "message": measurement.message,
        "times_ns": measurement.times_ns,
        "baseline_ns": measurement.baseline_ns,
        "max_error": measurement.max_error,
        "prepare_ns": measurement.prepare_ns,
        "build_ns": measurement.build_ns,
        "workspace_bytes": measurement.workspace_bytes,
        "contended": measurement.contended,
    }


def measurement_from_json(data: dict[str, Any]) -> Measurement:
    return Measurement(
        **{
            **data,
            "status": Status(data["status"]),
            "times_ns": tuple(data["times_ns"]),
            "baseline_ns": tuple(data["baseline_ns"]),
        }
    )
