"""The convolutions of other people's libraries, against the contract of all conv2d algorithms."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from autotune import hardware, registry
from autotune.kernels import framework_conv, nnpack, onednn_conv, unfold_mm
from autotune.ops import relative_error
from autotune.ops.conv2d import LAYOUTS, Conv2d, in_layout
from tests.conv_contract import ConvContract

HERE = hardware.detect()
OP = registry.op("conv2d")
NAN = float("nan")


class TestFramework(ConvContract):
    algorithm = "torch"

    def test_the_default_has_no_parameters_and_is_not_in_the_space(self) -> None:
        workload = Conv2d(1, 4, 6, 6, 8, 3, 3)
        config = OP.default(workload)
        assert (config.algorithm, dict(config.params)) == ("torch", {})
        if HERE.allowed_cpus > 1:
            space = self.subject.space(workload, HERE)
            assert not space.contains(config.params)
            assert all(params["threads"] != HERE.allowed_cpus for params in space)

    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16"])
    def test_the_default_is_what_torch_computes(self, layout: str, dtype: str) -> None:
        workload = Conv2d(2, 4, 6, 6, 8, 3, 3, padding=1, layout=layout, dtype=dtype, bias=True, activation="relu")
        constants, (x,) = OP.constants(workload, 1), OP.inputs(workload, 1)
        weight, bias = constants["weight"], constants["bias"]
        assert weight is not None
        y = self.subject.build(workload, {}, constants).call(x)
        assert torch.equal(y, torch.relu(torch.nn.functional.conv2d(x, weight, bias, padding=1)))

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_a_weight_in_the_other_layout_does_not_turn_the_result_around(self, layout: str) -> None:
        workload = Conv2d(1, 4, 6, 6, 8, 3, 3, layout=layout)
        for other in LAYOUTS:
            weight = in_layout(torch.randn(8, 4, 3, 3), other)
            built = self.subject.build(workload, {}, {"weight": weight, "bias": None})
            assert OP.result_problem(workload, built.call(*OP.inputs(workload, 0))) == ""
            assert built.workspace_bytes == (weight.numel() * 4 if (layout, other) == LAYOUTS else 0)


class TestTorchOtherLayout(ConvContract):
    algorithm = "torch_other_layout"

    def test_its_workspace_is_the_weight_and_both_images_in_the_other_layout(self) -> None:
        workload = Conv2d(2, 4, 6, 6, 8, 3, 3)
        built = self.subject.build(workload, {"threads": 1}, OP.constants(workload, 0))
        assert built.workspace_bytes == 4 * (8 * 4 * 9 + 2 * 4 * 36 + 2 * 8 * 16)


class TestOneDnnConv(ConvContract):
    algorithm = "onednn_conv"

    def test_the_plain_weight_is_offered_only_where_something_is_fused(self) -> None:
        for fused, options in (
            (False, {}), (False, {"activation": "relu"}), (True, {"activation": "silu"}), (True, {"residual": True}),
        ):  # fmt: skip
            workload = Conv2d(1, 4, 6, 6, 8, 3, 3, **options)  # type: ignore[arg-type]  # of several types
            space = self.subject.space(workload, HERE)
            assert ("plain" in space.parameters["weight"]) == fused
            assert len(list(space)) == space.size

    @pytest.mark.parametrize("activation", ["relu", "relu6", "silu", "hardswish"])
    @pytest.mark.parametrize("residual", [False, True])
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_nan_and_infinity_pass_through_every_epilogue(self, activation: str, residual: bool, layout: str) -> None:
        workload = Conv2d(1, 16, 6, 6, 16, 1, 1, activation=activation, residual=residual, layout=layout)
        constants, inputs = OP.constants(workload, 2), OP.inputs(workload, 2)
        inputs[0][0, :, 2, 3] = NAN
        inputs[0][0, 0, 4, 4] = float("inf")
        if residual:
            inputs[1][0, 5, 0, 0] = NAN
        expected = OP.reference(workload, constants, inputs)
        for params in self.subject.space(workload, HERE):
            y = self.built(workload, params, constants).call(*inputs)
            assert torch.equal(y.isnan(), expected.isnan()), params
            assert torch.allclose(y.double(), expected, rtol=1e-4, atol=1e-4, equal_nan=True), params

    def test_the_residual_is_not_written_to(self) -> None:
        for layout in LAYOUTS:
            workload = Conv2d(1, 16, 6, 6, 16, 3, 3, padding=1, residual=True, activation="relu", layout=layout)
            x, residual = OP.inputs(workload, 2)
            before = residual.clone()
            for params in self.subject.space(workload, HERE):
                y = self.built(workload, params, OP.constants(workload, 2)).call(x, residual)
                assert y.data_ptr() != residual.data_ptr()
                assert torch.equal(residual, before)

    def test_f64_is_refused(self) -> None:
        assert "not f64" in self.subject.refusal(Conv2d(1, 4, 6, 6, 8, 3, 3, dtype="f64"), HERE)

    def test_only_post_ops_that_keep_nan_are_used(self) -> None:
        assert not {"relu", "relu6"} & set(onednn_conv.POST_OPS)


class TestNnPack(ConvContract):
    algorithm = "nnpack"

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ("dtype=f64", "f32 only"),
            ("dtype=f16", "f32 only"),
            ("layout=channels_last", "NCHW only"),
            ("groups=2", "groups=2"),
            ("dilation=2", "dilated"),
            ("r=17", "at most 16x16"),
            ("padding=3", "smaller than the filter"),
            ("padding=0,0,3,3", "smaller than the filter"),
        ],
    )
    def test_it_refuses_with_a_reason(self, spec: str, message: str) -> None:
        name = spec.partition("=")[0]
        good = ("n=1", "c=8", "h=40", "w=40", "k=8", "r=3", "s=3", "padding=0")
        words = [word for word in good if word.partition("=")[0] != name]
        assert message in self.subject.refusal(registry.parse_workload(f"conv2d {' '.join(words)} {spec}"), HERE)

    @pytest.mark.parametrize("filter_size", [1, 2, 3, 4, 5, 7, 16])
    @pytest.mark.parametrize("stride", [1, 2])
    @pytest.mark.parametrize("n", [1, 3])
    def test_each_of_its_transforms(self, filter_size: int, stride: int, n: int) -> None:
        workload = Conv2d(n, 20, 23, 31, 12, filter_size, filter_size, stride, filter_size // 2, bias=True)
        if self.subject.refusal(workload, HERE):
            pytest.skip("it does not take this workload here")
        self.assert_right(workload)

    def test_its_stated_error_covers_deep_sums(self) -> None:
        workload = Conv2d(1, 512, 14, 14, 16, 3, 3, padding=1)
        if self.subject.refusal(workload, HERE):
            pytest.skip("it does not take this workload here")
        self.assert_right(workload)
        assert nnpack._workspace_bytes(workload) == 64 * 4 * (16 * 512 + 9 * (512 + 16))


class TestUnfoldMm(ConvContract):
    algorithm = "unfold_mm"

    def test_a_buffer_beyond_its_limit_is_refused(self) -> None:
        large = Conv2d(8, 64, 224, 224, 64, 3, 3, padding=1)
        assert self.subject.refusal(large, HERE) == (
            "its buffer of patches would take 882 MiB, and 256 MiB is the most it may"
        )
        assert self.subject.refusal(Conv2d(1, 64, 224, 224, 64, 1, 1), HERE) == "", "an image is its own matrix"
        assert self.subject.refusal(Conv2d(1, 4, 8, 8, 4, 3, 3, groups=2), HERE)

    def test_its_buffer_is_counted(self) -> None:
        workload = Conv2d(2, 4, 8, 8, 5, 3, 3)
        built = self.subject.build(workload, {"threads": 1}, OP.constants(workload, 0))
        assert built.workspace_bytes == 2 * 4 * 9 * 36 * 4 == unfold_mm._buffer_bytes(workload)
        pointwise = Conv2d(2, 4, 8, 8, 5, 1, 1)
        assert self.subject.build(pointwise, {"threads": 1}, OP.constants(pointwise, 0)).workspace_bytes == 0


@pytest.mark.parametrize("shape", [(2, 1, 6, 5), (2, 3, 1, 1), (2, 3, 6, 5), (1, 1, 1, 1), (0, 3, 6, 5)])
@pytest.mark.parametrize("given", LAYOUTS)
def test_a_pinned_tensor_has_the_strides_of_its_layout(shape: tuple[int, int, int, int], given: str) -> None:
    """torch guesses the layout of one channel or one pixel from the strides; a copy is made only where it must be."""
    x = in_layout(torch.randn(shape), given)
    _, c, h, w = shape
    wanted = {"nchw": (c * h * w, h * w, w, 1), "channels_last": (c * h * w, 1, w * c, c)}
    for layout in LAYOUTS:
        y = framework_conv.pinned(x, layout)
        assert torch.equal(x, y)
        assert y.stride() == wanted[layout] or not y.numel()
        assert y.data_ptr() == x.data_ptr() or (c > 1 and h * w > 1 and layout != given)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_where_onednn_reads_past_the_image_it_is_refused(stride: int, dtype: str) -> None:
    """Several filters per channel, one column of results, columns left over: garbage in torch 2.13's own default."""
    wrong = Conv2d(2, 16, 9, 4 if stride < 3 else 5, 32, 3, 3, stride, groups=16, dtype=dtype, layout="channels_last")
    refusals = [registry.algorithm(name).refusal(wrong, HERE) for name in ("torch", "onednn_conv")]
    if wrong.out_w == 1:
        assert all("reads past the image" in reason or "AVX512-FP16" in reason for reason in refusals)
        assert "reads past" in registry.algorithm("torch_other_layout").refusal(other_way_round(wrong), HERE)
        assert registry.algorithm("torch_other_layout").refusal(wrong, HERE) == "", "NCHW is right"
    else:
        assert refusals[0] == ""


