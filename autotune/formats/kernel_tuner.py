"""Kernel Tuner's cache files and T4 results as records: every config of one kernel on one problem and GPU.

A cache is JSON: `device_name`, `kernel_name`, `problem_size`, `tune_params_keys`, and under `cache` an entry per config
with its parameters, `time` and `times` (ms), or in the place of `time` the name of a failure. Kernel Tuner appends to
it while it runs, so the braces at the end may be missing. T4 is the exchange format of the autotuning community:
`results` with `configuration`, `measurements`, `invalidity` and `times`; the device is not in it.

Entries are counted from 1.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeAlias

from autotune.errors import InvalidInput
from autotune.formats import UNKNOWN_SPEC, BadLine, Format, Origin, environment, named_device, word
from autotune.formats.workloads import RecordedKernel
from autotune.types import Config, Measurement, Status, TuningRecord, utc_now

NEVER_MS = 1e15
"""Older versions wrote 1e20 or more where a config failed."""

FAILURES = {
    "compile": Status.BUILD_FAILED,
    "compilationfailedconfig": Status.BUILD_FAILED,
    "runtime": Status.RUN_FAILED,
    "runtimefailedconfig": Status.RUN_FAILED,
    "timeout": Status.TIMEOUT,
    "correctness": Status.WRONG_RESULT,
    "constraints": Status.NOT_APPLICABLE,
    "invalidconfig": Status.NOT_APPLICABLE,
}
UNITS_NS = {"": 1e6, "ms": 1e6, "milliseconds": 1e6, "s": 1e9, "seconds": 1e9, "us": 1e3, "ns": 1.0}


Read: TypeAlias = Callable[[Any], tuple[Mapping[str, Any], Measurement]]
"""From an entry to parameters and what came of them; raises `InvalidInput` with what is wrong."""


class _Tables(Format):
    """What the two have in common: building records of one kernel."""

    workloads = (RecordedKernel,)

    def _records(
        self, entries: Iterator[tuple[int, Any]], read: Read, workload: RecordedKernel, device: str
    ) -> Iterator[TuningRecord | BadLine]:
        profile, software, now = named_device(device), environment("Kernel Tuner"), utc_now()
        for number, entry in entries:
            if isinstance(entry, BadLine):
                yield entry
                continue
            try:
                params, measured = read(entry)
                config = Config("kernel_tuner", params, "cuda:0")
                when = _when(entry.get("timestamp")) or now
                yield TuningRecord(
                    workload, config, profile, software, UNKNOWN_SPEC, measured, source=self.name, measured_at=when
                )
            except InvalidInput as error:
                yield BadLine(number, str(error))


class Cache(_Tables):
    name = "kernel-tuner-cache"
    what = "a cache file of Kernel Tuner, of a finished or an unfinished run"

    def read(self, text: str, origin: Origin) -> Iterator[TuningRecord | BadLine]:
        head, entries = _opened(text)
        keys = [str(name) for name in head.get("tune_params_keys") or ()]
        if not keys:
            raise InvalidInput(f"{origin.file} is no cache of Kernel Tuner: it names no tune_params_keys")
        device = origin.device or str(head.get("device_name") or "")
        workload = RecordedKernel(
            word(origin.kernel or head.get("kernel_name") or "kernel"), word(origin.problem or head.get("problem_size"))
        )
        return self._records(entries, partial(_cached, keys), workload, device)


class T4(_Tables):
    name = "kernel-tuner-t4"
    what = "T4 results, as Kernel Tuner writes them; the device must be named"

    def read(self, text: str, origin: Origin) -> Iterator[TuningRecord | BadLine]:
        data = _json(text)
        results = data.get("results") if isinstance(data, dict) else None
        if not isinstance(results, list):
            raise InvalidInput(f"{origin.file} holds no T4 results")
        if not origin.device:
            raise InvalidInput("T4 results do not tell their GPU: name it with --device")
        name = origin.kernel or origin.file.partition(".")[0] or "kernel"
        workload = RecordedKernel(word(name), word(origin.problem))
        return self._records(iter(enumerate(results, 1)), _result, workload, origin.device)


def _cached(keys: Sequence[str], entry: Any) -> tuple[Mapping[str, Any], Measurement]:
    if not isinstance(entry, dict):
        raise InvalidInput("it is no object")
    missing = [name for name in keys if name not in entry]
    if missing:
        raise InvalidInput(f"it has no value of {missing[0]}")
    params = {name: entry[name] for name in keys}
    if "time" not in entry:
        raise InvalidInput("it has no time")
    build_ns = _build_ns(entry.get("compile_time"))
    time = entry["time"]
    if isinstance(time, str) or time is None:
        return params, _failed(str(time), build_ns)
    times = entry.get("times") or [time]
    return params, _measured(times if isinstance(times, list) else [time], 1e6, build_ns)


def _result(entry: Any) -> tuple[Mapping[str, Any], Measurement]:
    if not isinstance(entry, dict) or not isinstance(entry.get("configuration"), dict):
        raise InvalidInput("it has no configuration")
    spent = entry.get("times")
    spent = spent if isinstance(spent, dict) else {}
    build_ns = _build_ns(spent.get("compilation_time", spent.get("compilation")))
    invalid = str(entry.get("invalidity") or "correct")
    if invalid != "correct":
        return entry["configuration"], _failed(invalid, build_ns)
    for measured in entry.get("measurements") or ():
        if isinstance(measured, dict) and measured.get("name") == "time":
            unit = str(measured.get("unit") or "").lower()
            if unit not in UNITS_NS:
                raise InvalidInput(f"the unit {unit[:20]!r} of its time is not known")
            value = measured.get("value")
            if isinstance(value, str):
                return entry["configuration"], _failed(value, build_ns)
            return entry["configuration"], _measured([value], UNITS_NS[unit], build_ns)
    raise InvalidInput("it has no time")


def _opened(text: str) -> tuple[Mapping[str, Any], Iterator[tuple[int, Any]]]:
    """What stands before the entries, and the entries."""
    bare = text.rstrip().rstrip(",")
    for ending in ("", "}", "}}"):
        try:
            data = json.loads(bare + ending)
        except (ValueError, RecursionError):
            continue
        if not isinstance(data, dict) or not isinstance(data.get("cache"), dict):
            raise InvalidInput("it is no cache of Kernel Tuner: it has no cache")
        return data, enumerate(data["cache"].values(), 1)
    head, found, rest = text.partition('"cache":')
    if not found or "{" not in rest:
        raise InvalidInput("it is no cache of Kernel Tuner: it is not JSON, and has no cache")
    return _json(head.rstrip().rstrip(",") + "}"), _line_by_line(rest.partition("{")[2])


def _line_by_line(text: str) -> Iterator[tuple[int, Any]]:
    """Entries of a damaged file, one a line as Kernel Tuner writes them."""
    number = 0
    for line in text.splitlines():
        bare = line.strip().rstrip(",")
        if not bare.strip("}"):
            continue
        number += 1
        for ending in ("}", "", "-"):  # the braces that close the file may stand on the last entry's line
            try:
                (entry,) = json.loads("{" + (bare[:-1] if ending == "-" else bare + ending)).values()
            except (ValueError, RecursionError):
                continue
            yield number, entry
            break
        else:
            yield number, BadLine(number, f"{bare[:60]!r} is not a JSON entry")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"it is not JSON: {str(error)[:80]}") from None


def _measured(times: Sequence[Any], unit_ns: float, build_ns: int) -> Measurement:
    if not all(isinstance(time, (int, float)) and not isinstance(time, bool) for time in times):
        raise InvalidInput("its time is no number")
    if any(time >= NEVER_MS for time in times):
        return _failed("a time that stands for a failure", build_ns)
    return Measurement(
        Status.OK, times_ns=tuple(_ns(time * unit_ns) for time in times), paired=False, build_ns=build_ns
    )


def _failed(word: str, build_ns: int) -> Measurement:
    return Measurement(FAILURES.get(word.lower(), Status.RUN_FAILED), f"recorded as {word[:80]}", build_ns=build_ns)


def _ns(value: float) -> float:
    return round(value) if math.isfinite(value) and value >= 1 else value


def _build_ns(value: Any) -> int:
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    return round(value * 1e6) if ok else 0


def _when(text: Any) -> datetime | None:
    try:
        when = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)
