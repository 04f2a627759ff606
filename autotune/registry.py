"""One map of everything that can be added: ops, algorithms, devices and formats, built in or from outside.

Another package adds its own through entry points, without touching this one:

    [project.entry-points."autotune.ops"]
    my_op = "my_package:MyOp"

    [project.entry-points."autotune.algorithms"]
    my_algorithm = "my_package:MyAlgorithm"

    [project.entry-points."autotune.devices"]
    my_device = "my_package:MyBackend"

    [project.entry-points."autotune.formats"]
    my_format = "my_package:MyFormat"
"""

from __future__ import annotations

import importlib
from functools import cache

from autotune.errors import InvalidInput, Unavailable
from autotune.noun import fields
from autotune.types import Workload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from autotune.devices import Backend
    from autotune.formats import Format
    from autotune.kernels import Algorithm
    from autotune.ops import Op

BUILT_IN: dict[str, dict[str, str]] = {
    "ops": {
        "linear": "autotune.ops.linear:LinearOp",
        "gemm": "autotune.ops.gemm:GemmOp",
        "conv2d": "autotune.ops.conv2d:Conv2dOp",
        "attention": "autotune.ops.attention:AttentionOp",
        "embedding_bag": "autotune.ops.embedding_bag:EmbeddingBagOp",
    },
    "algorithms": {
        "torch": "autotune.kernels.framework:Framework",
        "onednn_packed": "autotune.kernels.onednn:OneDnnPacked",
        "mkl_packed": "autotune.kernels.mkl:MklPacked",
        "openblas": "autotune.kernels.openblas:OpenBlas",
        "fbgemm_int8": "autotune.kernels.fbgemm:FbgemmInt8",
        "tiled": "autotune.kernels.tiled:Tiled",
        "numba_tiled": "autotune.kernels.numba_tiled:NumbaTiled",
        "winograd": "autotune.kernels.winograd:Winograd",
        "torch_other_layout": "autotune.kernels.conv_layout:TorchOtherLayout",
        "onednn_conv": "autotune.kernels.onednn_conv:OneDnnConv",
        "nnpack": "autotune.kernels.nnpack:NnPack",
        "unfold_mm": "autotune.kernels.unfold_mm:UnfoldMm",
        "implicit_gemm": "autotune.kernels.implicit_gemm:ImplicitGemm",
        "depthwise": "autotune.kernels.depthwise:Depthwise",
        "direct": "autotune.kernels.direct:Direct",
        "sdpa": "autotune.kernels.sdpa:Sdpa",
        "matmul_attention": "autotune.kernels.matmul_attention:MatmulAttention",
        "stream_kv": "autotune.kernels.stream_kv:StreamKv",
        "gather_reduce": "autotune.kernels.gather_reduce:GatherReduce",
        "fused_bag": "autotune.kernels.fused_bag:FusedBag",
        "triton_gemm": "autotune.kernels.triton.gemm:TritonGemm",
        "triton_conv": "autotune.kernels.triton.conv:TritonConv",
        "triton_winograd": "autotune.kernels.triton.winograd:TritonWinograd",
        "triton_flash": "autotune.kernels.triton.flash:TritonFlash",
        "triton_bag": "autotune.kernels.triton.bag:TritonBag",
    },
    "devices": {
        "cpu": "autotune.devices.cpu:CpuBackend",
        "cuda": "autotune.devices.cuda:CudaBackend",
    },
    "formats": {
        "miopen-find-db": "autotune.formats.miopen_import:FindDb",
        "kernel-tuner-cache": "autotune.formats.kernel_tuner:Cache",
        "kernel-tuner-t4": "autotune.formats.kernel_tuner:T4",
        "kernel-table": "autotune.formats.kernel_table:KernelTable",
        "tunableop": "autotune.formats.tunableop:TunableOp",
    },
}


@cache
def _entry_points(group: str) -> dict[str, str]:
    from importlib.metadata import entry_points  # slow to import: only for names that are not built in

    return {point.name: point.value for point in entry_points(group=f"autotune.{group}")}


