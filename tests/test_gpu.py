"""GPUs without a GPU: an injected NVML, an injected torch, and the grammar of CUDA_VISIBLE_DEVICES (C15, C18)."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.hardware import gpu
from autotune.hardware.gpu import GpuDevice, canonical_gpu_name, select_visible
from tests import fake_machines as fake

UUIDS = ("GPU-aaaa1111-0000", "GPU-aaaa2222-0000", "GPU-bbbb3333-0000")
WHOLE = tuple(GpuDevice(i, uuid, "NVIDIA H200", "sm_90", 132, 150 << 30) for i, uuid in enumerate(UUIDS))
SLICES = tuple(
    GpuDevice(
        0, f"MIG-{i}{i}{i}{i}-0000", "NVIDIA H200", "sm_90", 16, 18 << 30,
        slice="1g.18gb", parent_uuid="GPU-cccc4444-0000", instance=f"{7 + i}/0",
    )
    for i in range(3)
)  # fmt: skip


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("none", []),
        ("0", [0]),
        ("1,0", [1, 0]),
        (" 2 , 1 ", [2, 1]),
        ("0,2,-1,1", [0, 2]),
        ("0,7,1", [0]),
        ("7", []),
        ("1,,0", [1]),
        (",0", []),
        ("1,0,1", []),
        ("1gpu,0", [1, 0]),
        ("99999999999999999999", []),
        ("GPU-aaaa2222-0000", [1]),
        ("GPU-bbbb", [2]),
        ("GPU-bbbb,GPU-aaaa1", [2, 0]),
        ("GPU-aaaa", []),  # fits two
        ("GPU-dddd,0", []),
        ("GPU-bbbb,GPU-bbbb3", []),
        ("MIG-1111", []),
    ],
)
def test_visible_devices(value: str | None, expected: list[int]) -> None:
    assert [device.index for device in select_visible(value, WHOLE)] == expected
    assert select_visible(value, ()) == ()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [0]),
        ("0", [0]),
        ("1", []),
        ("MIG-1111-0000", [1]),
        ("MIG-2222", [2]),
        ("MIG-2222-0000,MIG-1111-0000", [2]),  # CUDA serves one slice per process
        ("MIG-", []),
        ("MIG-9999", []),
        ("MIG-GPU-cccc4444-0000/8/0", [1]),
        ("MIG-GPU-cccc4444-0000/8/1", []),
        ("MIG-GPU-dddd/7/0", []),
        ("GPU-cccc", [0]),
        ("", []),
    ],
)
def test_visible_slices(value: str | None, expected: list[int]) -> None:
    assert list(select_visible(value, SLICES)) == [SLICES[i] for i in expected]


def test_whole_gpus_come_before_slices() -> None:
    assert select_visible(None, (*SLICES, *WHOLE[1:])) == WHOLE[1:]


@given(st.text("0123456789-,GPUMIaf/ ", max_size=30))
def test_any_value_selects_some_of_the_devices_once(value: str) -> None:
    chosen = select_visible(value, (*WHOLE, *SLICES))
    assert set(chosen) <= {*WHOLE, *SLICES}
    assert len(set(chosen)) == len(chosen)


def test_canonical_names() -> None:
    assert canonical_gpu_name("NVIDIA_H100_80GB_HBM3") == canonical_gpu_name("NVIDIA H100 80GB HBM3")
    assert canonical_gpu_name(" NVIDIA  H20-3e ") == "NVIDIA H20-3e"
    names = ["NVIDIA H100", "NVIDIA H100 80GB HBM3", "NVIDIA_H20-3e", "NVIDIA H20", "NVIDIA H20 3e"]
    assert len({canonical_gpu_name(name) for name in names}) == len(names)


class NvmlError(Exception):
    pass


class FakeNvml:
    """NVML for two GPUs, the second of them partitioned; `broken` names functions that the driver refuses."""

    def __init__(self, *broken: str) -> None:
        self.broken = broken
        self.shut = False

    def __getattribute__(self, name: str) -> Any:
        if name in object.__getattribute__(self, "broken"):

            def refuse(*_: Any) -> Any:
                raise NvmlError(name)

            return refuse
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None:
        pass

    def nvmlShutdown(self) -> None:
        self.shut = True

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"gpu{index}"

    def nvmlDeviceGetName(self, handle: str) -> str | bytes:
        return "NVIDIA H200 MIG 1g.18gb" if handle.startswith("mig") else b"NVIDIA_H200"  # bytes in older versions

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return {"gpu0": "GPU-0000", "gpu1": "GPU-1111", "mig0": "MIG-aaaa", "mig2": "MIG-cccc"}[handle]

    def nvmlDeviceGetCudaComputeCapability(self, handle: str) -> list[int]:
        return [9, 0]

    def nvmlDeviceGetNumGpuCores(self, handle: str) -> int:
        return 16896

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(total=143771 << 20)

    def nvmlDeviceGetPciInfo(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(pciDeviceId=0x233510DE)

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        if handle == "gpu0":
            raise NvmlError("not supported")
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, index: int) -> str:
        if index not in (0, 2):
            raise NvmlError("not found")
        return f"mig{index}"

    def nvmlDeviceGetAttributes(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(multiprocessorCount=16, memorySizeMB=16384)

    def nvmlDeviceGetGpuInstanceId(self, handle: str) -> int:
        return 9

    def nvmlDeviceGetComputeInstanceId(self, handle: str) -> int:
        return 0


def test_a_whole_gpu() -> None:
    (found,) = gpu.profiles({}, FakeNvml())
    assert (found.kind, found.vendor, found.name, found.arch) == ("gpu", "NVIDIA", "NVIDIA H200", "sm_90")
    assert (found.physical_cores, found.memory_bytes, found.slice) == (132, 143771 << 20, "")
    assert found.model == "pci 10de:2335"


def test_a_slice_is_another_profile() -> None:
    (whole,) = gpu.profiles({"CUDA_VISIBLE_DEVICES": "0"}, FakeNvml())
    (part,) = gpu.profiles({"CUDA_VISIBLE_DEVICES": "MIG-cccc"}, FakeNvml())
    (same,) = gpu.profiles({"CUDA_VISIBLE_DEVICES": "MIG-GPU-1111/9/0"}, FakeNvml())
    assert (part.slice, part.physical_cores, part.memory_bytes) == ("1g.18gb", 16, 16 << 30)
    assert part.name == whole.name
    assert part.key != whole.key
    assert part.key == same.key


@pytest.mark.parametrize(("value", "count"), [("", 0), ("-1", 0), ("GPU-0", 1), ("GPU-1111", 1), ("1,0", 1)])
def test_the_variable_is_honoured(value: str, count: int) -> None:
    assert len(gpu.profiles({"CUDA_VISIBLE_DEVICES": value}, FakeNvml())) == count


@pytest.mark.parametrize("name", [name for name in vars(FakeNvml) if name.startswith("nvml")])
def test_no_refusal_of_the_driver_is_an_error(name: str) -> None:
    for found in gpu.profiles({}, FakeNvml(name)):
        assert found.kind == "gpu"


def test_nvml_is_closed() -> None:
    nvml = FakeNvml("nvmlDeviceGetCount")
    assert gpu.from_nvml(nvml) == ()
    assert nvml.shut


@pytest.mark.parametrize("value", [None, "", "-1", "1,0", "GPU-1234", "MIG-1234", "MIG-GPU-1/2/3", "junk"])
def test_on_this_machine_nothing_raises(value: str | None) -> None:
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    for found in gpu.profiles(environ):
        assert found.kind == "gpu"


def fake_torch(hip: str | None = None, **shown: Any) -> Any:
    def properties(index: int) -> SimpleNamespace:
        return SimpleNamespace(**shown)

    cuda = SimpleNamespace(is_available=lambda: True, device_count=lambda: 1, get_device_properties=properties)
    return SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=hip))


def test_torch_is_asked_where_there_is_no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = fake_torch(
        name="NVIDIA H200 MIG 1g.18gb", major=9, minor=0, multi_processor_count=16, total_memory=16 << 30, uuid="x"
    )
    monkeypatch.setattr(gpu, "_pynvml", lambda: None)
    monkeypatch.setitem(sys.modules, "torch", torch)
    (found,) = gpu.profiles({"CUDA_VISIBLE_DEVICES": "MIG-1"})
    assert (found.name, found.arch, found.slice, found.physical_cores) == ("NVIDIA H200", "sm_90", "1g.18gb", 16)


def test_amd_through_torch() -> None:
    torch = fake_torch(
        "6.3", name="AMD Instinct MI300X", gcnArchName="gfx942:sramecc+:xnack-", multi_processor_count=304,
        total_memory=192 << 30,
    )  # fmt: skip
    (found,) = gpu.from_torch(torch)
    assert (found.vendor, found.arch, found.cores) == ("AMD", "gfx942", 304)


def test_torch_and_nvml_agree_on_the_silicon(tmp_path: Path) -> None:
    slot = "sys/bus/pci/devices/0000:3b:00.0"
    fake.write(tmp_path, {f"{slot}/vendor": "0x10de", f"{slot}/device": "0x2335"})
    shown = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)
    assert gpu._pci_model(shown, str(tmp_path)) == gpu.from_nvml(FakeNvml())[0].model
    assert gpu._pci_model(SimpleNamespace(), str(tmp_path)) == ""


def test_a_broken_torch_is_no_error() -> None:
    assert gpu.from_torch(None) == ()
    assert gpu.from_torch(SimpleNamespace()) == ()
