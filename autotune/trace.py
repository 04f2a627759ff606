"""A torch model into the workloads that one pass runs, with their counts.

    layers = trace(model.eval(), torch.randn(1, 3, 224, 224))

The model runs once under a dispatch mode, which sees every operator, whatever Python or C++ calls it: `F.linear`,
`x @ weight.T`, `F.scaled_dot_product_attention`. A product with a parameter of the model is `linear`, one of two
computed operands is `gemm`. What this package does not tune is passed over: transposed and 3-D convolutions, integers,
attention under a mask of the model's own, with another scale, or causal with fewer queries than keys.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from autotune.dtypes import TORCH_NAMES
from autotune.errors import InvalidInput
from autotune.ops.attention import Attention
from autotune.ops.conv2d import Conv2d, layout_of
from autotune.ops.embedding_bag import MODES, EmbeddingBag
from autotune.ops.gemm import Gemm
from autotune.ops.layout import classify
from autotune.ops.linear import Linear
from autotune.suites import Layer
from autotune.types import Workload

if TYPE_CHECKING:
    import torch

_SHORT = {f"torch.{name}": short for short, name in TORCH_NAMES.items() if short != "i8"}


def trace(model: torch.nn.Module, example_inputs: Any) -> tuple[Layer, ...]:
    """The distinct workloads of `model(*example_inputs)` in the order they first run, each with its count.

    `example_inputs`: a tensor, a tuple or list of positional arguments, or a mapping of named ones. The model runs in
    inference mode and is to be in `eval()` already: training behaves, and costs, otherwise. A layer is
    named after the module that first runs it. Tensors may be on the `meta` device: shapes are all that counts. Raises
    `InvalidInput` when the model cannot run, is in training mode, or runs nothing that is tuned here.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        raise InvalidInput(f"a model is a torch.nn.Module, not {type(model).__name__}")
    if any(module.training for module in model.modules()):
        raise InvalidInput("the model is in training mode: call model.eval() first")
    positional, named = _arguments(example_inputs)
    found: dict[Workload, list[Any]] = {}
    with torch.inference_mode(), _whole_attention(), _recording(model, found):
        try:
            model(*positional, **named)
        except Exception as error:  # whatever a user's model does
            raise InvalidInput(f"the model does not run: {_told(error)}") from error
    if not found:
        raise InvalidInput("the model runs no linear layer, convolution, matrix product, attention or embedding bag")
    return tuple(Layer(name, workload, count) for workload, (name, count) in found.items())


def load(target: str) -> tuple[Any, Any]:
    """(model, example_inputs) from the function that `module:function` names; the working directory is searched, too.

    Raises `InvalidInput` when there is no such function, or it fails or returns something else.
    """
    import importlib

    module_name, colon, name = target.partition(":")
    if not (module_name and colon and name):
        raise InvalidInput(f"a model is named as module:function, not {target!r}")
    sys.path.insert(0, os.getcwd())
    try:
        function = getattr(importlib.import_module(module_name), name, None)
    except Exception as error:  # whatever a user's module does when it is imported
        raise InvalidInput(f"{module_name} cannot be imported: {_told(error)}") from error
    finally:
        sys.path.remove(os.getcwd())
    if not callable(function):
        raise InvalidInput(f"{module_name} has no function {name}")
    try:
        made = function()
    except Exception as error:
        raise InvalidInput(f"{target} failed: {_told(error)}") from error
    if not isinstance(made, tuple) or len(made) != 2:
        raise InvalidInput(f"{target} must return (model, example_inputs), not {type(made).__name__}")
    return made


def _told(error: Exception) -> str:
    """The error in one line."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:300]}"


def _arguments(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if isinstance(example_inputs, (tuple, list)):
        return tuple(example_inputs), {}
    return (example_inputs,), {}


@contextmanager
def _whole_attention() -> Iterator[None]:
    """Attention modules run their products as operators of their own, not as one opaque one."""
    import torch

    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def _recording(model: torch.nn.Module, found: dict[Workload, list[Any]]) -> Iterator[None]:
    """Counts the workloads that run meanwhile, each under the module that first runs it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    inside: list[str] = []
    constants = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    makers = _makers(constants)

    class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's class is partly untyped
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func not in makers:  # inference mode hands over composite operators whole: look inside
                with self:
                    result = func.decompose(*args, **(kwargs or {}))
                return func(*args, **(kwargs or {})) if result is NotImplemented else result
            result = func(*args, **(kwargs or {}))
            workload = makers[func](*args, **(kwargs or {}))
            if workload is not None and not workload.is_empty:
                name = (inside[-1] if inside else "") or workload.op
                found.setdefault(workload, [name, 0])[1] += 1
            return result

    def leave(*_: Any) -> None:
        inside.pop()

    handles = []
    for path, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(lambda *_, path=path: inside.append(path)))
        handles.append(module.register_forward_hook(leave))
    try:
        with Recorder():  # type: ignore[no-untyped-call]  # likewise
            yield
    finally:
        for handle in handles:
            handle.remove()


