"""Clocks, temperature and throttling of a GPU through NVML, where pynvml is installed; nothing is known otherwise."""

from __future__ import annotations

from typing import Any

from autotune.devices import Watch

SLOWED_DOWN = 0x08 | 0x20 | 0x40 | 0x80
"""NVML's clocks throttle reasons: hardware slowdown, software thermal, hardware thermal, hardware power brake."""


class GpuWatch(Watch):
    """Reads before and after a timing. A GPU that throttled for heat or power is taken to be disturbed."""

    def __init__(self, uuid: str, nvml: Any = None) -> None:
        self._nvml = nvml if nvml is not None else _pynvml()
        self._handle = self._find(uuid)
        self._before = self._read()

    def _find(self, uuid: str) -> Any:
        if self._nvml is None or not uuid:
            return None
        try:
            self._nvml.nvmlInit()
            return self._nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")
        except Exception:  # no driver, a slice that NVML does not show, a library of another version
            return None

    def _read(self) -> tuple[int, int, int] | None:
        """(MHz of the multiprocessors, degrees Celsius, throttle reasons)."""
        nvml, handle = self._nvml, self._handle
        if handle is None:
            return None
        try:
            return (
                int(nvml.nvmlDeviceGetClockInfo(handle, 1)),  # NVML_CLOCK_SM
                int(nvml.nvmlDeviceGetTemperature(handle, 0)),  # NVML_TEMPERATURE_GPU
                int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
            )
        except Exception:  # slices and virtual GPUs do not tell
            return None

    def contended(self, tolerated: float) -> bool:
        after = self._read()
        if self._before is None or after is None:
            return False
        return bool((self._before[2] | after[2]) & SLOWED_DOWN)

    def note(self) -> str:
        after = self._read()
        return "" if after is None else f"at {after[0]} MHz and {after[1]} °C"


def _pynvml() -> Any:
    try:
        import pynvml  # type: ignore[import-not-found,unused-ignore]  # optional
    except ImportError:
        return None
    return pynvml
