"""What a process may use: affinity, cgroup v1 and v2, Slurm; the smallest counts (case C34)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from autotune import hardware
from autotune.hardware import limits
from tests import fake_machines as fake

NONE: Mapping[str, str] = {}


def measure(root: Path, affinity: set[int] | None = None, online: int = 16, **environ: str) -> limits.Limits:
    return limits.measure(str(root), environ, affinity, online)


def test_no_limit(tmp_path: Path) -> None:
    found = measure(tmp_path)
    assert found == limits.Limits(online=16)
    assert (found.allowed_cpus, found.decided_by) == (16, "online CPUs")


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("200000 100000", 2),
        ("max 100000", 16),
        ("150000 100000", 1),  # the second thread would be stopped half of the time
        ("390000 100000", 3),
        ("50000 100000", 1),
        ("1000 100000", 1),
        ("400000", 4),
        ("6400000 100000", 16),
        ("", 16),
        ("junk junk", 16),
        ("200000 0", 16),
    ],
)
def test_cpu_max(tmp_path: Path, text: str, allowed: int) -> None:
    found = measure(fake.cgroup_v2(tmp_path, {"cpu.max": text}))
    assert found.allowed_cpus == allowed


def test_v2_enclosing_groups_count(tmp_path: Path) -> None:
    files = {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000", "a/b/c/cpu.max": "500000 100000"}
    files |= {"a/memory.max": str(4 << 30), "a/b/c/memory.max": str(8 << 30)}
    found = measure(fake.cgroup_v2(tmp_path, files, "/a/b/c"))
    assert (found.quota, found.memory_bytes) == (3.0, 4 << 30)
    assert found.decided_by == "cgroup quota"


@pytest.mark.parametrize("path", ["/kubepods.slice/pod1/abc", "/../../other", "/", ""])
def test_v2_container_that_sees_its_own_group_as_the_mount(tmp_path: Path, path: str) -> None:
    files = {"cpu.max": "200000 100000", "memory.max": str(1 << 30), "cpuset.cpus.effective": "0-7"}
    found = measure(fake.cgroup_v2(tmp_path, files, path))
    assert (found.quota, found.memory_bytes, found.cpuset) == (2.0, 1 << 30, 8)


def test_no_proc(tmp_path: Path) -> None:
    fake.write(tmp_path, {"sys/fs/cgroup/cgroup.controllers": "cpu", "sys/fs/cgroup/cpu.max": "200000 100000"})
    assert measure(tmp_path).allowed_cpus == 2
    bare = fake.write(tmp_path / "bare", {"sys/fs/cgroup/cpu.max": "300000 100000"})
    assert measure(bare).allowed_cpus == 3


@pytest.mark.parametrize("folder", ["cpu,cpuacct", "cpu"])
@pytest.mark.parametrize("path", ["/", "/docker/abc"])
def test_v1_quota(tmp_path: Path, folder: str, path: str) -> None:
    files = {f"{folder}/cpu.cfs_quota_us": "250000", f"{folder}/cpu.cfs_period_us": "50000"}
    found = measure(fake.cgroup_v1(tmp_path, files, path))
    assert (found.quota, found.allowed_cpus) == (5.0, 5)


def test_v1_limits_of_the_own_group(tmp_path: Path) -> None:
    files = {
        "cpu,cpuacct/cpu.cfs_quota_us": "-1",
        "cpu,cpuacct/job/cpu.cfs_quota_us": "400000",
        "memory/memory.limit_in_bytes": "9223372036854771712",
        "memory/job/memory.limit_in_bytes": str(2 << 30),
        "cpuset/cpuset.cpus": "0-15",
        "cpuset/job/cpuset.cpus": "4-6,9",
    }
    found = measure(fake.cgroup_v1(tmp_path, files, "/job"))
    assert (found.quota, found.memory_bytes, found.cpuset) == (4.0, 2 << 30, 4)


def test_hybrid_of_v1_and_v2(tmp_path: Path) -> None:
    root = fake.cgroup_v1(tmp_path, {"cpu,cpuacct/cpu.cfs_quota_us": "300000"})
    fake.write(root, {"sys/fs/cgroup/unified/cgroup.procs": "1"})
    assert measure(root).quota == 3.0


def test_the_smallest_of_all_wins(tmp_path: Path) -> None:
    root = fake.cgroup_v2(tmp_path, {"cpu.max": "600000 100000", "cpuset.cpus.effective": "0-6"})
    found = measure(root, {0, 1, 2}, SLURM_CPUS_PER_TASK="5")
    assert found.cpus() == {
        "online CPUs": 16,
        "affinity": 3,
        "cgroup cpuset": 7,
        "cgroup quota": 6,
        "SLURM_CPUS_PER_TASK": 5,
    }
    assert (found.allowed_cpus, found.decided_by) == (3, "affinity")
    assert measure(root, SLURM_CPUS_PER_TASK="5").decided_by == "SLURM_CPUS_PER_TASK"
    assert measure(root, {0, 1, 2}, online=2).allowed_cpus == 2


def test_limits_are_part_of_the_profile(tmp_path: Path) -> None:
    plain = fake.x86(tmp_path / "plain", cpus=8)
    v2 = fake.cgroup_v2(fake.x86(tmp_path / "v2", cpus=8), {"cpu.max": "200000 100000"})
    v1 = fake.cgroup_v1(
        fake.x86(tmp_path / "v1", cpus=8),
        {"cpu,cpuacct/cpu.cfs_quota_us": "200000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
    )
    slurm = {"SLURM_CPUS_PER_TASK": "5"}
    whole = hardware.detect(str(plain), NONE)
    two, also_two = hardware.detect(str(v2), NONE), hardware.detect(str(v1), NONE)
    three = hardware.detect(str(plain), slurm, {0, 1, 2})
    five = hardware.detect(str(plain), slurm)
    assert [p.allowed_cpus for p in (whole, two, also_two, three, five)] == [8, 2, 2, 3, 5]
    assert hardware.detect(str(v2), slurm, {0, 1, 2}).allowed_cpus == 2
    assert len({p.key for p in (whole, two, three, five)}) == 4
    assert two.key == also_two.key  # what allows two CPUs is no matter


def test_memory_limit_is_part_of_the_profile(tmp_path: Path) -> None:
    limited = fake.cgroup_v2(fake.x86(tmp_path / "limited"), {"memory.max": str(2 << 30)})
    generous = fake.cgroup_v2(fake.x86(tmp_path / "generous"), {"memory.max": str(64 << 30)})
    assert hardware.detect(str(limited), NONE).memory_bytes == 2 << 30
    assert hardware.detect(str(generous), NONE).memory_bytes == 16 << 30


@pytest.mark.parametrize("value", ["", "0", "-3", "many", "2.5"])
def test_slurm_junk_is_no_limit(tmp_path: Path, value: str) -> None:
    assert measure(tmp_path, SLURM_CPUS_PER_TASK=value).allowed_cpus == 16


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_the_real_affinity_counts() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert limits.measure().allowed_cpus == 1
    finally:
        os.sched_setaffinity(0, before)
