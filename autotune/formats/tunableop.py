"""PyTorch's TunableOp results: the fastest solution of each product that it met, as CSV.

    Validator,<name>,<value>                       PT_VERSION, ROCM_VERSION, GCN_ARCH_NAME …
    <op>,<params>,<solution>[,<milliseconds>]      GemmTunableOp_BFloat16_TN,tn_m_n_k_ld_lda_ldb_ldc,…

The grammar of params is that of PyTorch's GemmCommon.h, in BLAS order (m is PyTorch's n):

    <t><t>_<m>_<n>_<k>[_B_<batch>]_ld_<lda>_<ldb>_<ldc>[_rw_<0|1>_bias_<type>]

    <op>,<params>,<solution>[,<milliseconds>]      such as GemmTunableOp_BFloat16_TN,tn_m_n_k_ld_lda_ldb_ldc,…
byte by byte. PyTorch takes a file only where all validators match.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from autotune.errors import InvalidInput
from autotune.formats import UNKNOWN_SPEC, BadLine, Format, Origin, environment, named_device
from autotune.formats.workloads import RecordedKernel
from autotune.types import Config, Measurement, Status, TuningRecord, utc_now

_NUMBER = r"(0|[1-9]\d{0,18})"
_PARAMS = re.compile(
    rf"([nt])([nt])_{_NUMBER}_{_NUMBER}_{_NUMBER}(?:_B_{_NUMBER})?_ld_{_NUMBER}_{_NUMBER}_{_NUMBER}"
    r"(?:_rw_([01])_bias_(\w+))?"
)
_OP = re.compile(r"[A-Za-z]\w*")


@dataclass(frozen=True, slots=True)
class Problem:
    """A product as BLAS has it: op(A)[m, k] · op(B)[k, n]. `batch` and `row_wise` are None where the key has none."""

    transposed: tuple[bool, bool]
    m: int
    n: int
    k: int
    leading: tuple[int, int, int]
    batch: int | None = None
    row_wise: bool | None = None
    bias: str = ""

    @classmethod
    def parse(cls, key: str) -> Problem:
        """Raises `InvalidInput` for what is no key."""
        found = _PARAMS.fullmatch(key)
        if not found:
            raise InvalidInput(f"{key[:80]!r} is no product like tn_64_64_64_ld_64_64_64")
        a, b, m, n, k, batch, lda, ldb, ldc, row_wise, bias = found.groups()
        return cls(
            (a == "t", b == "t"), int(m), int(n), int(k), (int(lda), int(ldb), int(ldc)),
            None if batch is None else int(batch), None if row_wise is None else row_wise == "1", bias or "",
        )  # fmt: skip

    def __str__(self) -> str:
        a, b = ("t" if flag else "n" for flag in self.transposed)
        batch = "" if self.batch is None else f"_B_{self.batch}"
        scaled = "" if self.row_wise is None else f"_rw_{self.row_wise:d}_bias_{self.bias}"
        lda, ldb, ldc = self.leading
        return f"{a}{b}_{self.m}_{self.n}_{self.k}{batch}_ld_{lda}_{ldb}_{ldc}{scaled}"


@dataclass(frozen=True, slots=True)
class Validator:
    """What a file is valid for."""

    number: int
    name: str
    value: str

    def __str__(self) -> str:
        return f"Validator,{self.name},{self.value}"


@dataclass(frozen=True, slots=True)
class Winner:
    """The fastest solution of a problem. `time`: milliseconds as the file spells them, "" where it has none."""

    number: int
    op: str
    problem: Problem
    solution: str
    time: str = ""

    def __str__(self) -> str:
        return ",".join((self.op, str(self.problem), self.solution, *([self.time] if self.time else [])))


def read(text: str) -> Iterator[Validator | Winner | BadLine]:
    """The lines in the order of the file."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        cells = line.split(",")
        try:
            if cells[0] == "Validator":
                if len(cells) < 3:
                    raise InvalidInput("a validator has a name and a value")
                yield Validator(number, cells[1], ",".join(cells[2:]))
                continue
            if len(cells) not in (3, 4) or not _OP.fullmatch(cells[0]) or not cells[2]:
                raise InvalidInput("it is not op,params,solution or op,params,solution,milliseconds")
            if len(cells) == 4:
                _milliseconds(cells[3])
            yield Winner(number, cells[0], Problem.parse(cells[1]), *cells[2:])
        except InvalidInput as error:
            yield BadLine(number, str(error))


def write(lines: Iterable[Validator | Winner]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise InvalidInput(f"the time {text[:30]!r} is no positive number")
    return value


class TunableOp(Format):
    name = "tunableop"
    what = "PyTorch's TunableOp results, a winner per product"
    workloads = (RecordedKernel,)

    def read(self, text: str, origin: Origin) -> Iterator[TuningRecord | BadLine]:
        lines = list(read(text))
        if not any(isinstance(line, (Validator, Winner)) for line in lines):
            raise InvalidInput(f"{origin.file} is no TunableOp file: it has no line that is one of its kind")
        facts = {line.name: line.value for line in lines if isinstance(line, Validator)}
        profile = named_device(origin.device or facts.get("GCN_ARCH_NAME", ""))
        version = facts.get("PT_VERSION", "")
        software, now = environment(f"torch {version}".strip() + " TunableOp"), utc_now()
        for line in lines:
            if isinstance(line, BadLine):
                yield line
            elif isinstance(line, Winner) and not line.time:
                yield BadLine(line.number, "it has no time: nothing is known but that it won")
            elif isinstance(line, Winner):
                measured = Measurement(
                    Status.OK, times_ns=(max(1, round(_milliseconds(line.time) * 1e6)),), paired=False
                )
                yield TuningRecord(
                    RecordedKernel(line.op, str(line.problem)),
                    Config("tunableop", {"solution": line.solution}, "cuda:0"),
                    profile,
                    software,
                    UNKNOWN_SPEC,
                    measured,
                    source=self.name,
                    measured_at=now,
                )
