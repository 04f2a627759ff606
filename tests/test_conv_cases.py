"""Situations that broke tools like ours (C8, C9, C11, C13, C14 and their kind), for every algorithm of conv2d."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from autotune import hardware, online, registry
from autotune.kernels import Algorithm
from autotune.ops import relative_error
from autotune.ops.conv2d import LAYOUTS, Conv2d, in_layout
from autotune.types import Config

HERE = hardware.detect()
OP = registry.op("conv2d")


def built(workload: Conv2d, constants: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """(algorithm, kernel) of every algorithm that takes the workload, at its first seed or configuration."""
    for algorithm in registry.algorithms("conv2d"):
        if not algorithm.refusal(workload, HERE):
            params = first(algorithm, workload)
            algorithm.compile(workload, params)
            yield algorithm.name, algorithm.build(workload, params, constants).call


def first(algorithm: Algorithm, workload: Conv2d) -> dict[str, Any]:
    space = algorithm.space(workload, HERE)
    return dict(space.seeds[0]) if space.seeds else next(iter(space))


def test_c8_an_error_in_one_element_of_a_depthwise_f16_layer_is_seen() -> None:
    """Aggregates pass it; per element, two units in the last place of f16 are beyond what rounding explains."""
    w = Conv2d(2, 32, 16, 16, 32, 3, 3, padding=1, groups=32, dtype="f16")
    constants, inputs = OP.constants(w, 0), OP.inputs(w, 0)
    reference, magnitude = OP.reference(w, constants, inputs), OP.magnitude(w, constants, inputs)
    rounded = reference.half()
    assert relative_error(rounded, reference, magnitude) <= OP.tolerance(w)
    position = tuple(int(i) for i in (reference.abs() == reference.abs().max()).nonzero()[0])
    off = rounded.clone()
    off[position] = off[position] * (1 + 8 * 2**-10)
    assert relative_error(off, reference, magnitude) > OP.tolerance(w)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_c8_every_algorithm_is_right_or_refuses_16_bits(dtype: str) -> None:
    w = Conv2d(2, 32, 16, 16, 32, 3, 3, padding=1, groups=32, dtype=dtype, bias=True, activation="relu")
    constants, inputs = OP.constants(w, 0), OP.inputs(w, 0)
    reference, magnitude = OP.reference(w, constants, inputs), OP.magnitude(w, constants, inputs)
    names = []
    for name, call in built(w, constants):
        y = call(*inputs)
        assert y.dtype is inputs[0].dtype
        assert relative_error(y, reference, magnitude) <= registry.algorithm(name).error_bound(w), name
        names.append(name)
    assert "torch" in names, "the default takes them"


def test_c9_what_winograd_cannot_do_is_refused_not_done_another_way() -> None:
    subjects = [a for a in registry.algorithms("conv2d") if a.name.startswith("winograd")]
    for algorithm in subjects:
        for spec in ("dilation=2", "stride=2", "stride=2,1", "groups=4"):
            w = registry.parse_workload(f"conv2d n=1 c=8 h=16 w=16 k=8 r=3 s=3 padding=1 {spec}")
            assert len(algorithm.refusal(w, HERE)) > 10, (algorithm.name, spec)


@pytest.mark.parametrize(("c", "k", "groups"), [(4, 16, 2), (6, 12, 3), (6, 12, 6), (6, 12, 2)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_c11_a_channel_reaches_its_own_group_only(c: int, k: int, groups: int, layout: str) -> None:
    w = Conv2d(1, c, 5, 5, k, 1, 1, groups=groups, layout=layout)
    constants: dict[str, Any] = {"weight": torch.ones(k, c // groups, 1, 1), "bias": None}
    x = torch.zeros(1, c, 5, 5)
    x[:, -1] = 3.0  # the last input channel belongs to the last group
    expected = torch.zeros(1, k, 5, 5)
    expected[:, k - k // groups :] = 3.0
    for name, call in built(w, constants):
        assert torch.equal(call(in_layout(x, layout)), expected), name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_c13_a_weight_in_any_strides(layout: str) -> None:
    w = Conv2d(1, 8, 9, 9, 8, 3, 3, padding=1, layout=layout)
    (x,) = OP.inputs(w, 2)
    wide = torch.randn(8, 8, 6, 6)
    weights = {
        "strided": wide[:, :, ::2, ::2],
        "transposed": torch.randn(8, 8, 3, 3).transpose(0, 1),
        "expanded": torch.randn(1, 8, 3, 3).expand(8, 8, 3, 3),
        "channels_last": in_layout(torch.randn(8, 8, 3, 3), "channels_last"),
        "negated": torch.complex(torch.randn(8, 8, 3, 3), torch.randn(8, 8, 3, 3)).conj().imag,
        "a parameter": torch.nn.Parameter(torch.randn(8, 8, 3, 3)),
    }
    for kind, weight in weights.items():
        constants: dict[str, Any] = {"weight": weight, "bias": None}
        reference = OP.reference(w, {"weight": weight.detach(), "bias": None}, (x,))
        for name, call in built(w, constants):
            y = call(x)
            assert relative_error(y, reference) <= registry.algorithm(name).error_bound(w), (name, kind)
            assert OP.result_problem(w, y) == "", (name, kind)
            assert not y.requires_grad, (name, kind)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_lazily_negated_image_and_residual(layout: str) -> None:
    w = Conv2d(1, 8, 9, 9, 8, 3, 3, padding=1, layout=layout, residual=True)
    constants = OP.constants(w, 3)
    x, residual = (torch.complex(torch.zeros_like(t), in_layout(t, layout)).conj().imag for t in OP.inputs(w, 3))
    assert x.is_neg()
    assert residual.is_neg()
    reference = OP.reference(w, constants, (x, residual))
    for name, call in built(w, constants):
        y = call(x, residual)
        assert relative_error(y, reference) <= registry.algorithm(name).error_bound(w), name
        assert OP.result_problem(w, y) == "", name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_c14_no_images_give_no_results(layout: str) -> None:
    w = Conv2d(0, 4, 6, 6, 8, 3, 3, padding=1, layout=layout, bias=True, activation="relu", residual=True)
    for name, call in built(w, OP.constants(w, 0)):
        assert call(*OP.inputs(w, 0)).shape == (0, 8, 6, 6), name
    answer = online.lookup(w)
    assert answer.config == Config("torch")
    assert answer.reason == "there is nothing to compute"


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("strides", LAYOUTS)
def test_one_channel_is_both_layouts_at_once(layout: str, strides: str, padding: int) -> None:
    """[n, 1, h, w] passes for either layout whatever its strides; the result is to be in the workload's."""
    w = Conv2d(2, 1, 7, 6, 5, 3, 3, padding=padding, layout=layout, bias=True)
    constants = OP.constants(w, 6)
    (x,) = OP.inputs(w, 6)
    steps = (42, 1, 6, 1) if strides == "channels_last" else (42, 42, 6, 1)
    x = x.contiguous().as_strided(x.shape, steps)
    reference = OP.reference(w, constants, (x,))
    for name, call in built(w, constants):
        y = call(x)
        assert relative_error(y, reference) <= registry.algorithm(name).error_bound(w), name
        assert OP.result_problem(w, y) == "", name


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("spec", ["c=8 k=5 r=1 s=1", "c=8 k=5 r=3 s=3 padding=3", "c=8 k=1 r=1 s=1 residual=1"])
def test_an_image_of_one_pixel(spec: str, layout: str) -> None:
    w = registry.parse_workload(f"conv2d n=2 h=1 w=1 {spec} layout={layout}")
    constants, inputs = OP.constants(w, 6), OP.inputs(w, 6)
    reference, magnitude = OP.reference(w, constants, inputs), OP.magnitude(w, constants, inputs)
    assert isinstance(w, Conv2d)
    for name, call in built(w, constants):
        y = call(*inputs)
        assert relative_error(y, reference, magnitude) <= registry.algorithm(name).error_bound(w), name
        assert OP.result_problem(w, y) == "", name


