"""A package from outside with a device: the simulated one, for tests that want it in child processes too."""

from __future__ import annotations

from autotune.devices import simulated


class Simulated(simulated.SimulatedBackend):
    """A device that takes 8 µs for any call, and 4 where work is done in two chunks."""

    def open(self, name: str) -> simulated.Simulated:
        device = super().open(name)
        device.cost = lambda workload, config: 4_000 if config.params.get("chunks") == 2 else 8_000
        return device
