"""`autotune.triton`: a decorator in place of `triton.autotune` that answers from the database, with no benchmark.

    @autotune.triton(configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])
    @triton.jit
    def kernel(x, n, BLOCK: tl.constexpr): ...

Triton asks an autotuner's `early_config_prune` which configs to benchmark, and benchmarks nothing when there is one.
Ours names that one: the fastest measured for this very problem on this hardware, with this software and source (exact);
else what was fastest for the nearest problem of the kernel (predicted); else the first of the list (default).

A kernel is recorded as a `RecordedKernel`: its name, and a problem made of what Triton's own key is made of. Its
times are Triton's, without the default beside each: they rank the configs of one problem and say nothing else.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autotune import devices, environment, hardware, settings
from autotune.canonical import text_key
from autotune.dbschema import sqlite_path
from autotune.errors import InvalidInput, Unavailable
from autotune.formats import UNKNOWN_SPEC
from autotune.formats.workloads import RecordedKernel
from autotune.snapshot import Snapshot
from autotune.types import Config, HardwareProfile, Measurement, Origin, Status, TuningRecord

MODES = ("lookup", "tune", "off")
ALGORITHM = "triton_jit"
SOURCE = "triton"
REACH = 3.0
"""Octaves, over all numbers of a key together, within which another problem's fastest config is taken."""

Timings = Mapping[Any, Sequence[float]]


def triton(configs: Sequence[Any], key: Sequence[str], *, mode: str = "lookup", **options: Any) -> Callable[[Any], Any]:
    """Like `triton.autotune(configs, key, …)`, whose other options it takes.

    `mode`: "lookup" never benchmarks. "tune" lets Triton benchmark a problem that was never measured here, and records
    what it found; not while a device graph is recorded. "off" takes the first config. Raises `InvalidInput` for another
    mode or no configs, `Unavailable` without Triton.
    """
    _check(mode)
    if not configs:
        raise InvalidInput("autotune.triton needs at least one config")
    library = _library()

    def decorate(kernel: Any) -> Any:
        return adopt(library.autotune(configs=list(configs), key=list(key), **options)(kernel), mode)

    return decorate


def adopt(kernel: Any, mode: str = "lookup") -> Any:
    """Makes a kernel that somebody decorated with `triton.autotune` ask the database first; returns it.

    Also for kernels of other packages, before their first call. Raises `InvalidInput` for what is no such kernel.
    """
    _check(mode)
    library = _library()
    tuner = kernel
    while not isinstance(tuner, library.runtime.autotuner.Autotuner):
        tuner = getattr(tuner, "fn", None)
        if tuner is None:
            raise InvalidInput(f"{kernel!r} was not decorated with triton.autotune")
    inner = tuner.early_config_prune
    if isinstance(inner, Advisor):
        inner = inner.inner
    tuner.early_config_prune = Advisor(tuner, mode, inner)
    _advisors[id(tuner.base_fn)] = tuner.early_config_prune
    if mode == "tune":
        _listen(library)
    return kernel


def forget() -> None:
    """Reads the database again at the next problem. Choices that Triton remembers in its kernels stay."""
    for advisor in _advisors.values():
        advisor.known = None


class Advisor:
    """The `early_config_prune` of one kernel. `last` says what became of the last question: how, and which problem."""

    def __init__(self, tuner: Any, mode: str, inner: Callable[..., Any] | None) -> None:
        self.tuner, self.mode, self.inner = tuner, mode, inner
        function = tuner.base_fn
        self.name = _clean(f"{function.__module__}.{function.__qualname__}")[-200:]
        self.revision = text_key(f"{_source_of(function)}\n{environment.version('triton')}")
        self.known: dict[str, dict[Config, float]] | None = None
        self.last: tuple[Origin | None, str] = (None, "")

    def __call__(self, configs: list[Any], named_args: dict[str, Any], **kwargs: Any) -> list[Any]:
        allowed = list(self.inner(configs, named_args, **kwargs) if self.inner else configs)
        if len(allowed) < 2:
            return allowed
        try:
            problem = self.problem(_key_of(self.tuner, {**named_args, **kwargs}))
            chosen, origin = self.choose(problem, allowed)
        except Exception as error:  # an answer is worth having, never worth a failed launch
            warnings.warn(f"autotune: {self.name} is not looked up: {error}", RuntimeWarning, stacklevel=2)
            return allowed[:1]
        self.last = (origin, problem)
        if self.mode == "tune" and origin is not Origin.EXACT and not _capturing():
            return allowed
        return [chosen]

    def choose(self, problem: str, allowed: Sequence[Any]) -> tuple[Any, Origin]:
        """One of `allowed`, and where the choice comes from."""
        if self.mode == "off":
            return allowed[0], Origin.DEFAULT
        ours = {config_of(each, self.placement): each for each in reversed(allowed)}
        known = self._known()
        for other in sorted(known, key=lambda name: (distance(name, problem), name)):
            if distance(other, problem) > REACH:
                break
            times = {c: ns for c, ns in known[other].items() if c in ours}
            if times:
                best = min(times, key=lambda c: (times[c], c.key))
                return ours[best], Origin.EXACT if other == problem else Origin.PREDICTED
        return allowed[0], Origin.DEFAULT

    def problem(self, key: Sequence[Any]) -> str:
        """Triton's key as a name: `M:64,N:128,torch.float32`."""
        names = [f"{name}:" for name in self.tuner.keys]
        words = [f"{_clean(name)}{_clean(str(value))}" for name, value in zip(names, key, strict=False)]
        text = ",".join([*words, *(_clean(str(value)) for value in key[len(words) :])])
        return text if len(text) <= 200 else f"{text[:160]}+{text_key(text)}"

    @property
    def placement(self) -> str:
        return _hardware().placement

    def _known(self) -> dict[str, dict[Config, float]]:
        """Median ns by problem and config, as measured on this hardware, with this software and source."""
        if self.known is None:
            profile = _hardware()
            self.known = {}
            path = sqlite_path(settings.database())
            snapshot = Snapshot.open(path) if path is not None else None
            if snapshot is not None:
                identity = (profile.key, environment.current(profile.kind).key, self.revision)
                prefix = RecordedKernel(self.name, "x").spec.removesuffix("x")
                for spec, config, ns in snapshot.measured(prefix, *identity):
                    self.known.setdefault(spec.removeprefix(prefix), {})[config] = ns
                snapshot.close()
        return self.known

    def record(self, key: Sequence[Any], timings: Timings) -> None:
        """Keeps what Triton measured. Never raises: a database that cannot be written is warned of."""
        profile = _hardware()
        workload = RecordedKernel(self.name, self.problem(key))
        software = environment.current(profile.kind)
        records = [
            TuningRecord(
                workload, config_of(each, profile.placement), profile, software, UNKNOWN_SPEC, measurement(times),
                self.revision, source=SOURCE,
            )
            for each, times in timings.items()
        ]  # fmt: skip
        try:
            from autotune.store.sql import open_store

            with open_store(settings.database()) as store:
                store.add(records)
        except Exception as error:
            warnings.warn(f"autotune: times of {self.name} are not kept: {error}", RuntimeWarning, stacklevel=2)
        self.known = None


