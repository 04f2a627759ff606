"""Compiling for GPUs without one: facts, limits, the child's guards, the command. Real compilers, small kernels."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune import registry
from autotune.cli import main
from autotune.errors import InvalidInput, Unavailable
from autotune.hardware import gpu, published
from autotune.hardware.gpu_limits import LIMITS, limits_of
from autotune.kernels import NotApplicable
from autotune.kernels.triton import Launch, Needs, TritonAlgorithm, compiling, exceeded, scalar_class
from autotune.kernels.triton.compiling import CompileLimits, Server, compile_here, facts_of
from autotune.kernels.triton.dot import DotTile, dot_needs
from autotune.kernels.triton.facts import CompileFacts
from autotune.kernels.triton.targets import target_of
from autotune.types import Workload
from tests import interpreted  # noqa: F401 - before triton: other modules of this process interpret kernels

triton = pytest.importorskip("triton")

ALGORITHMS = ("triton_gemm", "triton_conv", "triton_winograd", "triton_flash", "triton_bag")
TILE = {"tile": (64, 64, 32), "warps": 4, "stages": 3, "group": 1}
CASES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("triton_gemm", "linear m=64 n=256 k=256 dtype=f16 bias=1 activation=gelu", {**TILE, "split": 1}),
    ("triton_gemm", "gemm m=1 n=1 k=1 dtype=f32", {**TILE, "tile": (16, 16, 16), "split": 2, "precision": "ieee"}),
    ("triton_conv", "conv2d n=2 c=32 h=14 w=14 k=64 r=3 s=3 layout=channels_last dtype=bf16", {**TILE, "split": 2}),
    ("triton_winograd", "conv2d n=2 c=32 h=14 w=14 k=64 r=3 s=3 bias=1 residual=1 dtype=f16", {**TILE, "m": 4}),
)

SEEDED = (
    "linear m=16 n=4096 k=4096 dtype=bf16",
    "conv2d n=1 c=64 h=56 w=56 k=64 r=3 s=3 dtype=bf16",
    "attention batch=1 heads=32 kv_heads=8 q_len=1 kv_len=2048 head_dim=128 dtype=bf16",
    "attention batch=1 heads=12 kv_heads=12 q_len=197 kv_len=197 head_dim=64",
    "embedding_bag rows=590152 dim=128 bags=2048 pooling=10",
)


@pytest.fixture(scope="module")
def server() -> Any:
    made = Server()
    yield made
    made.close()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "gfx942"])
@pytest.mark.parametrize(("name", "spec", "params"), CASES, ids=[case[0] for case in CASES])
def test_every_kernel_compiles_for_every_kind_of_target(
    name: str, spec: str, params: dict[str, Any], arch: str
) -> None:
    algorithm, workload = _triton(name), registry.parse_workload(spec)
    facts = facts_of(algorithm, workload, params, arch)
    assert [each.problem for each in facts] == [""] * len(algorithm.launches(workload, params))
    for each in facts:
        assert each.verdict == "fits"
        assert (each.arch, each.compiler) == (arch, f"triton {triton.__version__}")
        assert each.code_bytes > 0
        assert 0 < each.registers <= LIMITS[arch].registers_per_thread
        assert 0 < each.occupancy <= 1
    assert algorithm.needs(workload, params, arch).shared_bytes <= max(each.shared_bytes for each in facts)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_seeds_are_within_the_limits_of_every_published_gpu(name: str) -> None:
    for device in published.PUBLISHED:
        for spec in SEEDED:
            workload = registry.parse_workload(spec)
            if workload.op in _triton(name).ops:
                space = _triton(name).space(workload, device.profile)
                assert space.seeds
                assert not any(_triton(name).over_limit(workload, seed, device.profile.arch) for seed in space.seeds)


def test_what_is_compiled_ahead_is_what_a_launch_compiles(tmp_path: Path) -> None:
    """Triton's launcher, asked what it would compile under a driver that only names a GPU, finds ours by its hash."""
    program = f"""
import os, json
os.environ.pop("TRITON_INTERPRET", None)
os.environ["TRITON_CACHE_DIR"] = {str(tmp_path)!r}
import torch, triton
from triton.backends.compiler import GPUTarget
from autotune import registry
from autotune.kernels.triton.running import OPTIONS, function
from autotune.kernels.triton.server import compile_now

class Driver:
    def get_current_device(self): return 0
    def get_current_stream(self, device): return 0
    def get_current_target(self): return GPUTarget("cuda", 90, 32)

triton.runtime.driver.set_active(Driver())
(launch,) = registry.algorithm("triton_gemm").launches(registry.parse_workload({CASES[0][1]!r}), {CASES[0][2]!r})
compile_now(launch.specialized(), "sm_90", {str(tmp_path)!r})
before = set(os.listdir({str(tmp_path)!r}))
arguments = {{name: torch.float16 for name in launch.pointers}} | dict(launch.scalars) | dict(launch.constants)
kernel = function(launch.kernel)
in_order = [arguments[name] for name in kernel.arg_names]
kernel.warmup(*in_order, grid=(1, 1, 1), num_warps=launch.num_warps, num_stages=launch.num_stages, **OPTIONS)
print(json.dumps(sorted(set(os.listdir({str(tmp_path)!r})) - before)))
"""
    import subprocess

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_a_block_that_no_device_holds_is_seen_by_the_formula_and_in_the_facts() -> None:
    algorithm, workload = _triton("triton_gemm"), registry.parse_workload("gemm m=512 n=512 k=512 dtype=f16")
    params = {"tile": (128, 128, 128), "warps": 8, "stages": 4, "group": 1, "split": 1}
    assert "bytes of shared memory" in algorithm.over_limit(workload, params, "sm_90")
    assert not algorithm.space(workload, published.find("h200").profile).contains(params)
    (facts,) = facts_of(algorithm, workload, params, "sm_90")
    assert facts.problem == ""
    assert facts.verdict == f"a block takes {facts.shared_bytes} bytes of shared memory; sm_90 has {227 << 10}"
    assert facts.shared_bytes == algorithm.needs(workload, params, "sm_90").shared_bytes
    assert facts.occupancy == 0


