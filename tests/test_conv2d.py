"""The op conv2d: its workloads, what is wrong with one, its operands, and its reference against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from autotune import registry
from autotune.errors import InvalidInput
from autotune.ops.conv2d import ACTIVATIONS, LAYOUTS, Conv2d, in_layout

OP = registry.op("conv2d")


# Workloads


def test_dimensions_of_the_result() -> None:
    w = Conv2d(2, 8, 17, 23, 12, 5, 3, stride=(2, 3), padding=(1, 2, 0, 4), dilation=(1, 2), groups=4)
    y = F.conv2d(F.pad(torch.zeros(2, 8, 17, 23), (0, 4, 1, 2)), torch.zeros(12, 2, 5, 3), None, (2, 3), 0, (1, 2), 4)
    assert (w.n, w.k, w.out_h, w.out_w) == tuple(y.shape)
    assert w.depth == 2 * 5 * 3
    assert w.flops == 2 * y.numel() * w.depth
    assert w.bytes == 4 * (2 * 8 * 17 * 23 + 12 * 2 * 5 * 3 + y.numel())


def test_the_bytes_count_bias_and_residual() -> None:
    plain, both = Conv2d(1, 4, 6, 6, 8, 3, 3), Conv2d(1, 4, 6, 6, 8, 3, 3, bias=True, residual=True)
    assert both.bytes - plain.bytes == 4 * (8 + 8 * 4 * 4)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"groups": 3}, "groups=3 must divide both c=4 and k=6"),
        ({"groups": 4}, "groups=4 must divide both c=4 and k=6"),
        ({"groups": 0}, "groups=0 is out of range"),
        ({"r": 8}, "the filter, 8x3 with its dilation, is larger than the padded image, 7x9"),
        ({"s": 10}, "the filter, 3x10 with its dilation, is larger than the padded image, 7x9"),
        ({"dilation": 4}, "the filter, 9x9 with its dilation, is larger than the padded image, 7x9"),
        ({"h": 0}, "larger than the padded image, 0x9"),
        ({"c": 0}, "c=0 is out of range"),
        ({"k": 0}, "k=0 is out of range"),
        ({"r": 0}, "r=0 is out of range"),
        ({"n": -1}, "n=-1 is out of range"),
        ({"stride": 0}, "stride=0 is out of range"),
        ({"stride": (1, 0)}, "stride=0 is out of range"),
        ({"stride": (1, 2, 3)}, "stride takes one number, or two"),
        ({"stride": 0, "padding": "same"}, "stride=0 is out of range"),
        ({"stride": (1, 2, 3), "padding": "same"}, "stride takes one number, or two"),
        ({"stride": "x", "padding": "same"}, "stride must be a whole number"),
        ({"dilation": 0}, "dilation=0 is out of range"),
        ({"padding": -1}, "padding=-1 is out of range"),
        ({"padding": (1, 2, 3)}, "padding takes one number, two, or four"),
        ({"padding": (0, 0, -1, 0)}, "padding=-1 is out of range"),
        ({"padding": "full"}, "padding='full' must be numbers, same or valid"),
        ({"padding": 1.5}, "padding must be a whole number"),
        ({"activation": "gelu"}, "activation='gelu' is not one of none, relu, relu6, silu, hardswish"),
        ({"layout": "nhwc"}, "layout='nhwc' is not one of nchw, channels_last"),
        ({"dtype": "f8"}, "dtype='f8' is not one of"),
        ({"bias": 2}, "bias must be true or false"),
    ],
)
def test_what_is_wrong_with_a_workload_is_said_in_one_sentence(changed: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"n": 1, "c": 4, "h": 7, "w": 9, "k": 6, "r": 3, "s": 3}
    assert Conv2d(**good).out_h == 5
    with pytest.raises(InvalidInput) as caught:
        Conv2d(**{**good, **changed})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_unusual_but_valid() -> None:
    assert Conv2d(1, 2, 2, 2, 3, 3, 3, padding=5).out_h == 10  # padding larger than the filter
    assert Conv2d(0, 4, 6, 6, 8, 3, 3).is_empty
    assert Conv2d(1, 3, 1, 1, 8, 1, 1).out_h == 1
    assert Conv2d(1, 3, 0, 0, 8, 3, 3, padding=2).out_h == 2  # nothing but padding
    assert Conv2d(1, 4, 9, 9, 4, 3, 3, groups=4).is_depthwise
    assert not Conv2d(1, 1, 9, 9, 4, 3, 3).is_depthwise
    assert Conv2d(1, 4, 9, 9, 4, 1, 1, stride=2).is_pointwise
    assert not Conv2d(1, 4, 9, 9, 4, 1, 1, padding=1).is_pointwise


@pytest.mark.parametrize("size", range(1, 12))
@pytest.mark.parametrize("filter_size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_same_is_torchs_same(size: int, filter_size: int, dilation: int) -> None:
    w = Conv2d(1, 1, size, size + 3, 1, filter_size, 3, padding="same", dilation=dilation)
    x, weight = torch.randn(1, 1, size, size + 3), torch.randn(1, 1, filter_size, 3)
    expected = F.conv2d(x, weight, padding="same", dilation=dilation)
    assert (w.out_h, w.out_w) == (size, size + 3)
    assert torch.allclose(OP.reference(w, {"weight": weight, "bias": None}, (x,)).float(), expected, atol=1e-5)


@pytest.mark.parametrize("size", range(1, 12))
@pytest.mark.parametrize("filter_size", [1, 2, 3, 5])
@pytest.mark.parametrize("stride", [2, 3])
def test_same_with_a_stride_keeps_the_size_over_the_stride(size: int, filter_size: int, stride: int) -> None:
    w = Conv2d(1, 1, size, size, 1, filter_size, filter_size, stride=stride, padding="same")
    top, bottom, left, right = w.sides
    assert w.out_h == w.out_w == -(-size // stride)
    assert (top, bottom) == (left, right)
    assert 0 <= bottom - top <= 1, "an odd pixel goes below"


@pytest.mark.parametrize("stride", [1, 2])
def test_valid_is_no_padding(stride: int) -> None:
    assert Conv2d(1, 1, 9, 9, 1, 3, 3, stride=stride, padding="valid") == Conv2d(1, 1, 9, 9, 1, 3, 3, stride=stride)


def test_the_short_forms_mean_the_long_ones() -> None:
    long = Conv2d(1, 4, 9, 9, 4, 3, 3, stride=(2, 2), padding=(1, 1, 1, 1), dilation=(1, 1))
    for short in (
        Conv2d(1, 4, 9, 9, 4, 3, 3, stride=2, padding=1),
        Conv2d(1, 4, 9, 9, 4, 3, 3, stride=[2, 2], padding=(1, 1)),  # type: ignore[arg-type]  # JSON has lists
        registry.parse_workload("conv2d n=1 c=4 h=9 w=9 k=4 r=3 s=3 stride=2 padding=1,1 dilation=1"),
    ):
        assert short == long
        assert short.key == long.key
        assert hash(short) == hash(long)


@pytest.mark.parametrize(
    "workload",
    [
        Conv2d(1, 4, 9, 9, 4, 3, 3),
        Conv2d(1, 4, 9, 9, 4, 3, 3, stride=(2, 1), padding=(0, 1, 2, 3), dilation=(1, 2), groups=2),
        Conv2d(0, 4, 9, 9, 4, 3, 3, padding=(1, 0), dtype="bf16", layout="channels_last"),
        Conv2d(1, 4, 9, 9, 4, 3, 3, bias=True, activation="hardswish", residual=True),
        Conv2d(1, 4, 9, 8, 4, 2, 4, padding="same"),
    ],
)
def test_a_workload_is_its_spec_and_its_dims(workload: Conv2d) -> None:
    import json

    assert registry.parse_workload(workload.spec) == workload
    assert Conv2d.from_dims(json.loads(json.dumps(workload.dims()))) == workload


def test_a_spec_says_pairs_and_sides_shortly() -> None:
    assert Conv2d(1, 4, 9, 9, 4, 3, 3, stride=(2, 1), padding=2).spec == (
        "conv2d n=1 c=4 h=9 w=9 k=4 r=3 s=3 stride=2,1 padding=2 dtype=f32"
    )
    assert "padding=1,1,0,0" in Conv2d(1, 4, 9, 9, 4, 3, 3, padding=(1, 0)).spec
    assert registry.parse_workload("conv2d n=1 c=4 h=9 w=9 k=4 r=3 s=3 padding=same").dims()["padding"] == (1, 1, 1, 1)


@pytest.mark.parametrize("word", ["stride=a", "stride=1,", "padding=1,x", "padding=samey", "dilation=1.5"])
def test_a_spec_that_is_wrong(word: str) -> None:
    with pytest.raises(InvalidInput, match=word.partition("=")[0]):
        registry.parse_workload(f"conv2d n=1 c=4 h=9 w=9 k=4 r=3 s=3 {word}")


def test_whatever_changes_the_speed_changes_the_key() -> None:
    base: dict[str, Any] = {"n": 1, "c": 4, "h": 9, "w": 8, "k": 8, "r": 3, "s": 2}
    others: list[dict[str, Any]] = [
        {"n": 2}, {"c": 8}, {"h": 8}, {"w": 9}, {"k": 4}, {"r": 2}, {"s": 3}, {"stride": 2}, {"stride": (1, 2)},
        {"stride": (2, 1)}, {"padding": 1}, {"padding": (1, 0)}, {"padding": (0, 1)}, {"padding": (1, 0, 0, 0)},
        {"padding": (0, 0, 0, 1)}, {"dilation": 2}, {"dilation": (1, 2)}, {"groups": 2}, {"groups": 4},
        {"dtype": "f64"}, {"layout": "channels_last"}, {"bias": True}, {"residual": True}, {"activation": "relu"},
        {"activation": "silu"},
    ]  # fmt: skip
    keys = [Conv2d(**{**base, **other}).key for other in ({}, *others)]
    assert len(set(keys)) == len(keys)
    spelled_out: dict[str, Any] = {"stride": 1, "padding": 0, "groups": 1, "layout": "nchw", "bias": False}
    assert Conv2d(**base, **spelled_out).key == keys[0], "a default that is written out changes nothing"


# Workloads of tensors


def test_a_workload_from_tensors() -> None:
    x, weight, bias = torch.randn(2, 8, 10, 12), torch.randn(16, 4, 3, 5), torch.randn(16)
    found = Conv2d.of(x, weight, bias, (2, 1), "same", (1, 2), 2, "relu", torch.zeros(2, 16, 5, 12))
    options = {"stride": (2, 1), "padding": "same", "dilation": (1, 2), "groups": 2}
    assert found == Conv2d(2, 8, 10, 12, 16, 3, 5, **options, bias=True, activation="relu", residual=True)  # type: ignore[arg-type]  # of several types
    assert Conv2d.of(x.bfloat16(), torch.randn(3, 8, 1, 1).bfloat16()) == Conv2d(2, 8, 10, 12, 3, 1, 1, dtype="bf16")


@pytest.mark.parametrize(
    ("x", "layout"),
    [
        (torch.zeros(2, 8, 6, 6), "nchw"),
        (in_layout(torch.zeros(2, 8, 6, 6), "channels_last"), "channels_last"),
        (in_layout(torch.zeros(2, 8, 6, 6), "channels_last")[:, :, 1:, 1:], "channels_last"),
        (in_layout(torch.zeros(2, 8, 6, 6), "channels_last")[:, ::2], "channels_last"),
        (torch.zeros(2, 8, 6, 6)[:, ::2, ::2, ::2], "nchw"),
        (torch.zeros(2, 1, 6, 6), "nchw"),  # both at once
        (torch.zeros(2, 6, 6, 1).permute(0, 3, 1, 2), "nchw"),  # likewise, with the strides of channels_last
        (torch.zeros(2, 8, 1, 1), "nchw"),
        (in_layout(torch.zeros(2, 8, 6, 1), "channels_last"), "channels_last"),
        (torch.zeros(2, 1, 6, 6).expand(2, 8, 6, 6), "nchw"),
        (torch.zeros(0, 8, 6, 6), "nchw"),
    ],
)
def test_the_layout_is_that_of_the_image(x: torch.Tensor, layout: str) -> None:
    assert Conv2d.of(x, torch.zeros(3, x.shape[1], 1, 1)).layout == layout


@pytest.mark.parametrize(
    ("x", "weight", "options", "message"),
    [
        ((2, 8, 6), (4, 8, 3, 3), {}, "conv2d needs x [n, c, h, w]"),
        ((2, 8, 6, 6), (4, 8, 3), {}, "conv2d needs x [n, c, h, w]"),
        ((2, 8, 6, 6), (4, 7, 3, 3), {}, "not [2, 8, 6, 6] and [4, 7, 3, 3] with groups=1"),
        ((2, 8, 6, 6), (4, 8, 3, 3), {"groups": 2}, "with groups=2"),
        ((2, 8, 6, 6), (5, 4, 3, 3), {"groups": 2}, "groups=2 must divide both c=8 and k=5"),
        ((2, 8, 6, 6), (4, 8, 7, 7), {}, "larger than the padded image"),
        ((2, 8, 6, 6), (4, 8, 3, 3), {"bias": torch.zeros(5)}, "a bias of shape [4], not [5]"),
        ((2, 8, 6, 6), (4, 8, 3, 3), {"residual": torch.zeros(2, 4, 6, 6)}, "a residual of shape [2, 4, 4, 4]"),
        ((2, 8, 6, 6), (4, 8, 3, 3), {"activation": "gelu"}, "activation='gelu' is not one of"),
    ],
)
def test_tensors_that_do_not_fit(x: Any, weight: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Conv2d.of(torch.zeros(x), torch.zeros(weight), **options)
    assert message in str(caught.value)


def test_dtypes_that_do_not_fit() -> None:
    x, weight = torch.zeros(1, 2, 3, 3), torch.zeros(2, 2, 1, 1)
    with pytest.raises(InvalidInput, match="one dtype"):
        Conv2d.of(x, weight.double())
    with pytest.raises(InvalidInput, match="one dtype"):
        Conv2d.of(x.to(torch.complex64), weight.to(torch.complex64))


# Operands


@pytest.mark.parametrize("layout", LAYOUTS)
def test_operands_are_laid_out_as_the_workload_says(layout: str) -> None:
    w = Conv2d(2, 8, 6, 5, 12, 3, 3, groups=4, layout=layout, bias=True, residual=True, dtype="bf16")
    constants = OP.constants(w, 1)
    weight, bias = constants["weight"], constants["bias"]
    assert weight is not None
    assert bias is not None
    x, residual = OP.inputs(w, 1)
    assert (tuple(weight.shape), tuple(bias.shape)) == ((12, 2, 3, 3), (12,))
    assert (tuple(x.shape), tuple(residual.shape)) == ((2, 8, 6, 5), (2, 12, 4, 3))
    assert {t.dtype for t in (weight, bias, x, residual)} == {torch.bfloat16}
    assert OP.result_problem(w, x) == OP.result_problem(w, residual) == ""
    other = next(name for name in LAYOUTS if name != layout)
    assert f"is not {layout}" in OP.result_problem(w, in_layout(residual, other))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_reference_is_torch_in_double(activation: str) -> None:
    w = Conv2d(2, 6, 7, 8, 9, 3, 2, 2, (1, 0, 2, 1), (1, 2), 3, bias=True, activation=activation, residual=True)
    constants, (x, residual) = OP.constants(w, 4), OP.inputs(w, 4)
    weight, bias = constants["weight"], constants["bias"]
    assert weight is not None
    assert bias is not None
    y = F.conv2d(F.pad(x.double(), (2, 1, 1, 0)), weight.double(), bias.double(), 2, 0, (1, 2), 3) + residual
    functions = {"none": lambda t: t, "relu": F.relu, "relu6": F.relu6, "silu": F.silu, "hardswish": F.hardswish}
    assert torch.equal(OP.reference(w, constants, (x, residual)), functions[activation](y))


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({}, "needs a weight of shape [4, 2, 3, 3], not NoneType"),
        ({"weight": torch.zeros(4, 4, 3, 3)}, "not [4, 4, 3, 3]"),
        ({"weight": torch.zeros(4, 2, 3, 3).double()}, "needs a f32 weight"),
        ({"weight": torch.zeros(4, 2, 3, 3)}, "needs a bias"),
        ({"weight": torch.zeros(4, 2, 3, 3), "bias": torch.zeros(3)}, "bias of shape [4]"),
        ({"weight": torch.zeros(4, 2, 3, 3), "bias": torch.zeros(4).double()}, "needs a f32 bias"),
        ({"weight": torch.zeros(4, 2, 3, 3, device="meta"), "bias": torch.zeros(4)}, "its weight is on meta"),
    ],
)
def test_constants_that_do_not_fit(constants: dict[str, Any], message: str) -> None:
    w = Conv2d(1, 4, 6, 6, 4, 3, 3, groups=2, bias=True)
    with pytest.raises(InvalidInput) as caught:
        OP.check_constants(w, constants)
    assert message in str(caught.value)


def test_a_bias_nobody_asked_for() -> None:
    with pytest.raises(InvalidInput, match="has no bias"):
        OP.check_constants(Conv2d(1, 2, 3, 3, 2, 1, 1), {"weight": torch.zeros(2, 2, 1, 1), "bias": torch.zeros(2)})


def test_what_a_tuned_kernel_may_be_given() -> None:
    w = Conv2d(2, 4, 6, 6, 8, 3, 3, residual=True)
    accepts = OP.acceptor(w)
    x, residual = OP.inputs(w, 0)
    assert accepts(x, residual)
    assert accepts(in_layout(x, "channels_last"), residual)
    assert not accepts(x)
    assert not accepts(x[:1], residual)
    assert not accepts(x, residual[:, :, :1])
    assert not accepts(x.double(), residual)
    assert not accepts(x.clone().requires_grad_(), residual)