def _makers(constants: set[int]) -> dict[Any, Callable[..., Workload | None]]:
    """Operator → what makes its workload from its arguments; None for what is not tuned here.

    `constants`: the storages of the model's parameters and buffers.
    """
    import torch

    aten = torch.ops.aten

    def mm(a: torch.Tensor, b: torch.Tensor) -> Workload | None:
        return _product(a, b, False, constants)

    def addmm(added: torch.Tensor, a: torch.Tensor, b: torch.Tensor, **_: Any) -> Workload | None:
        return _product(a, b, added.dim() == 1, constants)

    def mv(matrix: torch.Tensor, vector: torch.Tensor) -> Workload | None:
        return _product(vector[None], matrix.t(), False, constants)

    return {
        aten.linear.default: _linear,
        aten.convolution.default: _convolution,
        aten.mm.default: mm,
        aten.bmm.default: mm,
        aten.addmm.default: addmm,
        aten.baddbmm.default: addmm,
        aten.mv.default: mv,
        aten.scaled_dot_product_attention.default: _attention,  # one operator, whatever a device makes of it
        aten.embedding_bag.default: _embedding_bag,
        aten.embedding_bag.padding_idx: _embedding_bag,
    }


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Workload | None:
    known = str(x.dtype) in _SHORT and x.dtype == weight.dtype and weight.dim() == 2
    return Linear.of(x, weight, bias) if known else None


def _product(a: torch.Tensor, b: torch.Tensor, bias: bool, constants: set[int]) -> Workload | None:
    """[m, k] by [k, n], or batches of them; `linear` where b is the transpose of a parameter, or a parameter."""
    dtype = _SHORT.get(str(a.dtype))
    if dtype is None or a.dtype != b.dtype:
        return None
    if b.dim() == 2 and b.untyped_storage()._cdata in constants:
        (m, k), n = a.shape, b.shape[1]
        return Linear(m, n, k, dtype, bias, weight_layout=classify(b.t()).value)
    return Gemm.of(a, b)


def _convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    _: list[int],
    groups: int,
) -> Workload | None:
    """The arguments of `aten::convolution`; a convolution over time is one over images of height 1."""
    dtype = _SHORT.get(str(x.dtype))
    if dtype is None or x.dtype != weight.dtype or transposed or x.dim() not in (3, 4):
        return None
    layout = layout_of(x) if x.dim() == 4 else "nchw"
    height = [] if x.dim() == 4 else [1]

    def pair(values: list[int], over_height: int) -> tuple[int, int]:
        both = values if len(values) == 2 else values * 2  # one number stands for all dimensions
        return (both[0], both[1]) if x.dim() == 4 else (over_height, both[1])

    n, c, h, w = [*x.shape[:2], *height, *x.shape[2:]]
    k, _per_group, r, s = [*weight.shape[:2], *height, *weight.shape[2:]]
    strides, padded, dilated = pair(stride, 1), pair(padding, 0), pair(dilation, 1)
    return Conv2d(n, c, h, w, k, r, s, strides, padded, dilated, groups, dtype, layout, bias is not None)


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    scale: float | None = None,
    **_: Any,
) -> Workload | None:
    """torch counts causal positions from the first, we from the last: the same where queries are as many as keys."""
    usual = scale is None or abs(scale * q.shape[-1] ** 0.5 - 1) < 1e-6
    known = str(q.dtype) in _SHORT and q.dtype == k.dtype == v.dtype and q.dim() == k.dim() == 4 and k.shape == v.shape
    if not known or mask is not None or dropout or not usual or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        return None
    if (causal and q.shape[2] != k.shape[2]) or not k.shape[1] or q.shape[1] % k.shape[1]:
        return None
    return Attention.of(q, k, v, causal)


def _embedding_bag(
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    _scaled: bool = False,
    mode: int = 0,
    _sparse: bool = False,
    weights: torch.Tensor | None = None,
    include_last: bool = False,
    padding: int | None = None,
    **_: Any,
) -> Workload | None:
    """torch makes one list of fixed bags, too: fixed are those whose offsets are evenly spaced, or might be."""
    if str(weight.dtype) not in _SHORT or indices.dim() != 1 or (padding is not None and padding >= 0):
        return None
    begins = offsets[:-1] if include_last else offsets
    bags, lookups = len(begins), len(indices)
    even = bags > 0 and lookups % bags == 0
    if even and not offsets.is_meta:
        even = bool((begins.diff() == lookups // bags).all())
    if even:
        return EmbeddingBag.of(weight, indices.view(bags, lookups // bags), None, weights, MODES[mode])
    return EmbeddingBag.of(weight, indices, begins, weights, MODES[mode])
