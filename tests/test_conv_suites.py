"""The convolutional suites hold the layers of their models: multiply-adds and parameters are the published ones."""

from __future__ import annotations

import pytest

from autotune import suites
from autotune.ops.conv2d import Conv2d
from autotune.ops.linear import Linear


@pytest.mark.parametrize(
    ("name", "gmacs", "mparams"),
    [  # parameters without those of batch normalisation, but with the biases it folds into
        ("resnet18", 1.814, 11.68),
        ("resnet50", 4.089, 25.53),
        ("mobilenet-v2", 0.3008, 3.488),
        ("efficientnet-b0", 0.3858, 5.268),
        ("vgg16", 15.47, 138.36),
        ("yolox-s", 13.34, 8.957),  # 26.8 GFLOPs, 9.0 M
        ("unet", 45.95, 28.24),  # 31.04 M with the transposed convolutions
    ],
)
def test_a_pass_costs_what_is_published(name: str, gmacs: float, mparams: float) -> None:
    macs = parameters = 0
    for layer in suites.load(name).layers:
        w = layer.workload
        if isinstance(w, Conv2d) and w.n == 1:
            macs += layer.count * w.flops // 2
            parameters += layer.count * (w.k * w.depth + w.k)
        elif isinstance(w, Linear) and w.m == 1:
            macs += layer.count * w.flops // 2
            parameters += layer.count * (w.n * w.k + w.n)
    assert macs / 1e9 == pytest.approx(gmacs, rel=1e-3)
    assert parameters / 1e6 == pytest.approx(mparams, rel=1e-3)


@pytest.mark.parametrize(
    "name", ["resnet18", "resnet50", "mobilenet-v2", "efficientnet-b0", "vgg16", "unet", "yolox-s"]
)
def test_every_layer_is_there_for_batch_1_and_8(name: str) -> None:
    found = [layer for layer in suites.load(name).layers if isinstance(layer.workload, Conv2d)]
    for layer in found:
        other = 9 - layer.workload.n  # type: ignore[attr-defined]  # a Conv2d
        twin = Conv2d.from_dims({**layer.workload.dims(), "n": other})
        assert any(x.workload == twin and x.count == layer.count for x in found)
    assert all(layer.workload.bias for layer in found)  # type: ignore[attr-defined]  # likewise


def test_whisper_convolves_over_time() -> None:
    found = {layer.workload for layer in suites.load("whisper-encoder").layers}
    assert Conv2d(1, 80, 1, 3000, 512, 1, 3, padding=(0, 1), bias=True) in found
    second = Conv2d(8, 512, 1, 3000, 512, 1, 3, stride=(1, 2), padding=(0, 1), bias=True)
    assert second in found
    assert (second.out_h, second.out_w) == (1, 1500)


def test_what_follows_a_convolution_is_in_its_epilogue() -> None:
    resnet = {layer.workload: layer.count for layer in suites.load("resnet50").layers}
    assert resnet[Conv2d(1, 64, 56, 56, 256, 1, 1, bias=True, activation="relu", residual=True)] == 3
    mobile = {layer.workload: layer.count for layer in suites.load("mobilenet-v2").layers}
    depthwise = Conv2d(1, 576, 14, 14, 576, 3, 3, 2, 1, groups=576, bias=True, activation="relu6")
    assert mobile[depthwise] == 1
    assert mobile[Conv2d(1, 960, 7, 7, 160, 1, 1, bias=True, residual=True)] == 2
