"""Builders of fake /proc and /sys trees: what a kernel shows on machines that the tests do not run on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

AVX2 = "fpu lm sse sse2 ssse3 sse4_1 sse4_2 movbe popcnt avx f16c fma avx2 bmi1 bmi2"
AVX512 = f"{AVX2} avx512f avx512dq avx512cd avx512bw avx512vl avx512_vnni"
AMX = f"{AVX512} avx512_bf16 avx512_fp16 avx_vnni amx_bf16 amx_tile amx_int8"
NEON = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp"

CACHES = (
    (1, "Data", "32K", "core"),
    (1, "Instruction", "32K", "core"),
    (2, "Unified", "1024K", "core"),
    (3, "Unified", "32768K", "all"),
)


def write(root: Path, files: Mapping[str, str]) -> Path:
    """Writes each text to its path under `root` and returns `root`."""
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
    return root


def spell(cpus: Iterable[int]) -> str:
    return ",".join(map(str, sorted(cpus)))


def machine(
    root: Path,
    blocks: Sequence[Mapping[str, str]],
    cores: Sequence[Sequence[int]],
    *,
    caches: Sequence[tuple[int, str, str, str]] = CACHES,
    nodes: int = 1,
    memory_kib: int = 16 << 20,
    smt: str | None = None,
) -> Path:
    """A machine with one /proc/cpuinfo block per logical CPU and its CPUs grouped into `cores`."""
    online = [cpu for core in cores for cpu in core]
    cpuinfo = "".join("".join(f"{name}\t: {value}\n" for name, value in block.items()) + "\n" for block in blocks)
    files = {
        "proc/cpuinfo": cpuinfo,
        "proc/meminfo": f"MemTotal:       {memory_kib} kB\nMemFree:        1 kB",
        "sys/devices/system/cpu/online": f"0-{max(online)}" if len(online) == max(online) + 1 else spell(online),
        "sys/devices/system/node/online": f"0-{nodes - 1}" if nodes > 1 else "0",
    }
    if smt is not None:
        files["sys/devices/system/cpu/smt/active"] = smt
    for core in cores:
        for cpu in core:
            folder = f"sys/devices/system/cpu/cpu{cpu}"
            files[f"{folder}/topology/thread_siblings_list"] = spell(core)
            for index, (level, kind, size, sharing) in enumerate(caches):
                shared = core if sharing == "core" else online
                files[f"{folder}/cache/index{index}/level"] = str(level)
                files[f"{folder}/cache/index{index}/type"] = kind
                files[f"{folder}/cache/index{index}/size"] = size
                files[f"{folder}/cache/index{index}/shared_cpu_list"] = spell(shared)
    return write(root, files)


def x86_block(cpu: int, name: str, flags: str, vendor: str = "GenuineIntel", model: int = 143) -> dict[str, str]:
    return {
        "processor": str(cpu),
        "vendor_id": vendor,
        "cpu family": "6",
        "model": str(model),
        "model name": name,
        "stepping": "8",
        "flags": flags,
    }


def x86(
    root: Path,
    flags: str = AVX2,
    *,
    name: str = "Intel(R) Xeon(R) Platinum 8480+",
    cpus: int = 4,
    threads_per_core: int = 1,
    vendor: str = "GenuineIntel",
    model: int = 143,
    nodes: int = 1,
    smt: str | None = None,
    caches: Sequence[tuple[int, str, str, str]] = CACHES,
) -> Path:
    """An x86 server or virtual machine; siblings are numbered as Linux does: cpu and cpu + number of cores."""
    count = cpus // threads_per_core
    cores = [[core + count * thread for thread in range(threads_per_core)] for core in range(count)]
    blocks = [x86_block(cpu, name, flags, vendor, model) for cpu in range(cpus)]
    return machine(root, blocks, cores, nodes=nodes, smt=smt, caches=caches)


def intel_hybrid(root: Path, performance: int = 8, efficiency: int = 8) -> Path:
    """Performance cores with two threads each, then efficiency cores with one."""
    cores = [[2 * i, 2 * i + 1] for i in range(performance)]
    cores += [[2 * performance + i] for i in range(efficiency)]
    count = 2 * performance + efficiency
    blocks = [x86_block(cpu, "13th Gen Intel(R) Core(TM) i9-13900K", AVX2, model=183) for cpu in range(count)]
    machine(root, blocks, cores)
    return write(
        root,
        {
            "sys/devices/cpu_core/cpus": f"0-{2 * performance - 1}",
            "sys/devices/cpu_atom/cpus": f"{2 * performance}-{count - 1}",
        },
    )


def arm_block(cpu: int, part: str = "0xd0c", features: str = NEON, variant: str = "0x3") -> dict[str, str]:
    return {
        "processor": str(cpu),
        "BogoMIPS": "243.75",
        "Features": features,
        "CPU implementer": "0x41",
        "CPU architecture": "8",
        "CPU variant": variant,
        "CPU part": part,
        "CPU revision": "1",
    }


def arm_server(root: Path, part: str = "0xd0c", features: str = NEON, cpus: int = 4) -> Path:
    """An aarch64 server: no model name."""
    return machine(root, [arm_block(cpu, part, features) for cpu in range(cpus)], [[cpu] for cpu in range(cpus)])


def big_little(root: Path, capacities: Sequence[int] = (446, 446, 446, 446, 1024, 1024)) -> Path:
    """An aarch64 chip whose small cores come first, as on most boards."""
    blocks = [arm_block(cpu, "0xd05" if value < 1000 else "0xd0b") for cpu, value in enumerate(capacities)]
    machine(root, blocks, [[cpu] for cpu in range(len(capacities))])
    files = {}
    for cpu, value in enumerate(capacities):
        files[f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity"] = str(value)
        files[f"sys/devices/system/cpu/cpu{cpu}/cache/index2/size"] = "512K" if value == 1024 else "128K"
    return write(root, files)


def cgroup_v2(root: Path, files: Mapping[str, str], path: str = "/") -> Path:
    """Unified cgroups: this process is in `path`, `files` are relative to the mount."""
    mounted = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    return write(
        root,
        {"proc/self/cgroup": f"0::{path}", "sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory", **mounted},
    )


def cgroup_v1(root: Path, files: Mapping[str, str], path: str = "/") -> Path:
    """Version 1 cgroups, cpu and cpuacct mounted together as distributions do."""
    lines = ("9:memory:", "5:cpu,cpuacct:", "3:cpuset:", "1:name=systemd:")
    mounted = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    return write(root, {"proc/self/cgroup": "\n".join(line + path for line in lines), **mounted})
