"""Environment variables, read here and nowhere else."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLES = {
    "AUTOTUNE_DB": "database file or URL used by default",
    "AUTOTUNE_MODEL": "cost model file (default: model.atm beside the database)",
    "AUTOTUNE_SHIPPED": "folder with db/ and models/ to use instead of the shipped ones; an empty folder for none",
    "AUTOTUNE_CACHE": "folder for compiled kernels and probed figures (default ~/.cache/autotune)",
    "AUTOTUNE_CXX": "C++ compiler to use instead of the g++ or clang++ on PATH",
}


def _home() -> str:
    return os.path.expanduser("~")


def cache_dir(environ: Mapping[str, str] = os.environ) -> str:
    """Where compiled kernels and probed figures are kept; may not exist yet."""
    explicit = environ.get("AUTOTUNE_CACHE")
    if explicit:
        return explicit
    return os.path.join(environ.get("XDG_CACHE_HOME") or os.path.join(_home(), ".cache"), "autotune")


def database(environ: Mapping[str, str] = os.environ) -> str:
    """The user's database: a path or a URL; the file may not exist yet."""
    explicit = environ.get("AUTOTUNE_DB")
    if explicit:
        return explicit
    return os.path.join(_data_dir(environ), "tuning.sqlite")


def model(environ: Mapping[str, str] = os.environ) -> str:
    """The user's cost model: what AUTOTUNE_MODEL names, else model.atm beside the database; may not exist."""
    explicit = environ.get("AUTOTUNE_MODEL")
    if explicit:
        return explicit
    where = database(environ)
    path = where.removeprefix("sqlite:///")
    folder = _data_dir(environ) if "://" in path else os.path.dirname(os.path.abspath(path))
    return os.path.join(folder, "model.atm")


def _data_dir(environ: Mapping[str, str]) -> str:
    data = environ.get("XDG_DATA_HOME") or os.path.join(_home(), ".local", "share")
    return os.path.join(data, "autotune")


def shipped(environ: Mapping[str, str] = os.environ) -> str:
    """The folder to take db/ and models/ from instead of this installation's; "" for those."""
    return environ.get("AUTOTUNE_SHIPPED", "")


def compiler(environ: Mapping[str, str] = os.environ) -> str:
    """The compiler asked for, or "" for the first one found."""
    return environ.get("AUTOTUNE_CXX", "")


def thread_policy(environ: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """(OMP_NUM_THREADS, the wait-policy settings) as set; both change what is fast."""
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY")
    policy = " ".join(f"{name}={environ[name]}" for name in names if environ.get(name))
    return environ.get("OMP_NUM_THREADS", ""), policy


def restore_thread_count() -> None:
    """Sets OMP_NUM_THREADS to what the parent process was started with, or unsets it.

    Ray sets it in each of its workers. Left there it would be part of the environment's identity, and no lookup on the
    node would find what was measured. Where the system does not show the parent's variables, it is unset.
    """
    try:
        with open(f"/proc/{os.getppid()}/environ", "rb") as file:
            variables = dict(word.partition(b"=")[::2] for word in file.read().split(b"\0"))
    except OSError:
        variables = {}
    given = variables.get(b"OMP_NUM_THREADS")
    if given is None:
        os.environ.pop("OMP_NUM_THREADS", None)
    else:
        os.environ["OMP_NUM_THREADS"] = os.fsdecode(given)


def allocator(environ: Mapping[str, str] = os.environ) -> str:
    """A preloaded allocator or malloc tunables, as set."""
    names = [n for n in sorted(environ) if n == "GLIBC_TUNABLES" or (n.startswith("MALLOC_") and n.endswith("_"))]
    allocators = [name for name in preloaded(environ) if "malloc" in name]
    return " ".join(allocators + [f"{name}={environ[name]}" for name in names if environ[name]])


def preloaded(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """File names of the libraries in LD_PRELOAD, without their folders, in order."""
    return tuple(os.path.basename(path) for path in environ.get("LD_PRELOAD", "").replace(":", " ").split())


def compute_overrides(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Settings, as set, that make a compute library choose other kernels or another number of threads."""
    names = (
        "ATEN_CPU_CAPABILITY", "DNNL_DEFAULT_FPMATH_MODE", "DNNL_MAX_CPU_ISA", "KMP_AFFINITY", "MKL_CBWR",
        "MKL_DYNAMIC", "MKL_ENABLE_INSTRUCTIONS", "MKL_NUM_THREADS", "NUMBA_CPU_NAME", "NUMBA_NUM_THREADS",
        "NVIDIA_TF32_OVERRIDE", "OMP_DYNAMIC", "OMP_PLACES", "ONEDNN_DEFAULT_FPMATH_MODE", "ONEDNN_MAX_CPU_ISA",
        "OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS",
    )  # fmt: skip
    return tuple(f"{name}={environ[name]}" for name in names if environ.get(name))


def visible_devices(environ: Mapping[str, str] = os.environ) -> str | None:
    """CUDA_VISIBLE_DEVICES; None when unset, which is not the same as empty."""
    return environ.get("CUDA_VISIBLE_DEVICES")


def compiling_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """For a process that compiles Triton kernels: as given, but never interpreting them."""
    return {name: value for name, value in environ.items() if name != "TRITON_INTERPRET"}


def slurm_cpus(environ: Mapping[str, str] = os.environ) -> int | None:
    """CPUs per task that Slurm gave, or None."""
    value = environ.get("SLURM_CPUS_PER_TASK", "")
    return int(value) if value.isdigit() and int(value) > 0 else None
