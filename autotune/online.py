"""The online path: `lookup` and what its answers build.

Order: memo, user's database, shipped database, the cost model, the framework's default. Nothing here tunes, waits or
raises on a valid workload; whatever goes wrong (a database that is damaged, of another schema, unreadable) is warned of
once and the default is the answer. Only a measurement of this very workload, hardware, environment and
kernel revision is EXACT; one that differs in any of them is mentioned in the reason, never served as if
it were the same.
"""

from __future__ import annotations

import os
from _thread import allocate_lock  # threading's own, without the import

from autotune import decide, environment, hardware, paths, registry, settings
from autotune.errors import AutotuneError, Incompatible, InvalidInput, Unavailable
from autotune.snapshot import Snapshot
from autotune.types import Answer, Choice, Config, HardwareProfile, Origin, Workload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from autotune.cost import Prediction
    from autotune.cost.model import Model
    from autotune.ops import Kernel, Op
    from autotune.types import Environment

_NO_WORKLOAD = "lookup needs a workload such as autotune.Linear(m=1, n=4096, k=1024), not {!r}"

WORTH_A_LAYOUT = 1.05
"""Another layout is mentioned when it would be at least this much faster."""

_memo: dict[Any, Answer] = {}
_snapshots: dict[str, Snapshot | None] = {}
_models: dict[str, Model | None] = {}
_quarantined: set[tuple[str, str]] = set()  # (workload key, config key) that did not build here
_warned: set[str] = set()
_lock = allocate_lock()


def lookup(
    op: Workload | str,
    hw: HardwareProfile | None = None,
    *,
    max_error: float | None = None,
    explain: bool = False,
    on_miss: str = "default",
    inputs_on: str | None = None,
) -> Answer:
    """The best config known for a workload on a machine.

    `op`: a workload such as `autotune.Linear(m=1, n=4096, k=1024)`, or its spec string. `hw`: a profile; this
    machine's when None. `max_error`: the largest per-element relative error accepted (see
    `ops.relative_error`); when None, what rounding in the workload's dtype explains. `explain`: a predicted answer
    says which features speak for it (`Answer.factors`; takes a second). `on_miss`: "queue" notes a workload that
    was never measured here for the next `autotune sweep --wishes`; "default" does not. `inputs_on`: the device that has
    the inputs, "cpu", "cuda" or "cuda:1": the answer is then the best of all devices of this machine, with the cost of
    moving inputs and result where they cross, and `Answer.placements` has the best of each. When None, the CPU's.

    Answers are memoised: a workload asked again costs a dictionary lookup. Raises `InvalidInput` for something
    that is no workload; never tunes, waits or raises otherwise.
    """
    plain = hw is None and max_error is None and not explain and on_miss == "default" and inputs_on is None
    key = op if plain else (op, hw, max_error, explain, on_miss, inputs_on)
    try:
        answer = _memo.get(key)
    except TypeError:  # unhashable, hence no workload
        raise InvalidInput(_NO_WORKLOAD.format(op)) from None
    if answer is None:
        if on_miss not in ("default", "queue"):
            raise InvalidInput(f'on_miss is "default" or "queue", not {on_miss!r}')
        if inputs_on is None:
            answer = _find(op, hw, max_error, explain)
        elif hw is not None:
            raise InvalidInput("inputs_on is about the devices of this machine, hw about another one: give one of them")
        else:
            answer = _placed(op, max_error, explain, inputs_on)
        _memo[key] = answer
        if on_miss == "queue":
            _note_miss(answer, hw)
    return answer


def refresh() -> None:
    """Forgets memoised answers, open databases and the environment: later lookups see what changed."""
    with _lock:
        _memo.clear()
        for snapshot in _snapshots.values():
            if snapshot is not None:
                snapshot.close()
        _snapshots.clear()
        _models.clear()
        _quarantined.clear()
        _warned.clear()
        environment.forget()
        hardware.forget()


