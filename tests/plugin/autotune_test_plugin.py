"""A package from outside: an op, two algorithms for it, and an algorithm that misbehaves in every way known."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from autotune.kernels import Algorithm, Built, Constants
from autotune.ops import Op
from autotune.space import Params, SearchSpace
from autotune.types import Config, HardwareProfile, Workload


@dataclass(frozen=True, eq=False)
class Scale(Workload):
    """y[n] = factor[n] * x[n]."""

    op: ClassVar[str] = "scale"

    n: int
    dtype: str = "f32"

    @property
    def flops(self) -> int:
        return self.n

    @property
    def bytes(self) -> int:
        return 12 * self.n


class ScaleOp(Op):
    name = "scale"
    workload = Scale
    constant_names = ("factor",)

    def default(self, workload: Workload) -> Config:
        return Config("scale_torch")

    def constants(self, workload: Workload, seed: int) -> dict[str, Any]:
        import torch

        return {"factor": torch.rand(workload.n, generator=torch.Generator().manual_seed(seed)) + 1}

    def inputs(self, workload: Workload, seed: int) -> tuple[Any, ...]:
        import torch

        return (torch.rand(workload.n, generator=torch.Generator().manual_seed(seed)) + 1,)

    def reference(self, workload: Workload, constants: dict[str, Any], inputs: tuple[Any, ...]) -> Any:
        return inputs[0].double() * constants["factor"].double()

    def check_constants(self, workload: Workload, constants: dict[str, Any]) -> None:
        pass

    def acceptor(self, workload: Workload) -> Callable[..., bool]:
        return lambda x: True

    def tolerance(self, workload: Workload) -> float:
        return 1e-6


class ScaleTorch(Algorithm):
    name = "scale_torch"
    ops = ("scale",)
    kinds = ("cpu", "gpu")

    def shape_refusal(self, workload: Workload, hardware: HardwareProfile) -> str:
        return ""

    def space(self, workload: Workload, hardware: HardwareProfile) -> SearchSpace:
        return SearchSpace({})

    def build(self, workload: Workload, params: Params, constants: Constants) -> Built:
        factor = constants["factor"]
        return Built(lambda x: x * factor)


class ScaleByAddition(ScaleTorch):
    name = "scale_twice"

    def space(self, workload: Workload, hardware: HardwareProfile) -> SearchSpace:
        return SearchSpace({"chunks": (1, 2), "pair": ((1, 2), (2, 1))})


def _half(part: int) -> Callable[[Any, Any], Any]:
    shared: dict[int, Any] = {}

    def run(x: Any, factor: Any) -> Any:
        import torch

        out = shared.setdefault(x.numel(), torch.zeros_like(x))
        half = x.numel() // 2
        where = slice(0, half) if part == 0 else slice(half, None)
        out[where] = (x * factor)[where]
        return out

    return run


def _only_half(x: Any, factor: Any) -> Any:
    import torch

    out = torch.empty_like(x)
    out[: x.numel() // 2] = (x * factor)[: x.numel() // 2]
    return out


def _one_wrong(x: Any, factor: Any) -> Any:
    y = x * factor
    y[-1] *= 1.001
    return y


def _eat_memory(x: Any, factor: Any) -> Any:
    hoard = []
    while True:
        hoard.append(x.new_zeros(1 << 26))


def _overwrite(x: Any, factor: Any) -> Any:
    return x.mul_(factor).clone()


def _shared_buffer() -> Callable[[Any, Any], Any]:
    kept: dict[int, Any] = {}

    def run(x: Any, factor: Any) -> Any:
        import torch

        return torch.mul(x, factor, out=kept.setdefault(0, x.new_empty(x.shape)))

    return run


def _loud(x: Any, factor: Any) -> Any:
    print('{"measurement": "a lie on stdout"}')
    sys.stdout.flush()
    return x * factor


def _raise(x: Any, factor: Any) -> Any:
    raise ValueError("no such tile\nand a second line")


def _illegal(x: Any, factor: Any) -> Any:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def _sleep(x: Any, factor: Any) -> Any:
    time.sleep(3600)


WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "good": lambda x, factor: x * factor,
    "segfault": lambda x, factor: ctypes.string_at(0),
    "abort": lambda x, factor: os.abort(),
    "exit": lambda x, factor: os._exit(3),
    "raise": _raise,
    "illegal": _illegal,
    "endless": _sleep,
    "memory": _eat_memory,
    "first_half": _half(0),
    "second_half": _half(1),
    "half_written": _only_half,
    "one_wrong": _one_wrong,
    "overwrites_input": _overwrite,
    "overwrites_weight": lambda x, factor: x * factor.mul_(2),
    "shared_buffer": _shared_buffer(),
    "wrong_shape": lambda x, factor: (x * factor)[:-1],
    "wrong_dtype": lambda x, factor: (x * factor).double(),
    "loud": _loud,
}
BUILD_WAYS = ("build_raises", "build_endless", "compile_raises")


class Misbehaving(ScaleTorch):
    name = "misbehaving"

    def space(self, workload: Workload, hardware: HardwareProfile) -> SearchSpace:
        # only what a sweep may meet; the others are measured by name
        return SearchSpace({"way": ("segfault", "raise", "one_wrong", "build_raises")})

    def compile(self, workload: Workload, params: Params) -> None:
        if params["way"] == "compile_raises":
            raise RuntimeError("internal compiler error")

    def build(self, workload: Workload, params: Params, constants: Constants) -> Built:
        way = str(params["way"])
        if way == "build_raises":
            raise RuntimeError("cannot pack")
        if way == "build_endless":
            time.sleep(3600)
        run = WAYS[way]
        return Built(lambda x: run(x, constants["factor"]))
