"""The OpenMP thread pool that torch already runs, by address.

Kernels of ours call GOMP_parallel through a pointer into the very libgomp that torch loaded: one pool of
threads, no second set spinning beside it, and nothing to link against.
"""

from __future__ import annotations

import ctypes
from functools import cache


@cache
def _runtime() -> ctypes.CDLL | None:
    import torch  # noqa: F401 - loads its OpenMP runtime

    try:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            paths = [line.split(maxsplit=5)[5].strip() for line in maps if "libgomp" in line]
        return ctypes.CDLL(paths[0]) if paths else None
    except (OSError, IndexError):
        return None


def symbol_address(name: str) -> int:
    """Address of a function of torch's libgomp; 0 when torch runs on another thread runtime."""
    runtime = _runtime()
    function = getattr(runtime, name, None) if runtime is not None else None
    return ctypes.cast(function, ctypes.c_void_p).value or 0 if function is not None else 0


def parallel_address() -> int:
    """Address of GOMP_parallel(fn, data, threads, flags); 0 when there is none."""
    return symbol_address("GOMP_parallel")