def _find(op: Workload | str, hw: HardwareProfile | None, max_error: float | None, explain: bool) -> Answer:
    workload = registry.parse_workload(op) if isinstance(op, str) else op
    if not isinstance(workload, Workload):
        raise InvalidInput(_NO_WORKLOAD.format(op))
    kind = registry.op(workload.op)
    profile = hardware.detect() if hw is None else hw
    default = kind.default(workload).on(profile.placement)
    if workload.is_empty:
        return _default(workload, default, "there is nothing to compute")
    budget = kind.tolerance(workload) if max_error is None else max_error
    software = environment.current(profile.kind)
    reason = "never measured here"
    hints: list[Config] = []
    for path in (settings.database(), paths.shipped_database()):
        snapshot = _open(path)
        if snapshot is None:
            continue
        try:
            choices = snapshot.choices(workload.key, profile.key, software.key)
            if choices:
                answer = _exact(workload, default, choices, budget, path)
                if answer is not None:
                    return _advised(answer, snapshot, profile, software.key, budget)
                reason = "measured with kernels of another revision"
            else:
                reason = _near_miss(snapshot, workload) or reason
            hints += snapshot.elsewhere(workload.key)
        except AutotuneError as error:
            _warn(path, str(error))
    return _predicted(workload, default, profile, software, budget, reason, hints, explain)


def _note_miss(answer: Answer, hw: HardwareProfile | None) -> None:
    if answer.origin is not Origin.EXACT and not answer.workload.is_empty:
        from autotune import wishes

        wishes.note(answer.workload.spec, (hw or hardware.detect()).key)


def _exact(workload: Workload, default: Config, choices: tuple[Choice, ...], budget: float, path: str) -> Answer | None:
    """The answer among decided choices of this identity; None when all that is left is out of date."""
    current = [c for c in choices if c.config == default or _is_current(workload, c)]
    if not current:
        return None
    eligible = decide.eligible(current, default, budget)
    source = os.path.basename(path)
    stays = "measured: nothing within the error budget beat the default"
    if any(c.contended and c.speedup >= decide.GAIN for c in current):
        stays += (
            "; some results were left out because something else was using the machine, sweep again when it is quiet"
        )
    if any(c not in current and (workload.key, c.config.key) not in _quarantined for c in choices):
        stays += "; results of other kernel revisions were left out, sweep again"
    if not eligible:  # nothing is faster, and the default's own measurement is missing: merged from parts, say
        time_ns = current[0].baseline_ns
        return Answer(workload, default, Origin.EXACT, stays, time_ns, 1.0, (1.0, 1.0), source=source, builder=build)
    best = eligible[0]
    return Answer(
        workload,
        best.config,
        Origin.EXACT,
        stays if best.config == default else f"measured here: {best.speedup:.2f}x the default",
        best.expected_ns,
        best.speedup,
        best.interval,
        best.max_error,
        source,
        eligible[1:],
        builder=build,
    )


def _advised(
    answer: Answer, snapshot: Snapshot, profile: HardwareProfile, environment_key: str, budget: float
) -> Answer:
    """The answer with a word on other layouts of its operands, where one was measured to be faster."""
    op = registry.op(answer.workload.op)
    for other in op.other_layouts(answer.workload):
        default = op.default(other).on(profile.placement)
        choices = [
            c
            for c in snapshot.choices(other.key, profile.key, environment_key)
            if c.config == default or _is_current(other, c)
        ]
        served = decide.eligible(choices, default, budget)
        if served and answer.expected_ns and answer.expected_ns > served[0].expected_ns * WORTH_A_LAYOUT:
            gain = answer.expected_ns / served[0].expected_ns
            return answer.advised(f"{gain:.2f}x faster still for operands like {other.spec}, by {served[0].config}")
    return answer


def _is_current(workload: Workload, choice: Choice) -> bool:
    if (workload.key, choice.config.key) in _quarantined:
        return False
    try:
        return registry.algorithm(choice.config.algorithm).revision() == choice.kernel_revision
    except Exception:  # not installed any more, or somebody's plugin at fault: not a reason for lookup to raise
        return False


def _default(workload: Workload, default: Config, reason: str) -> Answer:
    return Answer(workload, default, Origin.DEFAULT, reason, builder=build)


def _near_miss(snapshot: Snapshot, workload: Workload) -> str:
    """A sentence when the same workload was decided elsewhere; such a result is mentioned, not served."""
    near = snapshot.nearest(workload.key)
    if not near:
        return ""
    where = ", ".join(sorted({f"{name} with {software}" for name, software in near})[:3])
    return f"measured only on other hardware or software: {where}"


# ---- devices ------------------------------------------------------------------------------------------------


