"""Strategy contract: which candidate to measure next.

A strategy belongs to one job and one thread. `ask` returns configs never asked before, at most `count`, and
none when the strategy has nothing left to try; `tell` may be called for any config, asked or not (known
results are told first). Neither raises for what a candidate did.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from autotune import registry
from autotune.canonical import content_key
from autotune.space import Params, SearchSpace
from autotune.types import Config, HardwareProfile, Workload

SMALL_SPACE = 12
"""Algorithms with at most this many combinations are measured whole."""


@dataclass(frozen=True)
class Candidates:
    """Every algorithm of an op on one device: the spaces of those that apply, the reasons of those that do not."""

    spaces: Mapping[str, SearchSpace]
    refusals: Mapping[str, str]
    revisions: Mapping[str, str]
    default: Config
    placement: str = "cpu"  # of all configs

    def config(self, algorithm: str, params: Params) -> Config:
        return Config(algorithm, params, self.placement)

    def contains(self, config: Config) -> bool:
        space = self.spaces.get(config.algorithm)
        here = config.placement == self.placement
        return config == self.default or (here and space is not None and space.contains(config.params))

    def revision(self, config: Config) -> str:
        return self.revisions.get(config.algorithm, "")

    @property
    def size(self) -> int:
        """Combinations over all algorithms, before constraints."""
        return sum(space.size for space in self.spaces.values())

    def configs(self, algorithm: str) -> Iterator[Config]:
        """All configs of an algorithm, in a fixed order, the default left out."""
        for params in self.spaces[algorithm]:
            config = self.config(algorithm, params)
            if config != self.default:
                yield config

    def seeds(self) -> Iterator[Config]:
        """The authors' suggestions, algorithm by algorithm."""
        for algorithm, space in self.spaces.items():
            for params in space.seeds:
                yield self.config(algorithm, params)

    def first(self, seeds: Iterable[Config]) -> Iterator[Config]:
        """What is tried before a search is guided: those `seeds` that are candidates, the authors', small spaces whole.

        Choosing the algorithm matters more than any tile size.
        """
        yield from (config for config in seeds if self.contains(config))
        yield from self.seeds()
        for name, space in self.spaces.items():
            if space.size <= SMALL_SPACE:
                yield from self.configs(name)

    @property
    def large(self) -> dict[str, SearchSpace]:
        """The spaces that are searched rather than measured whole."""
        return {name: space for name, space in self.spaces.items() if space.size > SMALL_SPACE}

    @property
    def key(self) -> str:
        """Changes when an algorithm, a value or a kernel revision is added or changed."""
        described = {
            name: [{p: list(v) for p, v in space.parameters.items()}, self.revisions[name]]
            for name, space in self.spaces.items()
        }
        return content_key(described)


def candidates_for(workload: Workload, hardware: HardwareProfile) -> Candidates:
    """Asks every registered algorithm of the op. One that fails to answer is refused with its message.

    A stand-in is left out where the algorithm it stands in for applies.
    """
    spaces: dict[str, SearchSpace] = {}
    refusals: dict[str, str] = {}
    revisions: dict[str, str] = {}
    for algorithm in registry.algorithms(workload.op):
        try:
            reason = algorithm.refusal(workload, hardware)
            if not reason:
                spaces[algorithm.name] = algorithm.space(workload, hardware)
            revisions[algorithm.name] = algorithm.revision()
        except ImportError as error:
            reason = f"it needs {error.name}, which is not installed"
            spaces.pop(algorithm.name, None)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            spaces.pop(algorithm.name, None)
        if reason:
            refusals[algorithm.name] = reason
    for name in list(spaces):
        principal = registry.algorithm(name).stands_in_for
        if principal in spaces:
            del spaces[name]
            refusals[name] = f"it stands in for {principal} where that does not apply; here it does"
    placement = hardware.placement
    return Candidates(spaces, refusals, revisions, registry.op(workload.op).default(workload).on(placement), placement)


@dataclass(frozen=True)
class Outcome:
    """What a strategy learns of a candidate: its speed-up over the default, None when it failed."""

    config: Config
    speedup: float | None


class Strategy(ABC):
    """Proposes candidates and learns from their outcomes."""

    @abstractmethod
    def planned(self) -> int:
        """How many configs it will ask whatever it is told: a search is not given up before they are tried."""

    @abstractmethod
    def ask(self, count: int) -> list[Config]:
        """Up to `count` configs to measure next; empty when there is nothing left."""

    @abstractmethod
    def tell(self, outcome: Outcome) -> None:
        """Takes the outcome of a config into account."""
