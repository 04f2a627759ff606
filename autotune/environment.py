"""The software identity of this process: which libraries compute, which compiler, which thread runtime.

Read without importing any of them: a library that is not imported yet is found where an import would find it,
and its version file is read. Both ways give the same text, so the key does not depend on what is imported first.
"""

from __future__ import annotations

import os
import sys

from autotune import settings
from autotune.types import Environment

_VERSION_FILES = {"torch": "version.py", "numpy": "version.py", "numba": "_version.py", "triton": "__init__.py"}

_current: dict[str, Environment] = {}


def current(kind: str = "cpu") -> Environment:
    """The environment for devices of that kind ("cpu" or "gpu"); found out once per process, never raises.

    The GPU driver counts only where a GPU computes: updating it does not age what was measured on the CPU.
    """
    found = _current.get(kind)
    if found is None:
        found = _current[kind] = _read(kind)
    return found


def forget() -> None:
    """Makes the next `current()` read again: environment variables or packages have changed."""
    _current.clear()


def _read(kind: str) -> Environment:
    from autotune.kernels import compiler

    torch = version("torch")
    others = [f"{name} {found}" for name in ("numpy", "numba") if (found := version(name))]
    num_threads, wait_policy = settings.thread_policy()
    return Environment(
        framework=f"torch {torch}" if torch else "",
        libraries=(*others, *settings.compute_overrides()),
        compiler=compiler.identity(),
        driver=gpu_driver() if kind == "gpu" else "",
        threads=thread_runtime(),
        num_threads=num_threads,
        wait_policy=wait_policy,
        allocator=settings.allocator(),
        system=sys.platform,
    )


def version(library: str) -> str:
    """Version text of torch, numpy, numba or triton as the library itself states it; "" when it is not installed."""
    module = sys.modules.get(library)
    told = getattr(module, "__version__", None)  # not there while the module is still being imported
    if told:
        return str(told)
    folder = package_folder(library)
    if not folder:
        return ""
    try:
        with open(os.path.join(folder, _VERSION_FILES[library]), encoding="utf-8") as file:
            told = _stated_version(file.read())
    except OSError:
        told = ""
    return told or _metadata_version(library)


def package_folder(package: str) -> str:
    """The folder this top-level package was, or would be, imported from; "" without one. Imports nothing."""
    file: str | None = getattr(sys.modules.get(package), "__file__", None)
    if file:
        return os.path.dirname(file)
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(package, None)
        except Exception:  # another package's import hook; import would fail as well
            continue
        if spec is not None:
            return os.path.dirname(spec.origin) if spec.has_location and spec.origin else ""
    return ""


def _stated_version(text: str) -> str:
    """The quoted value of `__version__`, else of `version`, in Python or JSON: 'x = "1.2"', '"x": "1.2"'."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if not equals:
            name, _, value = line.partition(":")
        name = name.partition(":")[0].strip().strip("\"'")
        quoted = value.strip().rstrip(",")
        if name in ("__version__", "version") and quoted[:1] in ('"', "'") and quoted[-1:] == quoted[:1]:
            found.setdefault(name, quoted[1:-1])
    return found.get("__version__") or found.get("version") or ""


def _metadata_version(library: str) -> str:
    from importlib import metadata  # 20 ms: only for a version file of a form never seen

    try:
        return str(metadata.version(library))
    except metadata.PackageNotFoundError:
        return ""


def thread_runtime() -> str:
    """The OpenMP runtime that torch computes with: "gomp", "iomp5", "omp", or "" where it cannot be told.

    A preloaded one comes before the one that torch ships.
    """
    for name in settings.preloaded():
        runtime = _runtime_of(name)
        if runtime:
            return runtime
    folder = package_folder("torch")
    if folder:
        for libraries in (f"{folder}.libs", os.path.join(folder, "lib")):
            try:
                shipped = sorted(os.listdir(libraries))
            except OSError:
                continue
            for name in shipped:
                runtime = _runtime_of(name)
                if runtime:
                    return runtime
    return ""


def _runtime_of(file_name: str) -> str:
    for runtime in ("gomp", "iomp5", "omp"):
        if file_name.startswith((f"lib{runtime}.", f"lib{runtime}-")):
            return runtime
    return ""


def gpu_driver(root: str = "/") -> str:
    """The GPU's kernel driver, such as "nvidia 570.86.15" or "amdgpu 6.12.12"; "" without one."""
    from autotune.hardware.sysfs import read

    prefix = root.rstrip("/")
    for line in read(f"{prefix}/proc/driver/nvidia/version").splitlines():
        for word in line.split():
            if word[:1].isdigit() and word.count(".") in (1, 2) and word.replace(".", "").isdigit():
                return f"nvidia {word}"
    amd = read(f"{prefix}/sys/module/amdgpu/version")
    return f"amdgpu {amd}" if amd else ""


def describe() -> dict[str, str]:
    """More about the software, for people; no part of any identity. Imports torch if it is installed: slow."""
    import platform

    facts = {"python": platform.python_version(), "platform": platform.platform()}
    facts.update(_torch_facts())
    from autotune import registry
    from autotune.errors import Unavailable

    for name in registry.names("algorithms"):
        try:
            facts[f"revision of {name}"] = registry.algorithm(name).revision()
        except Unavailable as error:
            facts[f"revision of {name}"] = str(error)
    return facts


def _torch_facts() -> dict[str, str]:
    try:
        import torch
    except Exception as error:  # absent, or broken in any way a binary package can be
        return {"torch": f"cannot be imported: {error}"}
    facts = {"torch threads": str(torch.get_num_threads())}
    for line in torch.__config__.show().splitlines():
        text = line.strip(" -")
        if "Math Kernel Library" in text:
            facts["MKL"] = text
        elif "MKL-DNN" in text or text.startswith("oneDNN"):
            facts["oneDNN"] = text
        elif text.startswith("OpenMP"):
            facts["OpenMP"] = text
        elif text.startswith("CPU capability usage:"):
            facts["torch CPU capability"] = text.partition(":")[2].strip()
        elif text.startswith("Build settings:"):
            facts["BLAS"] = text.partition("BLAS_INFO=")[2].partition(",")[0]
    return {name: value for name, value in facts.items() if value}