def _placed(op: Workload | str, max_error: float | None, explain: bool, inputs_on: str) -> Answer:
    """The best of all devices for inputs on one of them; of alike devices the one with the inputs, or the first."""
    from autotune import devices
    from autotune.hardware import transfer
    from autotune.placement import pick
    from autotune.types import Placed

    known = registry.names("devices")
    if not isinstance(inputs_on, str) or inputs_on.partition(":")[0] not in known:
        raise InvalidInput(f"inputs_on is one of {', '.join(known)}, such as cuda:0, not {inputs_on!r}")
    workload = registry.parse_workload(op) if isinstance(op, str) else op
    found = devices.here()
    home = next((f for f in found if f.name == inputs_on or f.name.partition(":")[0] == inputs_on), None)
    if home is None:
        answer = _find(workload, None, max_error, explain)  # of the CPU: no device of that kind is known
        default = registry.op(answer.workload.op).default(answer.workload).on(inputs_on.partition(":")[0])
        return _default(answer.workload, default, f"this process sees no device {inputs_on}")
    apart = {f.hardware.key: f for f in reversed(found)} | {home.hardware.key: home}
    cpu = hardware.detect()
    links = {f.name: transfer.between(cpu, f.hardware) for f in apart.values() if f.name != "cpu"}
    answers: dict[str, Answer] = {}
    options = []
    for device in (f for f in found if f in apart.values()):
        answer = answers[device.name] = _find(workload, device.hardware, max_error, explain)
        move = transfer.route_ns(answer.workload.input_bytes, home.name, device.name, links)
        move += transfer.route_ns(answer.workload.output_bytes, device.name, home.name, links)
        measured = all(links[name].measured for name in {home.name, device.name} & set(links)) or not move
        options.append(
            Placed(
                device.name, answer.config, answer.origin, answer.reason, answer.expected_ns, answer.speedup, move,
                measured,
            )
        )  # fmt: skip
    best = pick(options, home.name)
    rest = sorted((o for o in options if o is not best), key=lambda o: (o.total_ns is None, o.total_ns or 0.0))
    return answers[best.device].placed(best.device, (best, *rest))


# ---- predicting --------------------------------------------------------------------------------------------


def _predicted(
    workload: Workload, default: Config, profile: HardwareProfile, software: Environment, budget: float, reason: str,
    hints: Sequence[Config], explain: bool,
) -> Answer:  # fmt: skip
    """The first model's answer that has one; else the default, with what the models said."""
    for path in dict.fromkeys((settings.model(), paths.shipped_model())):
        if not os.path.exists(path):
            continue
        try:
            model = _model(path)
            if model is None:
                continue
            from autotune.cost import answer

            barred = {config for key, config in _quarantined if key == workload.key}
            found = answer.predict(model, workload, profile, software.key, budget, hints, explain, barred)
            if found.config is not None and found.config != default:
                return _as_answer(workload, found, path)
            reason = f"{reason.partition('; cost model: ')[0]}; cost model: {found.reason}"
        except Unavailable as error:  # xgboost or numpy is not installed: no fault, and nothing to warn of
            reason = f"{reason.partition('; cost model: ')[0]}; cost model: {error}"
        except Incompatible as error:
            _models[path] = None
            _warn(path, str(error))
        except Exception as error:  # a prediction is worth having, never worth an exception
            _models[path] = None
            _warn(path, f"{path} cannot predict: {type(error).__name__}: {error}")
    return _default(workload, default, reason)


def _as_answer(workload: Workload, found: Prediction, path: str) -> Answer:
    assert found.config is not None
    assert found.speedup is not None
    default_ns = (found.expected_ns or 0.0) * found.speedup
    others = [
        Choice(c, "", default_ns / gain, default_ns, gain, (gain, gain), float("inf")) for c, gain in found.alternatives
    ]
    return Answer(
        workload,
        found.config,
        Origin.PREDICTED,
        found.reason,
        found.expected_ns,
        found.speedup,
        found.interval,
        source=os.path.basename(path),
        alternatives=tuple(others),
        p_faster=found.p_faster,
        nearest=found.nearest,
        factors=found.factors,
        builder=build,
    )


