"""Detection on fake machines, and the probe on this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune import hardware
from autotune.errors import Unavailable
from autotune.hardware import cpu, probe, sysfs
from autotune.kernels import compiler
from autotune.types import Cache, HardwareProfile
from tests import fake_machines as fake


def detect(root: Path, **environ: str) -> HardwareProfile:
    return hardware.detect(str(root), environ)


def test_server_with_smt(tmp_path: Path) -> None:
    found = detect(fake.x86(tmp_path, fake.AVX2, cpus=8, threads_per_core=2, nodes=2, smt="1"))
    assert (found.physical_cores, found.logical_cores, found.allowed_cpus) == (4, 8, 8)
    assert (found.vendor, found.arch, found.model) == ("Intel", "x86_64", "family 6 model 143 stepping 8")
    assert found.name == "Intel(R) Xeon(R) Platinum 8480+"
    assert found.numa_nodes == 2
    assert found.memory_bytes == 16 << 30
    assert found.caches == (Cache(1, 32 << 10, 2), Cache(2, 1 << 20, 2), Cache(3, 32 << 20, 8))
    assert (found.performance_cores, found.efficiency_cores) == (0, 0)


def test_smt_off(tmp_path: Path) -> None:
    off = detect(fake.x86(tmp_path / "off", cpus=4, smt="0"))
    untold = detect(fake.x86(tmp_path / "untold", cpus=4))
    assert (off.physical_cores, off.logical_cores) == (4, 4)
    assert off.key == untold.key
    assert off.key != detect(fake.x86(tmp_path / "on", cpus=8, threads_per_core=2, smt="1")).key


@pytest.mark.parametrize(
    ("flags", "has", "has_not"),
    [
        ("fpu lm sse sse2", (), ("sse4_2", "avx", "avx2", "fma")),
        (fake.AVX2, ("avx2", "fma", "f16c"), ("avx512f", "avx_vnni")),
        (fake.AVX512, ("avx512f", "avx512bw", "avx512vl", "avx512_vnni"), ("avx512_bf16", "amx_tile")),
        (fake.AMX, ("amx_tile", "amx_int8", "amx_bf16", "avx512_fp16", "avx_vnni"), ("asimd", "sve")),
    ],
)
def test_x86_instruction_sets(tmp_path: Path, flags: str, has: tuple[str, ...], has_not: tuple[str, ...]) -> None:
    isa = detect(fake.x86(tmp_path, flags)).isa
    assert set(has) <= set(isa)
    assert not set(has_not) & set(isa)
    assert "fpu" not in isa  # flags that decide nothing are not identity


def test_qemu_name(tmp_path: Path) -> None:
    found = detect(fake.x86(tmp_path, fake.AVX2, name="QEMU Virtual CPU version 2.5+", vendor="AuthenticAMD", model=6))
    assert found.name == "QEMU Virtual CPU version 2.5+"
    assert (found.vendor, found.model) == ("AMD", "family 6 model 6 stepping 8")


def test_the_key_is_silicon_not_name(tmp_path: Path) -> None:
    one = detect(fake.x86(tmp_path / "1", fake.AVX2, name="AMD EPYC 7B13"))
    other_name = detect(fake.x86(tmp_path / "2", fake.AVX2, name="QEMU Virtual CPU version 2.5+"))
    other_silicon = detect(fake.x86(tmp_path / "3", fake.AVX512, name="AMD EPYC 7B13"))
    assert one.name != other_name.name
    assert one.key == other_name.key
    assert one.name == other_silicon.name
    assert one.key != other_silicon.key


def test_a_masked_flag_that_compilers_emit_is_another_machine(tmp_path: Path) -> None:
    whole = detect(fake.x86(tmp_path / "1", fake.AVX2))
    masked = detect(fake.x86(tmp_path / "2", fake.AVX2.replace("bmi2", "")))
    assert whole.key != masked.key


def test_aarch64_without_model_name(tmp_path: Path) -> None:
    found = detect(fake.arm_server(tmp_path / "known"))
    assert (found.vendor, found.arch, found.name) == ("ARM", "aarch64", "ARM Neoverse-N1")
    assert found.model == "implementer 0x41 part 0xd0c variant 0x3 revision 1"
    assert {"asimd", "asimdhp", "asimddp"} <= set(found.isa)
    later = detect(fake.arm_server(tmp_path / "later", "0xfff", fake.NEON + " sve sve2 i8mm bf16"))
    assert later.name == "ARM 0xfff"
    assert {"sve", "sve2", "i8mm", "bf16"} <= set(later.isa)
    assert found.key != later.key


def test_intel_hybrid(tmp_path: Path) -> None:
    found = detect(fake.intel_hybrid(tmp_path, performance=8, efficiency=16))
    assert (found.performance_cores, found.efficiency_cores) == (8, 16)
    assert (found.physical_cores, found.logical_cores) == (24, 32)


def test_big_little(tmp_path: Path) -> None:
    found = detect(fake.big_little(tmp_path))
    assert (found.performance_cores, found.efficiency_cores) == (2, 4)
    assert found.name == "ARM Cortex-A55 + Cortex-A76"
    assert found.model.count("part") == 2
    assert found.cache_bytes(2) == 512 << 10  # of a fast core, though the slow ones come first


def test_hybrid_by_frequency(tmp_path: Path) -> None:
    def frequencies(name: str, *khz: int) -> HardwareProfile:
        root = fake.x86(tmp_path / name, cpus=len(khz))
        for number, value in enumerate(khz):
            fake.write(root, {f"sys/devices/system/cpu/cpu{number}/cpufreq/cpuinfo_max_freq": str(value)})
        return detect(root)

    mixed = frequencies("mixed", 5_100_000, 5_100_000, 3_500_000, 3_500_000)
    favoured = frequencies("favoured", 5_300_000, 5_000_000, 4_900_000, 4_900_000)
    assert (mixed.performance_cores, mixed.efficiency_cores) == (2, 2)
    assert (favoured.performance_cores, favoured.efficiency_cores) == (0, 0)


def test_offline_cpu_zero(tmp_path: Path) -> None:
    blocks = [fake.x86_block(number, "x", fake.AVX2) for number in (1, 3)]
    found = detect(fake.machine(tmp_path, blocks, [[1], [3]]))
    assert (found.physical_cores, found.logical_cores) == (2, 2)
    assert found.cache_bytes(3) == 32 << 20


def test_memory_only_nodes_do_not_count(tmp_path: Path) -> None:
    root = fake.x86(tmp_path, nodes=4)
    fake.write(root, {"sys/devices/system/node/has_cpu": "0-1"})
    assert detect(root).numa_nodes == 2


def test_container_without_sys(tmp_path: Path) -> None:
    blocks = [
        {**fake.x86_block(number, "x", fake.AVX2), "physical id": "0", "core id": str(number // 2)}
        for number in range(4)
    ]
    root = fake.machine(tmp_path / "full", blocks, [[0, 1], [2, 3]])
    bare = fake.write(tmp_path / "bare", {"proc/cpuinfo": (root / "proc/cpuinfo").read_text()})
    found = detect(bare)
    assert (found.physical_cores, found.logical_cores, found.allowed_cpus) == (2, 4, 4)
    assert (found.caches, found.numa_nodes, found.memory_bytes) == ((), 1, 0)
    assert "avx2" in found.isa


def test_nothing_at_all(tmp_path: Path) -> None:
    found = detect(tmp_path)
    assert (found.kind, found.logical_cores, found.allowed_cpus, found.isa) == ("cpu", 1, 1, ())
    assert found.name == "unknown CPU"
    assert len(found.key) == 32


def test_junk_in_every_file(tmp_path: Path) -> None:
    root = fake.x86(tmp_path, cpus=4)
    for path in [path for path in root.rglob("*") if path.is_file()]:
        path.write_bytes(b"\xff\x00 : :: -1,3-,9-2,x \n\n\n")
    assert detect(root).logical_cores >= 1


def test_each_file_may_be_missing(tmp_path: Path) -> None:
    root = fake.intel_hybrid(tmp_path, 2, 2)
    for path in [path for path in root.rglob("*") if path.is_file()]:
        text = path.read_bytes()
        path.unlink()
        found = detect(root)
        assert found.physical_cores <= found.logical_cores
        path.mkdir()  # and may be something else than a file
        assert detect(root) == found
        path.rmdir()
        path.write_bytes(text)


def test_only_the_first_block_is_read_of_a_large_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = fake.x86(tmp_path, fake.AMX, cpus=256, threads_per_core=2, smt="1")
    marks = []

    def recording(path: str, mark: bytes = b"") -> str:
        marks.append(mark)
        return sysfs.read_until(path, mark)

    monkeypatch.setattr(cpu, "read_until", recording)
    found = detect(root)
    assert (found.physical_cores, found.logical_cores) == (128, 256)
    assert marks == [b"\n\n"]


def test_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    monkeypatch.setattr("platform.processor", lambda: "arm")
    monkeypatch.delattr(os, "sched_getaffinity")
    found = cpu.profile(environ={"SLURM_CPUS_PER_TASK": "1"})
    assert (found.vendor, found.arch, found.allowed_cpus) == ("Apple", "aarch64", 1)
    assert found.isa == ("asimd",)


def test_this_machine_is_read_once() -> None:
    hardware.forget()
    found = hardware.detect()
    assert hardware.detect() is found
    hardware.forget()
    assert hardware.detect() == found
    assert 1 <= found.allowed_cpus <= found.logical_cores
    assert hardware.devices()[0].key == found.key


def test_detection_is_light() -> None:
    code = (
        "import sys; import autotune.types, autotune.settings; before = set(sys.modules)\n"
        "from autotune import hardware; hardware.detect()\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    shown = done.stdout.split()
    assert "autotune.hardware.cpu" in shown
    assert not {"subprocess", "pathlib", "platform", "ctypes", "torch", "numpy", "autotune.kernels"} & set(shown)


@given(st.sets(st.integers(0, 300), max_size=40))
def test_cpu_lists_both_ways(cpus: set[int]) -> None:
    parts: list[str] = []
    for number in sorted(cpus):
        if parts and number - 1 in cpus:
            parts[-1] = f"{parts[-1].partition('-')[0]}-{number}"
        else:
            parts.append(str(number))
    assert sysfs.cpu_list(",".join(parts)) == tuple(sorted(cpus))


@given(st.text("0123456789-, x\n", max_size=30))
def test_cpu_lists_never_raise(text: str) -> None:
    sysfs.cpu_list(text)


# The probe


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def fake_run(monkeypatch: pytest.MonkeyPatch) -> Callable[[probe.Figures | Exception], list[str]]:
    """Replaces the measuring itself; returns the list of the profiles it was asked for."""

    def install(outcome: probe.Figures | Exception) -> list[str]:
        asked: list[str] = []

        def run(profile: HardwareProfile) -> probe.Figures:
            asked.append(profile.key)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        monkeypatch.setattr(probe, "_run", run)
        return asked

    return install


FIGURES = probe.Figures({"f32": 200.0, "f64": 100.0}, 30.0, 28.0)


def test_figures_are_measured_once_and_kept(cache_folder: Path, fake_run: Callable[..., list[str]]) -> None:
    asked = fake_run(FIGURES)
    plain = hardware.detect()
    assert probe.cached(plain) == plain
    measured = probe.measure(plain)
    assert (dict(measured.peak_gflops), measured.bandwidth_gbs) == ({"f32": 200.0, "f64": 100.0}, 30.0)
    assert measured.key == plain.key
    assert probe.cached(plain) == measured == probe.measure(plain)
    assert probe.figures(plain) == FIGURES
    assert len(asked) == 1
    probe.measure(plain, force=True)
    assert len(asked) == 2
    assert hardware.devices()[0] == measured
    assert [path.name for path in (cache_folder / "hardware").iterdir()] == [f"{plain.key}.json"]


def test_measuring_again_keeps_the_better_figures(cache_folder: Path, fake_run: Callable[..., list[str]]) -> None:
    fake_run(FIGURES)
    probe.figures(hardware.detect())
    fake_run(probe.Figures({"f32": 150.0, "f64": 110.0}, 40.0, 20.0))
    expected = probe.Figures({"f32": 200.0, "f64": 110.0}, 40.0, 28.0)
    assert probe.figures(hardware.detect(), force=True) == expected == probe.load(hardware.detect())


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"version": 1}', '{"version": 99}', "\x00\xff", '{"version":1,"profile":"other"}'],
)
def test_a_damaged_file_is_measured_again(cache_folder: Path, fake_run: Callable[..., list[str]], text: str) -> None:
    asked = fake_run(FIGURES)
    profile = hardware.detect()
    fake.write(cache_folder, {f"hardware/{profile.key}.json": text})
    assert probe.cached(profile) == profile
    assert probe.measure(profile).bandwidth_gbs == 30.0
    assert probe.cached(profile).bandwidth_gbs == 30.0
    assert len(asked) == 1


@pytest.mark.parametrize("value", ["-1", "NaN", "Infinity", "0", '"fast"', "null"])
def test_kept_figures_must_be_positive_numbers(
    cache_folder: Path, fake_run: Callable[..., list[str]], value: str
) -> None:
    fake_run(FIGURES)
    profile = hardware.detect()
    probe.measure(profile)
    path = cache_folder / "hardware" / f"{profile.key}.json"
    data = json.loads(path.read_text())
    data["read_gbs"] = "here"
    path.write_text(json.dumps(data).replace('"here"', value))
    assert probe.load(profile) is None


def test_a_folder_that_cannot_be_written_costs_only_the_keeping(
    cache_folder: Path, fake_run: Callable[..., list[str]]
) -> None:
    fake_run(FIGURES)
    cache_folder.write_text("a file where the folder should be")
    assert probe.measure(hardware.detect()).bandwidth_gbs == 30.0


def test_without_a_compiler_there_are_no_figures_and_a_reason(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise Unavailable("no C++ compiler was found")

    monkeypatch.setattr(compiler, "shared_library", refuse)
    profile = hardware.detect()
    assert probe.measure(profile) == profile
    assert probe.figures(profile) == probe.Figures(reason="no C++ compiler was found")
    assert not cache_folder.exists()  # tried again when there is one


def test_another_machine_is_not_probed(cache_folder: Path) -> None:
    other = replace(hardware.detect(), model="family 999")
    assert "only the machine" in probe.figures(other).reason


@pytest.mark.parametrize(
    ("caches", "memory_bytes", "expected"),
    [
        ((), 0, 128 << 20),
        ((Cache(3, 32 << 20, 8),), 64 << 30, 512 << 20),  # four caches in 32 CPUs
        ((Cache(3, 96 << 20, 8),), 64 << 30, 1 << 30),
        ((Cache(2, 1 << 20, 32),), 64 << 30, 64 << 20),
        ((Cache(3, 32 << 20, 8),), 1 << 30, 128 << 20),
    ],
)
def test_bandwidth_buffer(caches: tuple[Cache, ...], memory_bytes: int, expected: int) -> None:
    profile = replace(hardware.detect(), caches=caches, memory_bytes=memory_bytes, logical_cores=32)
    assert probe._buffer_bytes(profile) == expected


@pytest.mark.skipif(compiler.find() is None, reason="no C++ compiler")
def test_the_real_probe(cache_folder: Path) -> None:
    found = probe.figures(hardware.detect())
    assert found.reason == ""
    assert set(found.peak_gflops) == {"f32", "f64"}
    assert min(*found.peak_gflops.values(), found.read_gbs, found.triad_gbs) > 0
    assert probe.load(hardware.detect()) == found


@pytest.mark.skipif(compiler.find() is None, reason="no C++ compiler")
def test_the_real_probe_refuses_what_it_cannot_do(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_ROUNDS", 0)
    found = probe.figures(hardware.detect())
    assert "refused" in found.reason
    assert probe.load(hardware.detect()) is None
