"""Device contract: what measuring, and calling what was measured, needs of the device that runs it.

A `Backend` knows the devices of one kind (its placement: "cpu", "cuda" …) and is found through `registry.device`. It
lists them without importing torch; a `Device` may import it. A device belongs to the process that opened it and to one
thread. Work on a device may be asynchronous: a call returns before it is done, and what it wrote may be read by the
host only after `synchronize`. Methods raise `Unavailable` when the device cannot be used at all, and whatever the
framework raises for what a kernel did.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from autotune import registry
from autotune.errors import InvalidInput
from autotune.noun import Noun, noun

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, ClassVar, TypeAlias

    import torch

    from autotune.ops import Kernel
    from autotune.records import BenchmarkSpec
    from autotune.types import Config, HardwareProfile, Workload

    Sampler: TypeAlias = Callable[[Callable[[], object], int], int]
    """Takes a call and how often to make it; returns ns per call, at least 1."""
else:
    Sampler = object  # to be imported by name; only annotations use it


@noun
class Found(Noun):
    """A device that this process may use: its name for torch, and what it is."""

    name: str
    hardware: HardwareProfile


class Watch(ABC):
    """Made before a timing, asked after it."""

    @abstractmethod
    def contended(self, tolerated: float) -> bool:
        """Whether something else slowed the device down, for more than that share of the time where that is known."""

    def note(self) -> str:
        """Clocks and temperature during the timing, for people; "" where the device does not tell."""
        return ""


class Device(ABC):
    """One device, open in this process."""

    name: str

    @abstractmethod
    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on this device, with the same strides; itself when it is there."""

    @abstractmethod
    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the host, once all that was launched before is done."""

    @abstractmethod
    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether kernels of this device may read the tensor."""

    @abstractmethod
    def synchronize(self) -> None:
        """Waits until all that was launched is done. Raises what kernels raised meanwhile."""

    @abstractmethod
    def sampler(self, spec: BenchmarkSpec) -> Sampler:
        """How calls are timed under that protocol: from the start of the work to its end, never its launch alone."""

    @abstractmethod
    def watch(self) -> Watch: ...

    def copy_ns(self, size_bytes: int, to_device: bool, pinned: bool) -> int:
        """Time of one copy of that many bytes between the host and this device, completed; 1 where they are one."""
        return 1

    def kernel(self, call: Kernel, workload: Workload, config: Config) -> Kernel:
        """What an algorithm built, as it is called on this device."""
        return call

    def prepared(self, call: Callable[[], object], spec: BenchmarkSpec) -> Callable[[], object]:
        """The call as the protocol wants it timed: recorded in a device graph, where it says so."""
        if spec.graph:
            raise InvalidInput(f"{self.name} has no device graphs")
        return call

    def capturing(self) -> bool:
        """Whether a device graph is being recorded: nothing may be timed, and no memory asked for, meanwhile."""
        return False

    def fatal(self, error: BaseException) -> bool:
        """Whether this process cannot use the device any more after that exception."""
        return False

    def settle(self) -> None:  # noqa: B027 - optional: most devices have nothing to give back
        """After a candidate that failed: gives back memory that it left."""


class Backend(ABC):
    """The devices of one kind. Made once per process."""

    placement: ClassVar[str]

    @abstractmethod
    def found(self) -> tuple[Found, ...]:
        """Those that this process may use. Imports nothing heavy and never raises."""

    @abstractmethod
    def open(self, name: str) -> Device:
        """Raises `Unavailable` in one sentence when there is no such device, or no way to use it."""


def here() -> tuple[Found, ...]:
    """All devices of this machine that this process may use, the CPU first. Never raises."""
    found: list[Found] = []
    for placement in registry.names("devices"):
        try:
            found += registry.device(placement).found()
        except Exception:  # somebody's package at fault; the other devices count
            continue
    return tuple(found)


def opened(name: str) -> Device:
    """The device of that name, such as "cpu" or "cuda:0". Raises `InvalidInput` or `Unavailable`."""
    return registry.device(name.partition(":")[0]).open(name)


def span(tensor: torch.Tensor, move: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """`move` applied to the tensor's memory from its first element to its last, and the same view of what it returns.

    Copying a tensor itself makes views with gaps or repeated elements contiguous.
    """
    if not tensor.numel():
        return move(tensor)
    length = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    memory = tensor.detach().as_strided((length,), (1,), tensor.storage_offset())
    return move(memory).as_strided(tensor.shape, tensor.stride())


def on_device(device: Device, constants: dict[str, Any]) -> dict[str, Any]:
    """Constants by name, moved; None stays None."""
    return {name: None if value is None else device.put(value) for name, value in constants.items()}