def test_facts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, workload = _triton("triton_gemm"), registry.parse_workload("gemm m=48 n=48 k=48 dtype=f16")
    params = {"tile": (16, 16, 32), "warps": 1, "stages": 2, "group": 1, "split": 1}
    first = facts_of(algorithm, workload, params, "sm_80")

    def fail(*_: Any) -> Any:
        raise AssertionError("compiled again")

    monkeypatch.setattr(Server, "ask", fail)
    assert facts_of(algorithm, workload, params, "sm_80") == first
    other = registry.parse_workload("gemm m=96 n=80 k=112 dtype=f16")
    assert facts_of(algorithm, other, params, "sm_80") == first, "another shape, the same code"
    with pytest.raises(AssertionError):
        facts_of(algorithm, workload, params, "sm_90")


def _launch(**changes: Any) -> Launch:
    (launch,) = _triton("triton_gemm").launches(registry.parse_workload(CASES[0][1]), CASES[0][2])
    values = {name: getattr(launch, name) for name in launch.__match_args__}
    return Launch(**{**values, **changes})


def test_a_compiler_out_of_time_is_a_fact_and_the_next_one_works(server: Server) -> None:
    facts = server.ask(_launch(), "sm_90", CompileLimits(seconds=0.05))
    assert facts.problem == "compiling took more than 0.05 s"
    assert facts.verdict == facts.problem
    assert server.ask(_launch(), "sm_90", CompileLimits()).problem == ""


def test_a_compiler_out_of_memory_is_a_fact_and_the_next_one_works(server: Server) -> None:
    facts = server.ask(_launch(), "sm_90", CompileLimits(memory_bytes=64 << 20))
    assert facts.problem
    assert "\n" not in facts.problem
    assert server.ask(_launch(), "sm_90", CompileLimits()).problem == ""


def test_what_does_not_compile_is_a_fact(server: Server) -> None:
    constants = {**_launch().constants, "BLOCK_K": 3}
    facts = server.ask(_launch(constants=constants), "sm_90", CompileLimits())
    assert facts.problem
    assert facts.over_limit == ""
    missing = server.ask(_launch(kernel="autotune.kernels.triton.gemm_kernel:missing"), "sm_90", CompileLimits())
    assert "missing" in missing.problem