def other_way_round(w: Conv2d) -> Conv2d:
    return next(Conv2d.from_dims({**w.dims(), "layout": layout}) for layout in LAYOUTS if layout != w.layout)


@pytest.mark.parametrize("algorithm", ["torch", "torch_other_layout", "onednn_conv", "nnpack", "unfold_mm"])
def test_the_thread_count_is_put_back(algorithm: str) -> None:
    workload = Conv2d(1, 8, 12, 12, 8, 3, 3, padding=1)
    subject = registry.algorithm(algorithm)
    if subject.refusal(workload, HERE):
        pytest.skip("it does not take this workload here")
    constants, inputs = OP.constants(workload, 0), OP.inputs(workload, 0)
    reference, before = OP.reference(workload, constants, inputs), torch.get_num_threads()
    for params in subject.space(workload, HERE):
        y = subject.build(workload, params, constants).call(*inputs)
        assert relative_error(y, reference) <= subject.error_bound(workload)
        assert torch.get_num_threads() == before


def test_the_modules_load_without_torch() -> None:
    names = ("framework", "framework_conv", "conv_layout", "onednn_conv", "nnpack", "unfold_mm")
    program = "import sys\n" + "".join(f"import autotune.kernels.{name}\n" for name in names)
    program += "assert not {'torch', 'numpy', 'typing', 'dataclasses'} & set(sys.modules), 'heavy'\n"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
