"""The software identity: complete, and the same whatever has been imported."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata, util
from pathlib import Path

import pytest

from autotune import environment, settings
from autotune.kernels import compiler
from tests import fake_machines as fake

ROOT = Path(__file__).parents[1]
LIBRARIES = [name for name in ("torch", "numpy", "numba") if util.find_spec(name)]


@pytest.fixture(autouse=True)
def fresh() -> None:
    environment.forget()


def in_fresh_process(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.strip()


def test_it_is_found_out_once() -> None:
    found = environment.current()
    assert environment.current() is found
    environment.forget()
    assert environment.current() == found
    assert found.compiler == compiler.identity()
    assert found.system == sys.platform


@pytest.mark.parametrize("library", LIBRARIES)
def test_both_ways_give_the_librarys_own_text(library: str) -> None:
    code = (
        f"import sys; from autotune import environment; unseen = environment.version({library!r})\n"
        f"assert {library!r} not in sys.modules\n"
        f"import {library}; imported = environment.version({library!r})\n"
        f"print(unseen, imported, {library}.__version__)"
    )
    unseen, imported, stated = in_fresh_process(code).split()
    assert unseen == imported == stated


def test_the_identity_does_not_depend_on_what_is_imported() -> None:
    before = in_fresh_process("from autotune import environment; print(environment.current().key)")
    imports = "".join(f"import {name}; " for name in LIBRARIES)
    after = in_fresh_process(f"{imports}from autotune import environment; print(environment.current().key)")
    assert before == after == environment.current().key


def test_it_imports_no_library() -> None:
    code = "import sys; from autotune import environment; environment.current(); print(*sorted(sys.modules))"
    environment.current()  # the compiler is asked for its version once per machine; that needs a subprocess
    modules = set(in_fresh_process(code).split())
    assert not modules & {"torch", "numpy", "numba", "importlib.metadata", "subprocess", "sqlalchemy", "optuna"}


def test_torch_as_installed() -> None:
    if "torch" not in LIBRARIES:
        pytest.skip("torch is not installed")
    found = environment.current()
    assert found.framework.startswith("torch ")
    assert found.framework.removeprefix("torch ").partition("+")[0] == metadata.version("torch").partition("+")[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("__version__ = '2.13.0+cpu'\ndebug = False", "2.13.0+cpu"),
        ("__version__: str = '2.13.0'", "2.13.0"),
        ('version = "2.4.6"\n__version__ = version\nshort_version = version.split("+")[0]', "2.4.6"),
        ("version_json = '''\n{\n \"dirty\": false,\n \"version\": \"0.68.1\"\n}\n'''", "0.68.1"),
        ("version = get()\n", ""),
        ("", ""),
    ],
)
def test_version_files(text: str, expected: str) -> None:
    assert environment._stated_version(text) == expected


def installed(folder: Path, version_file: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A torch of our own in front of the real one."""
    fake.write(folder, {"torch/__init__.py": "raise SystemExit", "torch/version.py": version_file})
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return folder / "torch"


def test_the_torch_that_would_be_imported_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, "__version__ = '9.9.9+cu130'", monkeypatch)
    assert environment.current().framework == "torch 9.9.9+cu130"


def test_a_folder_of_that_name_is_not_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "numba").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "numba", raising=False)
    assert environment.version("numba") == ""


def test_without_any_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in LIBRARIES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    found = environment.current()
    assert (found.framework, found.libraries, found.threads) == ("", (), "")


@pytest.mark.parametrize(
    ("shipped", "expected"),
    [
        ("torch/lib/libgomp.so.1", "gomp"),
        ("torch/lib/libgomp-24e2ab19.so.1.0.0", "gomp"),
        ("torch.libs/libgomp-24e2ab19.so.1.0.0", "gomp"),
        ("torch/lib/libiomp5.so", "iomp5"),
        ("torch/lib/libomp.dylib", "omp"),
        ("torch/lib/libtorch_cpu.so", ""),
    ],
)
def test_thread_runtimes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shipped: str, expected: str) -> None:
    installed(tmp_path, "__version__ = '1'", monkeypatch)
    fake.write(tmp_path, {shipped: ""})
    assert environment.thread_runtime() == expected
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libtcmalloc.so.4:/opt/intel/libiomp5.so")
    assert environment.thread_runtime() == "iomp5"
    assert environment.current().allocator == "libtcmalloc.so.4"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OMP_NUM_THREADS", "3"),
        ("OMP_WAIT_POLICY", "passive"),
        ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1"),
        ("ONEDNN_MAX_CPU_ISA", "AVX2"),
        ("MKL_NUM_THREADS", "1"),
    ],
)
def test_settings_that_change_what_is_fast_are_identity(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.delenv(name, raising=False)
    without = environment.current()
    environment.forget()
    monkeypatch.setenv(name, value)
    assert environment.current().key != without.key


def test_overrides_are_told_as_set() -> None:
    environ = {"MKL_NUM_THREADS": "2", "ATEN_CPU_CAPABILITY": "avx2", "HOME": "/", "MKL_CBWR": ""}
    assert settings.compute_overrides(environ) == ("ATEN_CPU_CAPABILITY=avx2", "MKL_NUM_THREADS=2")


def test_gpu_drivers(tmp_path: Path) -> None:
    assert environment.gpu_driver(str(tmp_path)) == ""
    fake.write(tmp_path, {"sys/module/amdgpu/version": "6.12.12"})
    assert environment.gpu_driver(str(tmp_path)) == "amdgpu 6.12.12"
    text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version: gcc 12.2.0"
    fake.write(tmp_path, {"proc/driver/nvidia/version": text})
    assert environment.gpu_driver(str(tmp_path)) == "nvidia 570.86.15"


def test_the_driver_counts_for_gpus_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "gpu_driver", lambda: "nvidia 570.86.15")
    assert environment.current().driver == ""
    assert environment.current("gpu").driver == "nvidia 570.86.15"


def test_facts_for_people() -> None:
    facts = environment.describe()
    assert facts["python"] == sys.version.split()[0]
    assert facts["revision of tiled"]
    json.dumps(facts)