def test_a_killed_server_is_replaced() -> None:
    server = Server()
    assert server.ask(_launch(), "sm_80", CompileLimits()).problem == ""
    assert server._process is not None
    server._process.kill()
    assert server.ask(_launch(), "sm_80", CompileLimits()).problem == ""
    server.close()


def test_here_over_a_limit_is_not_applicable_and_without_a_gpu_nothing_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    algorithm, workload = _triton("triton_gemm"), registry.parse_workload("gemm m=512 n=512 k=512 dtype=f16")
    params = {"tile": (128, 128, 128), "warps": 8, "stages": 4, "group": 1, "split": 1}
    asked = []

    def facts(*_: Any, **options: Any) -> tuple[CompileFacts, ...]:
        asked.append(options)
        return answers.pop()

    answers = [(CompileFacts("sm_90", "triton", 4, problem="no"),), (CompileFacts("sm_90", "triton", 4, 1 << 20),)]
    monkeypatch.setattr(compiling, "facts_of", facts)
    monkeypatch.setattr(compiling, "_arch_here", lambda: "")
    compile_here(algorithm, workload, params)
    assert asked == []
    monkeypatch.setattr(compiling, "_arch_here", lambda: "sm_90")
    with pytest.raises(NotApplicable, match="shared memory"):
        compile_here(algorithm, workload, params)
    with pytest.raises(Unavailable, match="no"):
        compile_here(algorithm, workload, params)
    assert asked == [{"keep": True}] * 2


# Formulas and tables


def test_scalars_are_told_apart_as_by_the_launcher() -> None:
    values = (1, 2, 0, 16, -16, 2**31 - 1, 2**31, 2**31 + 1, 0.5)
    assert [scalar_class(value) for value in values] == [
        "1", "i32", "i32:16", "i32:16", "i32:16", "i32", "i64:16", "i64", "fp32",
    ]  # fmt: skip


def test_wgmma_keeps_every_stage_and_others_one_less() -> None:
    tile = DotTile(128, 128, 64, "bf16")
    step = 2 * 128 * 64 * 2
    assert dot_needs(tile, 4, 3, "sm_90") == Needs(3 * step, 128, 128)
    assert dot_needs(tile, 4, 3, "sm_80").shared_bytes == 2 * step
    assert dot_needs(DotTile(32, 128, 64, "bf16"), 4, 3, "sm_90").shared_bytes == 2 * (32 + 128) * 64 * 2
    unaligned = DotTile(128, 128, 64, "bf16", a_vector=1)
    assert dot_needs(unaligned, 4, 3, "sm_90").shared_bytes == step // 2 + 3 * step // 2


@pytest.mark.parametrize(
    ("needs", "word"),
    [
        (Needs(shared_bytes=227 * 1024 + 1), "shared memory"),
        (Needs(threads=1025), "threads"),
        (Needs(registers=256), "registers"),
        (Needs(threads=1024, registers=65), "registers"),
    ],
)
def test_each_limit_is_named_and_its_edge_is_within(needs: Needs, word: str) -> None:
    assert word in exceeded(needs, "sm_90")
    assert exceeded(Needs(227 * 1024, 1024, 64), "sm_90") == ""
    assert exceeded(needs, "sm_999") == "", "nothing is known of it"


def test_occupancy_is_that_of_the_scarcest() -> None:
    """Worked out by hand with NVIDIA's occupancy rules for compute capability 9.0 and 8.0."""
    assert CompileFacts("sm_90", "", 4, registers=32).blocks_per_sm == 16  # 2048 threads by 128
    assert CompileFacts("sm_90", "", 4, registers=128).blocks_per_sm == 4  # 65536 by 128 · 128
    assert CompileFacts("sm_90", "", 4, registers=129).blocks_per_sm == 3  # given out in eights: 136
    assert CompileFacts("sm_90", "", 8, 100 << 10, 32).blocks_per_sm == 2  # 228 KiB by 101
    assert CompileFacts("sm_80", "", 8, 100 << 10, 32).blocks_per_sm == 1
    assert CompileFacts("sm_80", "", 8, 100 << 10, 32).occupancy == 8 / 64
    assert CompileFacts("gfx942", "", 4, 64 << 10, 64).blocks_per_sm == 1