def measurement(times_ms: Sequence[float]) -> Measurement:
    """Of Triton's quantiles in ms, the median first; what did not compile or fit has infinite ones."""
    if not all(math.isfinite(time) for time in times_ms):
        return Measurement(Status.BUILD_FAILED, "Triton could not compile it, or the device could not hold it")
    return Measurement(Status.OK, times_ns=tuple(sorted(time * 1e6 for time in times_ms)), paired=False)


def config_of(config: Any, placement: str) -> Config:
    """A `triton.Config` as ours: its meta-parameters and launch options by name, those that are not set left out."""
    values = {name: value for name, value in config.all_kwargs().items() if isinstance(value, (bool, int, float, str))}
    return Config(ALGORITHM, values, placement)


def distance(one: str, other: str) -> float:
    """Octaves between two problems, summed over their numbers; infinite where anything else differs."""
    total = 0.0
    left, right = one.split(","), other.split(",")
    if len(left) != len(right):
        return math.inf
    for a, b in zip(left, right, strict=True):
        if a != b:
            (name, _, x), (same, _, y) = a.partition(":"), b.partition(":")
            if name != same or not (x.isdigit() and y.isdigit()):
                return math.inf
            total += abs(math.log2(max(int(x), 1)) - math.log2(max(int(y), 1)))
    return total


_advisors: dict[int, Advisor] = {}


def _check(mode: str) -> None:
    if mode not in MODES:
        raise InvalidInput(f"mode is one of {', '.join(MODES)}, not {mode!r}")


def _library() -> Any:
    try:
        import triton as library
        import triton.runtime.autotuner
    except ImportError as error:
        raise Unavailable(f"autotune.triton needs Triton: pip install 'autotune[gpu]' ({error})") from None
    return library


def _listen(library: Any) -> None:
    """Hears of every tuning of Triton, beside whoever listened before. Not in the interpreter, which cannot tell."""
    knobs = library.knobs
    before = knobs.autotuning.listener
    if knobs.runtime.interpret or getattr(before, "of_autotune", False):
        return

    def listener(*, fn: Any, key: Any, configs_timings: Timings, cache_hit: bool, **more: Any) -> None:
        if before is not None:
            before(fn=fn, key=key, configs_timings=configs_timings, cache_hit=cache_hit, **more)
        advisor = _advisors.get(id(getattr(fn, "fn", None)))
        if advisor is not None and not cache_hit:  # Triton's files do not say on which device they were measured
            advisor.record(key, configs_timings)

    listener.of_autotune = True  # type: ignore[attr-defined]  # a mark of ours on our own function
    knobs.autotuning.listener = listener


def _key_of(tuner: Any, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    """What Triton makes its key of: the values of the key's arguments, then the dtypes of all."""
    known = {name: value for name, value in arguments.items() if name in tuner.arg_names}
    values = [known[name] for name in tuner.keys if name in known]
    return (*values, *(str(value.dtype) for value in known.values() if hasattr(value, "dtype")))


def _hardware() -> HardwareProfile:
    """The GPU that kernels are launched on; the CPU where there is none, as in the interpreter."""
    import torch

    if torch.cuda.is_available():
        name = f"cuda:{torch.cuda.current_device()}"
        for found in devices.here():
            if found.name == name:
                return found.hardware
    return hardware.detect()


def _capturing() -> bool:
    import torch

    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _source_of(function: Any) -> str:
    import inspect

    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return f"{function.__module__}.{function.__qualname__}"


def _clean(text: str) -> str:
    """As `RecordedKernel` takes it; commas separate."""
    return re.sub(r"[^\w.:+-]", "-", text)
