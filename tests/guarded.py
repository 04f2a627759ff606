"""Runs a convolution kernel of ours on operands that end and begin at pages no one may touch.

python -m tests.guarded ALGORITHM LAYOUT: dies of a signal where the kernel reads or writes outside its operands.
"""

from __future__ import annotations

import ctypes
import importlib
import mmap
import sys
from dataclasses import replace
from random import Random
from typing import Any

import torch

from autotune import hardware, registry
from autotune.kernels import compiler, own_conv
from autotune.ops import relative_error
from autotune.ops.conv2d import Conv2d

PAGE = mmap.PAGESIZE
SHAPES = (
    "c=8 h=7 w=7 k=8 r=3 s=3 padding=1",
    "c=8 h=14 w=14 k=8 r=3 s=3 padding=1 stride=2",
    "c=3 h=31 w=29 k=3 r=5 s=5 padding=2,0,4,1",
    "c=16 h=13 w=29 k=16 r=1 s=1",
    "c=5 h=4 w=5 k=5 r=1 s=1 stride=3",
    "c=2 h=1 w=1 k=2 r=3 s=3 padding=1",
    "c=2 h=2 w=3 k=2 r=3 s=3 padding=6",
    "c=6 h=9 w=9 k=6 r=3 s=2 dilation=2,3",
)
MAPPINGS: list[mmap.mmap] = []


def between_guards(size_bytes: int, at_end: bool) -> int:
    """Address of `size_bytes` bytes that touch a forbidden page after them, or before them."""
    pages = -(-size_bytes // PAGE) * PAGE
    region = mmap.mmap(-1, pages + 2 * PAGE)
    MAPPINGS.append(region)
    start = ctypes.addressof(ctypes.c_char.from_buffer(region))
    libc = ctypes.CDLL(None, use_errno=True)
    for guard in (start, start + PAGE + pages):
        assert libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(PAGE), 0) == 0
    return start + PAGE + (pages - size_bytes if at_end else 0)


def copy_of(tensor: torch.Tensor, at_end: bool) -> int:
    address = between_guards(tensor.nbytes, at_end)
    ctypes.memmove(address, tensor.data_ptr(), tensor.nbytes)
    return address


def run(algorithm: str, workload: Conv2d, params: dict[str, Any], at_end: bool) -> None:
    module: Any = importlib.import_module(f"autotune.kernels.{algorithm}")
    op, subject = registry.op("conv2d"), registry.algorithm(algorithm)
    constants, (x, residual) = op.constants(workload, 1), op.inputs(workload, 1)
    call: Any = subject.build(workload, params, constants).call
    library = own_conv.load(compiler.shared_library(module.SOURCE, module._defines(workload, params)))
    y = torch.empty_like(residual)
    result = between_guards(y.nbytes, at_end)
    plan = ctypes.addressof(call._keep[0])
    assert library.convolve(plan, copy_of(x, at_end), copy_of(residual, at_end), result) == 0
    ctypes.memmove(y.data_ptr(), result, y.nbytes)
    reference = op.reference(workload, constants, (x, residual))
    assert relative_error(y, reference, 1.0) < 1e-5, (workload.spec, params)


def main(algorithm: str, layout: str) -> None:
    for shape in SHAPES:
        workload = registry.parse_workload(f"conv2d n=2 {shape} residual=1 bias=1 layout={layout}")
        assert isinstance(workload, Conv2d)
        if algorithm == "depthwise":
            workload = replace(workload, groups=workload.c)
        space = registry.algorithm(algorithm).space(workload, hardware.detect())
        drawn = space.sample(Random(shape))
        assert drawn is not None
        for params in (dict(space.seeds[0]), drawn):
            for at_end in (True, False):
                run(algorithm, workload, params, at_end)


if __name__ == "__main__":
    main(*sys.argv[1:])