def test_published_gpus_have_the_keys_of_real_ones() -> None:
    """As NVML shows an H200 (memory in MiB, the reserved part missing)."""
    device = gpu.GpuDevice(0, "GPU-0", "NVIDIA_H200", "sm_90", 132, 143771 << 20, model="pci 10de:2335")
    assert gpu.profile(device).key == published.find("H200").profile.key
    assert len({each.profile.key for each in published.PUBLISHED}) == len(published.PUBLISHED)
    for each in published.PUBLISHED:
        assert each.limits is limits_of(each.profile.arch)
        assert each.source
        assert each.bandwidth_gbs > 0
        assert each.peak_tflops["f16"] > each.peak_tflops["f32"] > 0
        assert each.profile.peak_gflops == {}, "published is not measured"
        assert published.find(each.name.upper().replace("-", "_")) is each


def test_every_architecture_in_the_table_is_a_target() -> None:
    for arch in LIMITS:
        assert target_of(arch).warp_size == LIMITS[arch].warp_size
    with pytest.raises(InvalidInput, match="sm_90"):
        target_of("sm_1")


def test_a_kernels_revision_is_of_its_code_and_only_kernel_files_load_triton(tmp_path: Path) -> None:
    from autotune.kernels.triton import source_revision

    texts = ("x = 1  # one\n", '"""Doc."""\nx   =   1\n', "x = 2\n")
    keys = []
    for index, text in enumerate(texts):
        path = tmp_path / f"{index}.py"
        path.write_text(text)
        keys.append(source_revision(str(path)))
    assert keys[0] == keys[1] != keys[2]
    folder = Path(compiling.__file__).parent
    loading = {path.name for path in folder.glob("*.py") if "\nimport triton" in path.read_text(encoding="utf-8")}
    assert loading == {path.name for path in folder.glob("*_kernel.py")}
    for name in ALGORITHMS:
        assert all(Path(source).is_file() for source in _triton(name).sources)


# The command


def test_the_command_says_what_configs_take(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compile", "--target", "h200", "linear m=16 n=256 k=256", "--dtype", "f16", "--limit", "1"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "linear m=16 n=256 k=256 dtype=f16" in shown
    assert "1 configs for NVIDIA H200 (sm_90, 227 KiB of shared memory per block), by triton" in shown
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (config,) = found["configs"]
    assert (found["target"], config["verdict"], config["algorithm"]) == ("h200", "fits", "triton_gemm")
    assert config["registers"] > 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--target", "h900", "gemm m=8 n=8 k=8"], "unknown GPU 'h900'; there are t4"),
        (["--target", "h200"], "name a workload or a --suite"),
        (["--target", "h200", "--suite", "nothing"], "unknown suite"),
        (["--target", "h200", "gemm m=8 n=8 k=8", "--limit", "0"], "--limit"),
        (["--target", "h200", "gemm m=8 n=8 k=8", "--timeout", "x"], "no duration"),
        (["--target", "h200", "gemm m=8 n=8 k=8 dtype=f64"], "no Triton kernel computes any of these 1 workloads"),
    ],
)
def test_bad_input_is_one_sentence(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", *words]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_without_triton_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(compiling, "_version", lambda: "")
    monkeypatch.setattr(compiling, "missing_reason", lambda: "Triton is not installed: pip install 'autotune[gpu]'")
    assert main(["compile", "--target", "h200", "gemm m=8 n=8 k=8"]) == 2
    assert "Triton is not installed" in capsys.readouterr().err


def _triton(name: str) -> TritonAlgorithm:
    algorithm = registry.algorithm(name)
    assert isinstance(algorithm, TritonAlgorithm)
    return algorithm


def test_a_workload_beyond_32_bits_is_refused() -> None:
    workload: Workload = registry.parse_workload("gemm m=2147483647 n=8 k=8 dtype=f16")
    assert "32 bits" in _triton("triton_gemm").refusal(workload, published.find("h200").profile)
