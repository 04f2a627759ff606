"""autotune: the fastest correct implementation of each operator on each machine.

`lookup` answers from what was measured; it never tunes, blocks or raises on a valid workload. This module
imports nothing outside the standard library, and most of that only when used.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from autotune.errors import AutotuneError, Incompatible, InvalidInput, Unavailable
    from autotune.hardware import detect
    from autotune.online import lookup, refresh
    from autotune.ops.attention import Attention
    from autotune.ops.conv2d import Conv2d
    from autotune.ops.embedding_bag import EmbeddingBag
    from autotune.ops.gemm import Gemm
    from autotune.ops.linear import Linear
    from autotune.registry import parse_workload
    from autotune.triton_kernels import triton
    from autotune.types import Answer, Config, HardwareProfile, Origin, Status, Workload

_HOMES = {
    "lookup": "autotune.online",
    "refresh": "autotune.online",
    "triton": "autotune.triton_kernels",
    "Linear": "autotune.ops.linear",
    "Gemm": "autotune.ops.gemm",
    "Conv2d": "autotune.ops.conv2d",
    "Attention": "autotune.ops.attention",
    "EmbeddingBag": "autotune.ops.embedding_bag",
    "parse_workload": "autotune.registry",
    "detect": "autotune.hardware",
    "AutotuneError": "autotune.errors",
    "InvalidInput": "autotune.errors",
    "Unavailable": "autotune.errors",
    "Incompatible": "autotune.errors",
    "Answer": "autotune.types",
    "Config": "autotune.types",
    "HardwareProfile": "autotune.types",
    "Origin": "autotune.types",
    "Status": "autotune.types",
    "Workload": "autotune.types",
}

__all__ = [
    "Answer",
    "Attention",
    "AutotuneError",
    "Config",
    "Conv2d",
    "EmbeddingBag",
    "Gemm",
    "HardwareProfile",
    "Incompatible",
    "InvalidInput",
    "Linear",
    "Origin",
    "Status",
    "Unavailable",
    "Workload",
    "detect",
    "lookup",
    "parse_workload",
    "refresh",
    "triton",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'autotune' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value  # found directly the next time
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