def names(group: str) -> tuple[str, ...]:
    """All names of "ops", "algorithms", "devices" or "formats", built-in ones first."""
    return (*BUILT_IN[group], *(name for name in sorted(_entry_points(group)) if name not in BUILT_IN[group]))


@cache
def _load(group: str, name: str) -> Any:
    target = BUILT_IN[group].get(name) or _entry_points(group).get(name)
    if target is None:
        raise InvalidInput(f"unknown {group.removesuffix('s')} {name!r}; there are {', '.join(names(group))}")
    module, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)()
    except Exception as error:  # whatever another package does when it is loaded
        raise Unavailable(f"{group.removesuffix('s')} {name!r} ({target}) cannot be loaded: {error}") from error


def forget() -> None:
    """Looks entry points up anew: packages were installed or removed while this process runs."""
    _entry_points.cache_clear()
    _load.cache_clear()


def op(name: str) -> Op:
    """The op of that name. Raises `InvalidInput` for an unknown one, `Unavailable` if its package does not load."""
    return _load("ops", name)  # type: ignore[no-any-return]  # loaded by name


def algorithm(name: str) -> Algorithm:
    """The algorithm of that name. Raises `InvalidInput` or `Unavailable` like `op`."""
    return _load("algorithms", name)  # type: ignore[no-any-return]  # loaded by name


def device(placement: str) -> Backend:
    """The devices of that placement, such as "cpu" or "cuda". Raises `InvalidInput` or `Unavailable` like `op`."""
    return _load("devices", placement)  # type: ignore[no-any-return]  # loaded by name


def format(name: str) -> Format:
    """The external format of that name. Raises `InvalidInput` or `Unavailable` like `op`."""
    return _load("formats", name)  # type: ignore[no-any-return]  # loaded by name


def workload_kind(name: str) -> type[Workload]:
    """The class of an op's workloads, or of a kind that only other tools' results are of. Raises like `op`."""
    if name not in BUILT_IN["ops"] and name not in _entry_points("ops"):
        for other in names("formats"):
            try:
                kinds = format(other).workloads
            except Unavailable:
                continue
            for kind in kinds:
                if kind.op == name:
                    return kind
    return op(name).workload


def algorithms(op_name: str) -> Iterator[Algorithm]:
    """Every algorithm that computes that op; ones that do not load are passed over."""
    for name in names("algorithms"):
        try:
            candidate = algorithm(name)
        except Unavailable:
            continue
        if op_name in candidate.ops:
            yield candidate


def parse_workload(spec: str) -> Workload:
    """The workload of a spec string such as `linear m=1 n=4096 k=1024 dtype=f32`. Raises `InvalidInput`."""
    words = spec.split()
    if not words:
        raise InvalidInput("a workload is written like: linear m=1 n=4096 k=1024 dtype=f32")
    kind = workload_kind(words[0])
    dims: dict[str, Any] = {}
    types = {item.name: item.type for item in fields(kind)}
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if not equals or name in dims:
            raise InvalidInput(f"{word!r} in {spec!r} is {'given twice' if equals else 'not name=value'}")
        dims[name] = _parse_value(name, value, types.get(name, "str"))
    return kind.from_dims(dims)


def _parse_value(name: str, value: str, kind: str) -> Any:
    if kind == "bool":
        lowered = value.lower()
        if lowered not in ("0", "1", "true", "false"):
            raise InvalidInput(f"{name}={value} must be 0 or 1")
        return lowered in ("1", "true")
    if kind in ("int", "Pair", "Sides"):
        parts = value.split(",") if kind != "int" else [value]
        try:
            numbers = tuple(int(part) for part in parts)
        except ValueError:
            if kind == "Sides" and value.isalpha():
                return value  # "same" or "valid": the op resolves it
            raise InvalidInput(f"{name}={value} must be a whole number") from None
        return numbers[0] if len(numbers) == 1 else numbers
    return value
