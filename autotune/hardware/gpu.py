"""GPUs that this process may use, through NVML (pynvml) or through torch where that is imported already.

CUDA_VISIBLE_DEVICES is applied as CUDA does. Its numbers are taken in PCI order, which NVML counts in too;
CUDA's own order differs on a machine with unlike GPUs unless CUDA_DEVICE_ORDER=PCI_BUS_ID is set.
A slice of a partitioned GPU (MIG) is a device, and a machine, of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from autotune import settings
from autotune.hardware.sysfs import read
from autotune.types import HardwareProfile

_CORES_PER_SM = {(6, 0): 64, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
_CORES_PER_SM_DEFAULT = 128


@dataclass(frozen=True)
class GpuDevice:
    """One GPU, or one MIG slice of it (`slice` set; `index` and `parent_uuid` are then those of the GPU)."""

    index: int
    uuid: str  # "GPU-…" or "MIG-…"
    name: str
    arch: str  # "sm_90", "gfx942"
    cores: int  # streaming multiprocessors or compute units
    memory_bytes: int
    vendor: str = "NVIDIA"
    model: str = ""  # "pci 10de:2330"
    slice: str = ""  # "1g.18gb"
    parent_uuid: str = ""
    instance: str = ""  # "<GPU instance>/<compute instance>" of a slice, as older drivers name it


def canonical_gpu_name(name: str) -> str:
    """One spelling per device: spaces and underscores are the same, everything else counts.

    "NVIDIA_H100_80GB_HBM3" is "NVIDIA H100 80GB HBM3"; "NVIDIA H100" is another device.
    """
    return " ".join(name.replace("_", " ").split())


def select_visible(value: str | None, devices: Sequence[GpuDevice]) -> tuple[GpuDevice, ...]:
    """The devices that CUDA_VISIBLE_DEVICES=`value` leaves, in its order; `value` None is "not set".

    The first entry that is not a device ends the list ("" and "-1" leave none), a repeated one empties it, and
    an abbreviated UUID must fit one device only. Of MIG slices CUDA serves one per process, and only where no
    whole GPU is visible.
    """
    if value is None:
        return _one_slice(devices)
    chosen: list[GpuDevice] = []
    for entry in value.split(","):
        device = _find(entry.strip(), devices)
        if device is None:
            break
        if device in chosen:
            return ()
        chosen.append(device)
    return _one_slice(chosen)


def _one_slice(devices: Sequence[GpuDevice]) -> tuple[GpuDevice, ...]:
    whole = tuple(device for device in devices if not device.slice)
    return whole or tuple(devices[:1])


def _find(entry: str, devices: Sequence[GpuDevice]) -> GpuDevice | None:
    if entry.startswith("MIG-GPU-"):  # MIG-<GPU UUID>/<GPU instance>/<compute instance>
        gpu, _, instance = entry.removeprefix("MIG-").partition("/")
        found = [d for d in devices if d.slice and d.parent_uuid == gpu and d.instance == instance]
        return found[0] if found else None
    if entry.startswith("MIG-"):
        return _only([d for d in devices if d.slice and d.uuid.startswith(entry)])
    if entry.startswith("GPU-"):
        fitting = [d for d in devices if (d.parent_uuid if d.slice else d.uuid).startswith(entry)]
        return fitting[0] if len({d.index for d in fitting}) == 1 else None
    digits = entry[: len(entry) - len(entry.lstrip("0123456789"))]  # like CUDA: "1st" is 1, "-1" and "all" are none
    return next((d for d in devices if digits and d.index == int(digits)), None)


def _only(found: Sequence[GpuDevice]) -> GpuDevice | None:
    return found[0] if len(found) == 1 else None


def profiles(environ: Mapping[str, str] = os.environ, nvml: Any = None) -> tuple[HardwareProfile, ...]:
    """A profile per GPU that this process may use; empty without a GPU, a driver or a way to ask. Never raises.

    `nvml`: the NVML module to ask, by default pynvml if it is installed. Without NVML, torch is asked if the
    program has imported it.
    """
    found = from_nvml(nvml if nvml is not None else _pynvml())
    if found:
        return tuple(map(profile, select_visible(settings.visible_devices(environ), found)))
    return tuple(map(profile, from_torch(sys.modules.get("torch"))))  # torch shows what is visible, in its order


def profile(device: GpuDevice) -> HardwareProfile:
    """The device as hardware: its key is made of architecture, PCI identity, cores, memory and slice."""
    return HardwareProfile(
        kind="gpu",
        name=canonical_gpu_name(device.name),
        vendor=device.vendor,
        arch=device.arch,
        model=device.model,
        physical_cores=max(1, device.cores),
        logical_cores=max(1, device.cores),
        memory_bytes=device.memory_bytes,
        slice=device.slice,
    )


def _pynvml() -> Any:
    try:
        import pynvml  # type: ignore[import-not-found,unused-ignore]  # optional
    except ImportError:
        return None
    return pynvml


def from_nvml(nvml: Any) -> tuple[GpuDevice, ...]:
    """Every GPU that NVML shows; of a partitioned one, its slices instead. Empty without a driver."""
    if nvml is None:
        return ()
    try:
        nvml.nvmlInit()
    except Exception:  # no driver, or one of another version than the library
        return ()
    found: list[GpuDevice] = []
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                found.extend(_nvml_devices(nvml, index))
            except Exception:  # a GPU that has fallen off the bus, or is not ours to ask; the others count
                continue
    except Exception:
        return tuple(found)
    finally:
        with suppress(Exception):
            nvml.nvmlShutdown()
    return tuple(found)


def _nvml_devices(nvml: Any, index: int) -> list[GpuDevice]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    capability = tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle))
    arch = "sm_{}{}".format(*capability)
    pci = _attempt(lambda: int(nvml.nvmlDeviceGetPciInfo(handle).pciDeviceId), 0)
    model = f"pci {pci & 0xFFFF:04x}:{pci >> 16:04x}" if pci else ""
    uuid, name = _text(nvml.nvmlDeviceGetUUID(handle)), _text(nvml.nvmlDeviceGetName(handle))
    if _attempt(lambda: nvml.nvmlDeviceGetMigMode(handle)[0], 0):
        return list(_mig_slices(nvml, handle, GpuDevice(index, uuid, name, arch, 1, 0, model=model)))
    lanes = _attempt(lambda: int(nvml.nvmlDeviceGetNumGpuCores(handle)), 0)
    cores = lanes // _CORES_PER_SM.get(capability, _CORES_PER_SM_DEFAULT)
    memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    return [GpuDevice(index, uuid, name, arch, cores, memory, model=model)]


def _mig_slices(nvml: Any, handle: Any, parent: GpuDevice) -> list[GpuDevice]:
    slices = []
    for position in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        part = _attempt(lambda position=position: nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, position), None)
        if part is None:  # an unused place
            continue
        name = _text(nvml.nvmlDeviceGetName(part))
        shape = nvml.nvmlDeviceGetAttributes(part)
        ids = _attempt(
            lambda part=part: (nvml.nvmlDeviceGetGpuInstanceId(part), nvml.nvmlDeviceGetComputeInstanceId(part)), ()
        )
        slices.append(
            GpuDevice(
                index=parent.index,
                uuid=_text(nvml.nvmlDeviceGetUUID(part)),
                name=parent.name,
                arch=parent.arch,
                cores=int(shape.multiprocessorCount),
                memory_bytes=int(shape.memorySizeMB) << 20,
                model=parent.model,
                slice=_slice_of(name) or f"{shape.multiprocessorCount}sm",
                parent_uuid=parent.uuid,
                instance="/".join(map(str, ids)),
            )
        )
    return slices


def from_torch(torch: Any) -> tuple[GpuDevice, ...]:
    """The GPUs of an imported torch (None: not imported), which has applied CUDA_VISIBLE_DEVICES already."""
    try:
        if torch is None or not torch.cuda.is_available():
            return ()
        return tuple(_torch_device(torch, index) for index in range(torch.cuda.device_count()))
    except Exception:  # a driver too old for this torch, a GPU in use by another process, a torch half imported
        return ()


def _torch_device(torch: Any, index: int) -> GpuDevice:
    shown = torch.cuda.get_device_properties(index)
    amd = bool(torch.version.hip)
    name, _, part = str(shown.name).partition(" MIG ")
    return GpuDevice(
        index=index,
        uuid=str(getattr(shown, "uuid", "")),
        name=name,
        arch=str(shown.gcnArchName).partition(":")[0] if amd else f"sm_{shown.major}{shown.minor}",
        cores=int(shown.multi_processor_count),
        memory_bytes=int(shown.total_memory),
        vendor="AMD" if amd else "NVIDIA",
        model=_pci_model(shown),
        slice=part.strip(),
    )


def _pci_model(shown: Any, root: str = "/") -> str:
    """The same words as NVML's PCI identity, from /sys; "" where torch does not say which slot."""
    try:
        slot = f"{shown.pci_domain_id:04x}:{shown.pci_bus_id:02x}:{shown.pci_device_id:02x}.0"
    except (AttributeError, TypeError, ValueError):
        return ""
    folder = f"{root.rstrip('/')}/sys/bus/pci/devices/{slot}"
    vendor, device = (read(f"{folder}/{name}").removeprefix("0x") for name in ("vendor", "device"))
    return f"pci {vendor}:{device}" if vendor and device else ""


def _slice_of(name: str) -> str:
    return name.partition(" MIG ")[2].strip()


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _attempt(ask: Any, otherwise: Any) -> Any:
    """What `ask()` returns, or `otherwise` where the driver refuses: many questions are optional per device."""
    try:
        return ask()
    except Exception:
        return otherwise