def test_every_refusal_has_a_reason() -> None:
    for spec in ("dtype=i8", "dtype=f64 groups=2", "dilation=3 stride=2", "groups=8 layout=channels_last dtype=f16"):
        w = registry.parse_workload(f"conv2d n=1 c=8 h=16 w=16 k=8 r=3 s=3 padding=1 {spec}")
        for algorithm in registry.algorithms("conv2d"):
            reason = algorithm.refusal(w, HERE)
            assert reason == "" or len(reason) > 10
            assert "\n" not in reason


# What an answer builds


def test_an_answer_builds_the_layer() -> None:
    x, weight, bias = torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4)
    answer = online.lookup(Conv2d.of(x, weight, bias, padding=1, activation="relu"))
    layer = answer.build(weight, bias)
    assert torch.allclose(layer(x), F.relu(F.conv2d(x, weight, bias, padding=1)), atol=1e-5)


def test_the_default_takes_other_images_and_autograd() -> None:
    """It stands in for a tuned kernel whenever that may not be given the input."""
    weight = torch.randn(4, 1, 3, 3)
    for layout in LAYOUTS:
        layer = online.lookup(Conv2d(1, 1, 8, 8, 4, 3, 3, padding=1, layout=layout)).build(weight)
        for shape in ((3, 1, 5, 7), (0, 1, 8, 8), (1, 8, 8)):
            x = torch.randn(shape)
            assert torch.allclose(layer(x), F.conv2d(x, weight, padding=1), atol=1e-5)
        x = torch.randn(1, 1, 8, 8, requires_grad=True)
        layer(x).sum().backward()
        assert x.grad is not None
