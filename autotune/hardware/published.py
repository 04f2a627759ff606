"""GPUs as their vendors publish them, to compile and to plan for what is not here.

A profile has the key that `hardware.devices()` gives the real device. Peaks are dense (without structured
sparsity), in TFLOP/s by element type, "tf32" being f32 operands on tensor cores with 10 bits of mantissa. They are
the vendors' figures, which no kernel reaches, and are never taken for measured ones.
"""

from __future__ import annotations

from autotune.errors import InvalidInput
from autotune.hardware.gpu_limits import LIMITS, GpuLimits
from autotune.noun import Noun, noun
from autotune.types import HardwareProfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

GIB, MIB = 1 << 30, 1 << 20


@noun
class PublishedGpu(Noun):
    """One model of GPU, as one device: of the MI250X, which shows itself as two, one half."""

    name: str  # as on the command line
    profile: HardwareProfile
    l2_bytes: int
    bandwidth_gbs: float
    peak_tflops: Mapping[str, float]
    source: str

    @property
    def limits(self) -> GpuLimits:
        return LIMITS[self.profile.arch]


def _gpu(
    name: str, title: str, arch: str, pci: str, cores: int, memory_gib: int, l2_mib: int, bandwidth_gbs: float,
    source: str, **peak_tflops: float,
) -> PublishedGpu:  # fmt: skip
    profile = HardwareProfile(
        kind="gpu",
        name=title,
        vendor="AMD" if arch.startswith("gfx") else "NVIDIA",
        arch=arch,
        model=f"pci {pci}",
        physical_cores=cores,
        logical_cores=cores,
        memory_bytes=memory_gib * GIB,
    )
    return PublishedGpu(name, profile, l2_mib * MIB, bandwidth_gbs, peak_tflops, source)


PUBLISHED = (
    _gpu("t4", "Tesla T4", "sm_75", "10de:1eb8", 40, 16, 4, 320,
         "NVIDIA T4 datasheet; Turing architecture whitepaper, appendix on TU104", f32=8.1, f16=65),
    _gpu("a10", "NVIDIA A10", "sm_86", "10de:2236", 72, 24, 6, 600,
         "NVIDIA A10 datasheet; GA102 architecture whitepaper", f32=31.2, tf32=62.5, f16=125, bf16=125),
    _gpu("a100-40", "NVIDIA A100-SXM4-40GB", "sm_80", "10de:20b0", 108, 40, 40, 1555,
         "NVIDIA A100 architecture whitepaper, table 3", f32=19.5, tf32=156, f16=312, bf16=312),
    _gpu("a100-80", "NVIDIA A100-SXM4-80GB", "sm_80", "10de:20b2", 108, 80, 40, 2039,
         "NVIDIA A100 80GB datasheet", f32=19.5, tf32=156, f16=312, bf16=312),
    _gpu("l4", "NVIDIA L4", "sm_89", "10de:27b8", 58, 24, 48, 300,
         "NVIDIA L4 datasheet, figures with sparsity halved; Ada architecture whitepaper",
         f32=30.3, tf32=60, f16=121, bf16=121, f8=242.5),
    _gpu("l40s", "NVIDIA L40S", "sm_89", "10de:26b9", 142, 48, 96, 864,
         "NVIDIA L40S datasheet; Ada architecture whitepaper", f32=91.6, tf32=183, f16=362, bf16=362, f8=733),
    _gpu("rtx3090", "NVIDIA GeForce RTX 3090", "sm_86", "10de:2204", 82, 24, 6, 936,
         "NVIDIA GA102 architecture whitepaper, table 2; products of 16-bit types with f32 sums",
         f32=35.6, tf32=35.6, f16=71, bf16=71),
    _gpu("rtx4090", "NVIDIA GeForce RTX 4090", "sm_89", "10de:2684", 128, 24, 72, 1008,
         "NVIDIA Ada architecture whitepaper, appendix A; products of 16-bit types with f32 sums",
         f32=82.6, tf32=82.6, f16=165.2, bf16=165.2, f8=330.3),
    _gpu("h100-sxm", "NVIDIA H100 80GB HBM3", "sm_90", "10de:2330", 132, 80, 50, 3350,
         "NVIDIA H100 datasheet, figures with sparsity halved; Hopper architecture whitepaper",
         f32=67, tf32=494.5, f16=989.5, bf16=989.5, f8=1979),
    _gpu("h100-pcie", "NVIDIA H100 PCIe", "sm_90", "10de:2331", 114, 80, 50, 2000,
         "NVIDIA H100 datasheet, figures with sparsity halved; Hopper architecture whitepaper",
         f32=51, tf32=378, f16=756.5, bf16=756.5, f8=1513),
    _gpu("h200", "NVIDIA H200", "sm_90", "10de:2335", 132, 141, 50, 4800,
         "NVIDIA H200 datasheet, SXM, figures with sparsity halved",
         f32=67, tf32=494.5, f16=989.5, bf16=989.5, f8=1979),
    _gpu("b200", "NVIDIA B200", "sm_100", "10de:2901", 148, 180, 126, 8000,
         "NVIDIA HGX B200 datasheet by one of its eight GPUs; multiprocessors and L2 as the driver reports them",
         f32=75, tf32=1100, f16=2250, bf16=2250, f8=4500),
    _gpu("mi250x", "AMD Instinct MI250X", "gfx90a", "1002:7408", 110, 64, 8, 1638,
         "AMD Instinct MI250X data sheet and CDNA 2 whitepaper, one of the two dies; f32 and 16 bits by matrix cores",
         f32=47.9, f16=191.5, bf16=191.5),
    _gpu("mi300x", "AMD Instinct MI300X", "gfx942", "1002:74a1", 304, 192, 32, 5300,
         "AMD Instinct MI300X data sheet and CDNA 3 whitepaper; L2 is 4 MiB on each of 8 dies",
         f32=163.4, tf32=653.7, f16=1307.4, bf16=1307.4, f8=2614.9),
)  # fmt: skip


def find(name: str) -> PublishedGpu:
    """By names such as "h200" or "a100-80"; raises `InvalidInput` with all of them for another."""
    wanted = name.lower().replace("_", "-").replace(" ", "-")
    for gpu in PUBLISHED:
        if gpu.name == wanted:
            return gpu
    raise InvalidInput(f"unknown GPU {name!r}; there are {', '.join(gpu.name for gpu in PUBLISHED)}")
