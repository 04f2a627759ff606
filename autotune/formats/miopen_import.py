"""A find-db as records: each solution a measurement without a default beside it, on the GPU of the file's name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal

from autotune.errors import InvalidInput
from autotune.formats import UNKNOWN_SPEC, BadLine, Format, Origin, environment, miopen, miopen_key
from autotune.formats.workloads import MiopenConv
from autotune.types import Config, HardwareProfile, Measurement, Status, TuningRecord, utc_now

DTYPES = {"FP32": "f32", "FP16": "f16", "BF16": "bf16", "INT8": "i8"}
LAYOUTS = {"NCHW": "nchw", "NHWC-NHWC-NHWC": "channels_last"}

_ARCH = r"gfx1[0-9][0-9a-f]{2}|gfx[6-9][0-9a-f]{2}"
_FILE = re.compile(rf"(?P<arch>{_ARCH})(?:_(?P<decimal>\d+)|(?P<hex>[0-9a-f]+))\.(?:HIP|OpenCL)\b.*")
_DEVICE = re.compile(rf"(?P<arch>{_ARCH}):(?P<decimal>\d+)")


class FindDb(Format):
    name = "miopen-find-db"
    what = "MIOpen's measured solvers per convolution: gfx942130.HIP.fdb.txt, or a user's .ufdb.txt"
    workloads = (MiopenConv,)

    def read(self, text: str, origin: Origin) -> Iterator[TuningRecord | BadLine]:
        profile, software, now = hardware(origin), environment("MIOpen"), utc_now()
        configs: dict[str, Config] = {}
        for found in miopen.read(text):
            if isinstance(found, BadLine):
                yield found
                continue
            try:
                workload = workload_of(miopen_key.parse(found.key))
            except InvalidInput as error:
                yield BadLine(found.number, str(error))
                continue
            for one in found.solutions:
                config = configs.setdefault(one.solver, Config("miopen", {"solver": one.solver}, "cuda:0"))
                measured = Measurement(
                    Status.OK, times_ns=(nanoseconds(one.time),), paired=False, workspace_bytes=one.workspace_bytes
                )
                yield TuningRecord(
                    workload, config, profile, software, UNKNOWN_SPEC, measured, source=self.name, measured_at=now
                )


def hardware(origin: Origin) -> HardwareProfile:
    """The GPU of a file's name, or of a device written like gfx942:304. Raises `InvalidInput` where neither tells."""
    found = _DEVICE.fullmatch(origin.device) if origin.device else _FILE.fullmatch(origin.file)
    units = int(found["decimal"] or "0") if found is not None and found["decimal"] else 0
    if found is not None and not units and not origin.device:
        units = int(found["hex"] or "0", 16)
    if found is None or not units:
        told = f"the device {origin.device!r}" if origin.device else f"the name {origin.file!r}"
        raise InvalidInput(f"{told} does not tell the GPU: name it by architecture and compute units, as in gfx942:304")
    name = f"{found['arch']} with {units} compute units"
    return HardwareProfile("gpu", name, "AMD", found["arch"], "", physical_cores=units, logical_cores=units)


def workload_of(problem: miopen_key.Problem) -> MiopenConv:
    """The workload of a problem. Raises `InvalidInput` for 3-D problems, and dtypes and layouts without a name here."""
    if problem.axes != 2:
        raise InvalidInput(f"{problem.key[:100]}: convolutions of {problem.axes} dimensions are not taken")
    for what, value, known in (("dtype", problem.dtype, DTYPES), ("layout", problem.layout, LAYOUTS)):
        if value not in known:
            raise InvalidInput(f"{problem.key[:100]}: the {what} {value} has no counterpart here")
    if problem.casts:
        raise InvalidInput(f"{problem.key[:100]}: casts of operands have no counterpart here")
    (h, w), (r, s), (out_h, out_w) = problem.image, problem.filter, problem.result
    return MiopenConv(
        problem.n, problem.c, h, w, problem.k, r, s, out_h, out_w, miopen_key.DIRECTIONS[problem.direction],
        problem.stride, problem.pad, problem.dilation, problem.groups, DTYPES[problem.dtype], LAYOUTS[problem.layout],  # type: ignore[arg-type]  # pairs
        bool(problem.bias),
    )  # fmt: skip


def nanoseconds(text: str) -> float:
    """Milliseconds in decimal digits as nanoseconds, exactly: a whole number where it is one."""
    value = Decimal(text).scaleb(6)
    return int(value) if value == value.to_integral_value() else float(value)
