"""From a `Launch` to a call: loads the kernel function and fixes what the config fixes."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from autotune.errors import Unavailable
from autotune.kernels import NotApplicable
from autotune.kernels.triton import missing_reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from autotune.kernels.triton import Launch

OPTIONS = {"enable_fp_fusion": True}
"""Compiler options of every launch: Triton's default for this one changes from version to version."""


@cache
def function(kernel: str) -> Any:
    """The jitted function named "module:function"; loads triton. Raises `Unavailable` without it."""
    module, _, name = kernel.partition(":")
    try:
        return getattr(import_module(module), name)
    except ImportError as error:
        raise Unavailable(missing_reason() or f"the kernels in {module} do not load: {error}") from error


def bind(launch: Launch) -> Callable[..., None]:
    """run(blocks, **arguments): launches that many blocks with the launch's constants, warps and stages.

    Arguments are the tensors and the scalars by name; 0 blocks launch nothing, as there is nothing to compute.
    Raises `NotApplicable` where the device has not what a block takes.
    """
    import torch

    kernel = function(launch.kernel)
    from triton import OutOfResources

    fixed = {**launch.constants, "num_warps": launch.num_warps, "num_stages": launch.num_stages, **OPTIONS}
    first = next(iter(launch.pointers))

    def run(blocks: int, **arguments: Any) -> None:
        if not blocks:
            return
        device = arguments[first].device
        try:
            if device.type == "cuda" and device.index != torch.cuda.current_device():
                with torch.cuda.device(device):  # Triton launches on the current device, wherever the operands are
                    kernel[(blocks, 1, 1)](**arguments, **fixed)
            else:
                kernel[(blocks, 1, 1)](**arguments, **fixed)
        except OutOfResources as error:
            raise NotApplicable(str(error)) from error

    return run
