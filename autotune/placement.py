"""Which device runs what: one op, and a graph of ops, when moving data between devices costs time.

    plan = place(sources, steps, cost)
    plan.devices["attention"]

The graph's plan is the cheapest sum of computing and moving, one thing after the other: that devices could work at
once is not counted on. A tensor is moved to a device once, however many steps there take it, and from the nearest
device that has it.
"""

from __future__ import annotations

from autotune.decide import GAIN
from autotune.errors import InvalidInput
from autotune.noun import Noun, noun
from autotune.types import Answer, Placed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    Cost: TypeAlias = Callable[[int, str, str], float]
    """ns to move that many bytes from one device to another; 0 within one."""

    Holders: TypeAlias = tuple[tuple[str, frozenset[str]], ...]
    Best: TypeAlias = tuple[float, float, tuple[str, ...]]
else:
    Cost = Holders = Best = object  # only annotations use them

MOST_STATES = 4096
"""Ways to have arrived at a step that are followed, the cheapest ones: for two devices, all where at most seven tensors
are open at once."""


def pick(options: Sequence[Placed], inputs_on: str) -> Placed:
    """The device for one op whose inputs are, and whose result is wanted, on that one of the `options`.

    Work leaves the device that has the inputs only when that is known to be faster by what a decision takes: the times
    are of different devices, hence not of adjacent pairs.
    """
    home = next(option for option in options if option.device == inputs_on)
    known = [option for option in options if option.total_ns is not None]
    if home.total_ns is None:
        return home
    best = min(known, key=lambda option: (option.total_ns or 0.0, option.device))
    return best if (best.total_ns or 0.0) * GAIN <= home.total_ns else home


def moving() -> Cost:
    """What moving costs between the devices of this machine, by the figures of `autotune hw --probe`."""
    from autotune import devices, hardware
    from autotune.hardware import transfer

    cpu = hardware.detect()
    links = {f.name: transfer.between(cpu, f.hardware) for f in devices.here() if f.name != "cpu"}
    return lambda size_bytes, source, target: transfer.route_ns(size_bytes, source, target, links)


@noun
class Source(Noun):
    """A tensor that is there before the first step: an input of the model."""

    name: str
    size_bytes: int
    on: str


@noun
class Step(Noun):
    """One op: what it takes each device that can run it (ns), the tensors it takes, and the size of the one it makes.

    `inputs` names sources and earlier steps; a step's result has the step's name.
    """

    name: str
    times_ns: Mapping[str, float]
    inputs: tuple[str, ...]
    output_bytes: int


@noun
class Plan(Noun):
    """The device of each step by name, and what all of it takes."""

    devices: Mapping[str, str]
    total_ns: float
    transfer_ns: float  # the part of it that moves data


def place(sources: Sequence[Source], steps: Sequence[Step], cost: Cost, results_on: str = "") -> Plan:
    """The cheapest devices for steps in an order in which each comes after those it takes from.

    `results_on`: where the results that no step takes are wanted; anywhere when "". Dynamic programming over which
    devices hold each tensor that is still needed: exact while there are at most `MOST_STATES` such states, which
    chains and the graphs of networks have. Raises `InvalidInput` for a graph that is none.
    """
    sizes = _checked(sources, steps)
    last = {name: number for number, step in enumerate(steps) for name in step.inputs}
    begin: Holders = tuple(sorted((s.name, frozenset((s.on,))) for s in sources if s.name in last))
    states: dict[Holders, Best] = {begin: (0.0, 0.0, ())}
    for number, step in enumerate(steps):
        found: dict[Holders, Best] = {}
        for holders, (total, moved, devices) in states.items():
            for device, time_ns in step.times_ns.items():
                held, move = _bring(dict(holders), step, device, sizes, cost)
                if step.name in last:
                    held[step.name] = frozenset((device,))
                elif results_on:
                    move += cost(step.output_bytes, device, results_on)
                key = tuple(sorted((name, on) for name, on in held.items() if last[name] > number))
                reached = (total + move + time_ns, moved + move, (*devices, device))
                if key not in found or reached < found[key]:
                    found[key] = reached
        kept = sorted(found.items(), key=lambda item: item[1])[:MOST_STATES]
        states = dict(kept)
    total, moved, chosen = min(states.values())
    return Plan({step.name: device for step, device in zip(steps, chosen, strict=True)}, total, moved)


def _bring(
    held: dict[str, frozenset[str]], step: Step, device: str, sizes: Mapping[str, int], cost: Cost
) -> tuple[dict[str, frozenset[str]], float]:
    """The tensors with the step's inputs on that device, and what moving them there took."""
    total = 0.0
    for name in dict.fromkeys(step.inputs):
        if device not in held[name]:
            total += min(cost(sizes[name], holder, device) for holder in held[name])
            held[name] |= {device}
    return held, total


def _checked(sources: Sequence[Source], steps: Sequence[Step]) -> dict[str, int]:
    """Sizes of all tensors by name."""
    sizes = {source.name: source.size_bytes for source in sources}
    if len(sizes) != len(sources):
        raise InvalidInput("two sources of a graph have one name")
    for step in steps:
        unknown = [name for name in step.inputs if name not in sizes]
        if unknown:
            raise InvalidInput(f"step {step.name!r} takes {unknown[0]!r}: neither a source nor an earlier step")
        if step.name in sizes:
            raise InvalidInput(f"two tensors of a graph are called {step.name!r}")
        if not step.times_ns:
            raise InvalidInput(f"no device runs step {step.name!r}")
        sizes[step.name] = step.output_bytes
    return sizes


def chain(answers: Sequence[Answer], inputs_on: str, cost: Cost, results_on: str = "") -> Plan:
    """The plan of ops that each take the result of the one before, from lookups with `inputs_on`.

    Steps are called "0", "1" …. A device on which an op was never measured or predicted does not run it; the one
    that has the inputs can, at a time of 0, where nothing is known of an op at all. Raises `InvalidInput` for an
    answer that was looked up without `inputs_on`.
    """
    steps = []
    for number, answer in enumerate(answers):
        if not answer.placements:
            raise InvalidInput(f"look {answer.workload.spec} up with inputs_on to place it")
        times = {one.device: one.expected_ns for one in answer.placements if one.expected_ns is not None}
        inputs = (str(number - 1),) if number else ("inputs",)
        steps.append(Step(str(number), times or {inputs_on: 0.0}, inputs, answer.workload.output_bytes))
    sources = [Source("inputs", answers[0].workload.input_bytes, inputs_on)] if answers else []
    return place(sources, steps, cost, results_on)