def _model(path: str) -> Model | None:
    """The model of a file, read once; None for one that is refused, with one warning. Raises `Unavailable` without
    xgboost."""
    if path not in _models:
        with _lock:
            if path not in _models:
                try:
                    from autotune.cost import model

                    _models[path] = model.read(path)
                except ImportError as error:
                    raise Unavailable(f"predicting needs {error.name}: pip install 'autotune[serve]'") from None
                except Incompatible as error:
                    _models[path] = None
                    _warn(path, str(error))
    return _models[path]


def _open(path: str) -> Snapshot | None:
    if path not in _snapshots:
        with _lock:
            if path not in _snapshots:
                try:
                    _snapshots[path] = Snapshot.open(path)
                except AutotuneError as error:
                    _snapshots[path] = None
                    _warn(path, str(error))
    return _snapshots[path]


def _warn(about: str, sentence: str) -> None:
    """One warning per subject and process."""
    if about not in _warned:
        _warned.add(about)
        import warnings

        warnings.warn(f"autotune: {sentence}; the default is used", RuntimeWarning, stacklevel=4)


def _forget_the_lock() -> None:
    """In a forked child: a thread of the parent may have held it."""
    global _lock
    _lock = allocate_lock()


os.register_at_fork(after_in_child=_forget_the_lock)


# ---- building ----------------------------------------------------------------------------------------------


def build(answer: Answer, *operands: Any, **named: Any) -> Kernel:
    """What `Answer.build` does; see there."""
    try:
        import torch  # noqa: F401 - what kernels are built from and called with
    except ImportError as error:
        raise Unavailable(f"building a kernel needs torch: pip install 'autotune[tune]' ({error})") from None
    workload = answer.workload
    op = registry.op(workload.op)
    constants = op.named_constants(workload, operands, named)
    op.check_constants(workload, constants)
    default = registry.algorithm(op.default(workload).algorithm)
    fallback = default.build(workload, op.default(workload).params, constants).call
    for config in (answer.config, *(choice.config for choice in answer.alternatives)):
        if config == op.default(workload) and not answer.placements:
            return fallback
        if (workload.key, config.key) in _quarantined:
            continue
        try:
            if answer.placements or config.placement != "cpu":
                return _across(op, workload, answer.device, config, constants, fallback)
            return _guarded(op, workload, _build(workload, config, constants, hardware.detect()), fallback)
        except Exception as error:
            _quarantined.add((workload.key, config.key))
            _memo.clear()  # answers that name it are answered anew
            _warn(config.key, f"{config} cannot be built here ({error}) and is set aside for this process")
    return fallback


def _build(workload: Workload, config: Config, constants: dict[str, Any], profile: HardwareProfile) -> Kernel:
    algorithm = registry.algorithm(config.algorithm)
    refusal = algorithm.refusal(workload, profile)
    if refusal:
        raise InvalidInput(refusal)
    return algorithm.build(workload, config.params, constants).call


def _guarded(op: Op, workload: Workload, kernel: Kernel, fallback: Kernel) -> Kernel:
    """The kernel for the inputs it was tuned for, the default for any other: another dtype, device, autograd."""
    accepts = op.acceptor(workload)

    def call(*inputs: Any) -> Any:
        for tensor in inputs:
            if not tensor.is_cpu:
                return fallback(*inputs)
        return kernel(*inputs) if accepts(*inputs) else fallback(*inputs)

    return call


def _across(
    op: Op, workload: Workload, name: str, config: Config, constants: dict[str, Any], fallback: Kernel
) -> Kernel:
    """A kernel on that device for inputs anywhere: they are moved there, and the result back to where they were.

    What a tuned kernel may not be given goes to the framework, where the inputs are.
    """
    from autotune import devices

    device = devices.opened(config.placement if name == "cpu" else name)
    there = next(f.hardware for f in devices.here() if f.name == device.name)
    moved = devices.on_device(device, constants)
    default = op.default(workload).on(config.placement)
    kernel = device.kernel(_build(workload, config, moved, there), workload, config)
    plain = kernel if config == default else device.kernel(_build(workload, default, moved, there), workload, default)
    accepts = op.acceptor(workload)

    def call(*inputs: Any) -> Any:
        accepted = accepts(*inputs)
        if all(map(device.holds, inputs)):
            return kernel(*inputs) if accepted else plain(*inputs)
        if not accepted or device.capturing():
            return fallback(*inputs)
        result = device.fetch(kernel(*map(device.put, inputs)))
        return result if inputs[0].is_cpu else result.to(inputs[0].device)

    return call
