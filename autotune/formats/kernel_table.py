"""A table of one kernel on one GPU as records: CSV with a row per config.

Columns: the parameters; `time_ms`; and where they are known `time_std_ms`, `time_min_ms`, `n_rep`, `compile_ms`,
`bench_ms` and `status` (ok, compile_fail, runtime_fail, fail, no_time). Kernel and GPU are those of the path,
`<kernel>/<GPU>.csv`, or named.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping

from autotune.errors import InvalidInput
from autotune.formats import UNKNOWN_SPEC, BadLine, Format, Origin, environment, named_device, word
from autotune.formats.workloads import RecordedKernel
from autotune.types import Config, Measurement, ParamValue, Status, TuningRecord, utc_now

RESULTS = ("time_ms", "time_std_ms", "time_min_ms", "n_rep", "compile_ms", "bench_ms", "status")
FAILURES = {
    "compile_fail": Status.BUILD_FAILED,
    "runtime_fail": Status.RUN_FAILED,
    "fail": Status.RUN_FAILED,
    "no_time": Status.RUN_FAILED,
}


class KernelTable(Format):
    name = "kernel-table"
    what = "a CSV table of one kernel on one GPU, a row per config with its time_ms"
    workloads = (RecordedKernel,)

    def read(self, text: str, origin: Origin) -> Iterator[TuningRecord | BadLine]:
        rows = csv.reader(io.StringIO(text, newline=""))
        heads = next(rows, [])
        if "time_ms" not in heads or len(set(heads)) < len(heads):
            raise InvalidInput(f"{origin.file} is no table of a kernel: its first line does not name time_ms once")
        stem = origin.file.partition(".")[0]
        workload = RecordedKernel(word(origin.kernel or origin.folder or "kernel"), word(origin.problem))
        return self._records(rows, heads, workload, origin.device or stem)

    def _records(
        self, rows: Iterator[list[str]], heads: list[str], workload: RecordedKernel, device: str
    ) -> Iterator[TuningRecord | BadLine]:
        profile, software, now = named_device(device), environment("Kernel Tuner"), utc_now()
        number = 1
        while True:
            try:
                cells = next(rows, None)
            except csv.Error as error:
                number += 1
                yield BadLine(number, str(error))
                continue
            if cells is None:
                return
            number += 1
            if not cells:
                continue
            try:
                if len(cells) != len(heads):
                    raise InvalidInput(f"it has {len(cells)} columns, the first line {len(heads)}")
                row = dict(zip(heads, cells, strict=True))
                params = {name: number_or_text(value) for name, value in row.items() if name not in RESULTS}
                config = Config("kernel_tuner", params, "cuda:0")
                yield TuningRecord(
                    workload, config, profile, software, UNKNOWN_SPEC, _measured(row), source=self.name, measured_at=now
                )
            except InvalidInput as error:
                yield BadLine(number, str(error))


def _measured(row: Mapping[str, str]) -> Measurement:
    status = row.get("status") or "ok"
    build_ms = _float(row.get("compile_ms") or "0", "compile_ms")
    build_ns = round(build_ms * 1e6) if math.isfinite(build_ms) and build_ms > 0 else 0
    if status != "ok":
        return Measurement(FAILURES.get(status, Status.RUN_FAILED), f"recorded as {status[:80]}", build_ns=build_ns)
    if not row["time_ms"]:
        raise InvalidInput("it has no time, and is not marked as failed")
    time_ns = _float(row["time_ms"], "time_ms") * 1e6
    whole = round(time_ns) if math.isfinite(time_ns) and time_ns >= 1 else time_ns
    return Measurement(Status.OK, times_ns=(whole,), paired=False, build_ns=build_ns)


def _float(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidInput(f"{name}={text[:30]!r} is no number") from None


def number_or_text(text: str) -> ParamValue:
    """A cell as a parameter's value: a whole number, a finite number, else the text."""
    try:
        value = float(text)
    except ValueError:
        return text
    if not math.isfinite(value):
        return text
    return int(value) if value.is_integer() else value
