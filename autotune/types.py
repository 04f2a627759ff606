"""The nouns. Frozen, validated at construction, standard library only.

An invalid value cannot be constructed: constructors raise `InvalidInput` with one sentence. Keys are the
first 128 bits of sha256 over one canonical JSON, so equal things have equal keys on every machine.

Here are those that a lookup needs. The nouns of measuring (`Status`, `Stage`, `BenchmarkSpec`, `Measurement`,
`TuningRecord`) are in records.py and can be imported from either. A fresh process is to answer within
milliseconds, so these two modules, and all that a lookup imports, leave out `typing`, `hashlib` and other
imports that cost more than they do.
"""

from __future__ import annotations

import math
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType

from autotune.canonical import canonical_json, content_key
from autotune.errors import InvalidInput
from autotune.noun import Noun, field, fields, noun
from autotune.workload import INT64_MAX, Workload, as_int

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeAlias

    from autotune.records import BenchmarkSpec, Measurement, Stage, Status, TuningRecord, utc_now

    ParamValue: TypeAlias = "bool | int | float | str | tuple[ParamValue, ...]"
else:
    ParamValue = object

__all__ = [
    "INT64_MAX",
    "SIMULATED",
    "Answer",
    "BenchmarkSpec",
    "Cache",
    "Choice",
    "Config",
    "Environment",
    "HardwareProfile",
    "Measurement",
    "Origin",
    "ParamValue",
    "Placed",
    "Stage",
    "Status",
    "StrideClass",
    "TuningRecord",
    "Workload",
    "utc_now",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in ("BenchmarkSpec", "Measurement", "Stage", "Status", "TuningRecord", "utc_now"):
        from autotune import records

        return getattr(records, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class Origin(StrEnum):
    """Where an answer comes from: measured here, predicted by the cost model, or the framework's default."""

    EXACT = "EXACT"
    PREDICTED = "PREDICTED"
    DEFAULT = "DEFAULT"


class StrideClass(StrEnum):
    """How a matrix lies in memory, as far as it changes what is fast."""

    CONTIGUOUS = "contiguous"
    TRANSPOSED = "transposed"
    STRIDED = "strided"
    EXPANDED = "expanded"


def _freeze(name: str, value: Any) -> ParamValue:
    if isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidInput(f"parameter {name} must be finite, not {value}")
        return value
    if isinstance(value, (tuple, list)):  # JSON has no tuples: arrays read back are tuples again
        return tuple(_freeze(name, item) for item in value)
    raise InvalidInput(f"parameter {name} must be a bool, int, float, str or tuple of them, not {value!r}")


@noun
class Config(Noun):
    """One way to compute: algorithm, its parameters by name and value, and the kind of device that runs it.

    `placement` is "cpu", "cuda" (which is what torch calls AMD's GPUs, too), never the number of a device: which
    silicon it was says the hardware profile, and what was measured on one of two alike GPUs holds for the other.
    """

    algorithm: str
    params: Mapping[str, ParamValue] = field(default_factory=dict)
    placement: str = "cpu"

    def __post_init__(self) -> None:
        if not self.algorithm or not self.placement:
            raise InvalidInput("a config needs an algorithm and a placement")
        frozen = {str(name): _freeze(name, self.params[name]) for name in sorted(self.params)}
        object.__setattr__(self, "params", MappingProxyType(frozen))

    def on(self, placement: str) -> Config:
        """The same config on that kind of device."""
        return self if placement == self.placement else Config(self.algorithm, self.params, placement)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Config) and self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def params_json(self) -> str:
        return canonical_json(dict(self.params))

    @cached_property
    def key(self) -> str:
        return content_key({"algorithm": self.algorithm, "params": dict(self.params), "placement": self.placement})

    def __str__(self) -> str:
        words = " ".join(f"{name}={value}" for name, value in self.params.items())
        where = "" if self.placement == "cpu" else f" on {self.placement}"
        return f"{self.algorithm}{' ' + words if words else ''}{where}"


@noun
class Cache(Noun):
    """One cache level as one core sees it: size in bytes, and how many logical CPUs share it."""

    level: int
    size_bytes: int
    shared_by: int = 1


SIMULATED = "simulated"
"""The vendor of devices that are none: part of their profiles' keys, so that no real device has theirs."""


@noun
class HardwareProfile(Noun):
    """What the silicon is and what we may use of it.

    The key is made of silicon and limits only. `name`, the exact memory size and the measured figures
    describe; they are features, not identity. Memory counts by its power of two, so that a kernel that
    reserves a little more does not make another machine of it.
    """

    kind: str  # "cpu" or "gpu"
    name: str
    vendor: str
    arch: str  # x86_64, aarch64, sm_90, gfx942 …
    model: str  # "family 25 model 17 stepping 1", "implementer 0x41 part 0xd0c": silicon, not marketing
    isa: tuple[str, ...] = ()  # ISA flags that kernels use, sorted
    physical_cores: int = 1  # or streaming multiprocessors / compute units
    logical_cores: int = 1
    performance_cores: int = 0  # of a hybrid; 0 and 0 where all cores are alike
    efficiency_cores: int = 0
    caches: tuple[Cache, ...] = ()  # data and unified caches
    numa_nodes: int = 1
    memory_bytes: int = 0
    allowed_cpus: int = 1  # the least of affinity, cgroup quota, Slurm and the machine
    slice: str = ""  # a MIG profile such as "1g.18gb"
    peak_gflops: Mapping[str, float] = field(default_factory=dict)  # measured, per dtype, all allowed CPUs
    bandwidth_gbs: float = 0.0  # measured, GB/s

    def __post_init__(self) -> None:
        object.__setattr__(self, "peak_gflops", MappingProxyType(dict(sorted(self.peak_gflops.items()))))
        object.__setattr__(self, "isa", tuple(sorted(set(self.isa))))
        if self.kind not in ("cpu", "gpu"):
            raise InvalidInput(f"hardware kind must be cpu or gpu, not {self.kind!r}")
        for name in ("physical_cores", "logical_cores", "allowed_cpus"):
            as_int(name, getattr(self, name), 1)

    def __hash__(self) -> int:
        return hash(self.key)

    def identity(self) -> dict[str, Any]:
        """What the key is made of."""
        return {
            "kind": self.kind,
            "vendor": self.vendor,
            "arch": self.arch,
            "model": self.model,
            "isa": self.isa,
            "cores": (self.physical_cores, self.logical_cores, self.performance_cores, self.efficiency_cores),
            "caches": [(c.level, c.size_bytes, c.shared_by) for c in self.caches],
            "numa_nodes": self.numa_nodes,
            "memory_log2": max(self.memory_bytes - 1, 0).bit_length(),
            "allowed_cpus": self.allowed_cpus,
            "slice": self.slice,
        }

    @cached_property
    def key(self) -> str:
        return content_key(self.identity())

    @property
    def placement(self) -> str:
        """What torch calls devices of this kind, and `Config.placement` of what runs on them."""
        if self.kind == "cpu":
            return "cpu"
        return "sim" if self.vendor == SIMULATED else "cuda"

    def cache_bytes(self, level: int) -> int:
        """Size of the data or unified cache of that level, 0 where there is none."""
        return max((c.size_bytes for c in self.caches if c.level == level), default=0)

    def to_json(self) -> dict[str, Any]:
        out = {item.name: getattr(self, item.name) for item in fields(type(self))}
        out["isa"] = list(self.isa)
        out["caches"] = [{"level": c.level, "size_bytes": c.size_bytes, "shared_by": c.shared_by} for c in self.caches]
        out["peak_gflops"] = dict(self.peak_gflops)
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> HardwareProfile:
        known = {item.name for item in fields(cls)}
        values = {name: value for name, value in data.items() if name in known}
        values["caches"] = tuple(Cache(**c) for c in values.get("caches", ()))
        values["isa"] = tuple(values.get("isa", ()))
        return cls(**values)


@noun
class Environment(Noun):
    """The software identity. Every field is in the key; kernel revisions are per algorithm and stand in the record."""

    framework: str  # "torch 2.13.0+cpu"
    libraries: tuple[str, ...] = ()  # other libraries that compute: "numpy 2.4.6", "numba 0.68.1"
    compiler: str = ""  # "g++ 12.2.0", "" where there is none
    driver: str = ""  # GPU driver and runtime
    threads: str = "gomp"  # thread runtime
    num_threads: str = ""  # OMP_NUM_THREADS when set: it changes the framework's default
    wait_policy: str = ""  # OMP_WAIT_POLICY and its relatives when set
    allocator: str = ""  # preloaded allocator and malloc tunables when set
    system: str = "linux"

    def to_json(self) -> dict[str, Any]:
        out = {item.name: getattr(self, item.name) for item in fields(type(self))}
        out["libraries"] = list(self.libraries)
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Environment:
        known = {item.name for item in fields(cls)}
        values = {name: value for name, value in data.items() if name in known}
        values["libraries"] = tuple(values.get("libraries", ()))
        return cls(**values)

    @cached_property
    def key(self) -> str:
        return content_key({name: value for name, value in self.to_json().items() if value})


@noun
class Choice(Noun):
    """One decided config of a (workload, hardware, environment): what lookup chooses among."""

    config: Config
    kernel_revision: str
    expected_ns: float
    baseline_ns: float
    speedup: float
    interval: tuple[float, float]
    max_error: float
    contended: bool = False


@noun
class Placed(Noun):
    """What is best on one device, and what using it costs for the inputs that were asked about.

    `expected_ns` is None where nothing is known of the device's time. `transfer_ns`: moving the inputs there and the
    result back to where the inputs are; 0 on the device that has them. `measured`: whether the transfer's figures
    are (`autotune hw --probe`), or assumed.
    """

    device: str  # "cpu", "cuda:0"
    config: Config
    origin: Origin
    reason: str
    expected_ns: float | None = None
    speedup: float | None = None  # over the default on that device
    transfer_ns: float = 0.0
    measured: bool = True

    @property
    def total_ns(self) -> float | None:
        return None if self.expected_ns is None else self.expected_ns + self.transfer_ns


@noun
class Answer(Noun):
    """What lookup returns: a config, where it comes from, what to expect of it, and why.

    `build` turns it into a callable. `expected_ns`, `speedup` and `interval` are None for a DEFAULT
    that was never measured.
    """

    workload: Workload
    config: Config
    origin: Origin
    reason: str
    expected_ns: float | None = None
    speedup: float | None = None
    interval: tuple[float, float] | None = None
    max_error: float | None = None
    source: str = ""  # which database
    alternatives: tuple[Choice, ...] = ()  # next best, should the config not build here
    p_faster: float | None = None  # of a PREDICTED answer: the probability that it is faster than the default
    nearest: str = ""  # of a PREDICTED answer: spec of the most similar workload the model was trained on
    factors: tuple[tuple[str, float], ...] = ()  # when asked to explain: features, shares of log(time / default)
    advice: str = ""  # a layout of the operands that would be faster still, and by how much
    device: str = "cpu"  # that runs it
    placements: tuple[Placed, ...] = ()  # with `inputs_on`: the best of each device, the picked one first
    builder: Callable[..., Any] | None = field(default=None, repr=False, compare=False)

    def advised(self, advice: str) -> Answer:
        """This answer with that advice."""
        return self._with(advice=advice)

    def placed(self, device: str, placements: tuple[Placed, ...]) -> Answer:
        """This answer as the pick among devices."""
        return self._with(device=device, placements=placements)

    def _with(self, **changed: Any) -> Answer:
        return Answer(**{**{item.name: getattr(self, item.name) for item in fields(Answer)}, **changed})

    def build(self, *operands: Any, **named: Any) -> Any:
        """A callable for this workload; for `linear`, `build(weight, bias=None)` replaces `F.linear(x, weight, bias)`.

        Needs torch. A config that cannot be built on this machine is set aside with one warning and the next
        best takes its place; the default always builds. Raises `InvalidInput` when the operands do not fit
        the workload, `Unavailable` without torch.
        """
        if self.builder is None:
            raise InvalidInput("this answer was not made by autotune.lookup and cannot build")
        return self.builder(self, *operands, **named)
