"""Tracing: what a model runs, and how often, as workloads; and `autotune sweep --model`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autotune import cli, trace
from autotune.errors import InvalidInput
from autotune.ops.attention import Attention
from autotune.ops.conv2d import Conv2d
from autotune.ops.embedding_bag import EmbeddingBag
from autotune.ops.gemm import Gemm
from autotune.ops.linear import Linear
from autotune.suites import Layer
from autotune.types import Workload


class Calls(nn.Module):
    """A model that does what a function of (x, its parameters) does."""

    def __init__(self, function: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        self.constants = nn.ParameterList(nn.Parameter(torch.randn(shape)) for shape in shapes)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs, *self.constants)


def of(model: nn.Module, *inputs: torch.Tensor) -> list[tuple[Workload, int]]:
    return [(layer.workload, layer.count) for layer in trace.trace(model.eval(), inputs)]


# What is noted


def test_linear_layers() -> None:
    x = torch.randn(2, 5, 8)
    assert of(nn.Linear(8, 3), x) == [(Linear(10, 3, 8, bias=True), 1)]
    assert of(nn.Linear(8, 3, bias=False), x) == [(Linear(10, 3, 8), 1)]
    assert of(nn.Linear(8, 3), torch.randn(8)) == [(Linear(1, 3, 8, bias=True), 1)]
    assert of(nn.Linear(8, 3), x.transpose(0, 1)) == [(Linear(10, 3, 8, bias=True), 1)], "whatever its strides"
    assert of(nn.Linear(8, 3).double(), x.double()) == [(Linear(10, 3, 8, "f64", True), 1)]
    assert of(nn.Linear(8, 3).bfloat16(), x.bfloat16()) == [(Linear(10, 3, 8, "bf16", True), 1)]


def test_a_product_with_a_parameter_is_a_linear_layer() -> None:
    x = torch.randn(4, 8)
    assert of(Calls(lambda x, w: x @ w.T, (3, 8)), x) == [(Linear(4, 3, 8), 1)]
    transposed = Linear(4, 3, 8, weight_layout="transposed")
    assert of(Calls(lambda x, w: x @ w, (8, 3)), x) == [(transposed, 1)]
    assert of(Calls(lambda x, w, b: torch.addmm(b, x, w), (8, 3), (3,)), x) == [
        (Linear(4, 3, 8, bias=True, weight_layout="transposed"), 1)
    ]
    assert of(Calls(lambda x, w: w @ x[0], (3, 8)), x) == [(Linear(1, 3, 8), 1)]


def test_a_product_of_what_was_computed_is_a_gemm() -> None:
    a, b = torch.randn(6, 4, 8), torch.randn(6, 8, 5)
    assert of(Calls(torch.bmm), a, b) == [(Gemm(4, 5, 8, 6), 1)]
    assert of(Calls(lambda a, b: a[0] @ b[0]), a, b) == [(Gemm(4, 5, 8), 1)]
    assert of(Calls(lambda a, b: a.view(2, 3, 4, 8) @ b.view(2, 3, 8, 5)), a, b) == [(Gemm(4, 5, 8, 6), 1)]
    scores = Gemm(4, 4, 8, 6, b_layout="transposed")
    assert of(Calls(lambda a: torch.einsum("bid,bjd->bij", a, a)), a) == [(scores, 1)]


def test_convolutions() -> None:
    x = torch.randn(2, 6, 9, 11)
    options: dict[str, Any] = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "groups": 3}
    assert of(nn.Conv2d(6, 9, (3, 2), **options), x) == [(Conv2d(2, 6, 9, 11, 9, 3, 2, **options, bias=True), 1)]
    assert of(nn.Conv2d(6, 9, 3, padding="same", bias=False), x) == [(Conv2d(2, 6, 9, 11, 9, 3, 3, padding=1), 1)]
    last = x.contiguous(memory_format=torch.channels_last)
    assert of(nn.Conv2d(6, 9, 1), last) == [(Conv2d(2, 6, 9, 11, 9, 1, 1, bias=True, layout="channels_last"), 1)]
    assert of(nn.Conv2d(6, 9, 1), x[0]) == [(Conv2d(1, 6, 9, 11, 9, 1, 1, bias=True), 1)]


def test_a_convolution_over_time_is_one_over_images_of_height_1() -> None:
    model = nn.Conv1d(8, 6, 3, stride=2, padding=1, dilation=2)
    expected = Conv2d(4, 8, 1, 30, 6, 1, 3, stride=(1, 2), padding=(0, 1), dilation=(1, 2), bias=True)
    assert of(model, torch.randn(4, 8, 30)) == [(expected, 1)]
    assert expected.out_w == model(torch.randn(4, 8, 30)).shape[2]


def test_equal_workloads_are_counted_under_the_first_module_that_runs_one() -> None:
    shared = nn.Linear(8, 8)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), shared, nn.Sequential(shared, nn.Linear(8, 4)))
    assert trace.trace(model.eval(), torch.randn(2, 8)) == (
        Layer("0", Linear(2, 8, 8, bias=True), 3),
        Layer("3.1", Linear(2, 4, 8, bias=True), 1),
    )


def test_a_product_outside_any_submodule_is_named_after_its_op() -> None:
    (layer,) = trace.trace(Calls(lambda a: a @ a).eval(), torch.randn(3, 3))
    assert layer.name == "gemm"


@pytest.mark.parametrize("fast", [True, False])
def test_attention_modules_are_looked_into(fast: bool) -> None:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(fast)
    try:
        found = dict(of(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), torch.randn(3, 5, 16)))
        assert torch.backends.mha.get_fastpath_enabled() == fast, "put back"
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
    for n, k in ((48, 16), (16, 16), (32, 16), (16, 32)):
        assert found[Linear(15, n, k, bias=True)] == 1


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_fused_attention_is_one_workload_on_any_device(device: str) -> None:
    def attend(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)

    q, k = torch.empty(1, 4, 5, 8, device=device), torch.empty(1, 5, 2, 8, device=device).transpose(1, 2)
    assert of(Calls(attend), q, k) == [(Attention(1, 4, 2, 5, 5, 8, True, layout="bshd"), 1)]


def test_attention_that_is_not_ours_is_passed_over() -> None:
    q, k = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 5, 8)
    ways: list[dict[str, Any]] = [
        {"is_causal": True},  # torch counts from the first position
        {"attn_mask": torch.ones(3, 5, dtype=torch.bool)},
        {"scale": 1.0},
    ]
    for way in ways:
        with pytest.raises(InvalidInput, match="runs no linear layer"):
            of(Calls(lambda q, k, way=way: F.scaled_dot_product_attention(q, k, k, **way)), q, k)
    same = of(Calls(lambda q, k: F.scaled_dot_product_attention(q, k, k, scale=8**-0.5)), q, k)
    assert same == [(Attention(1, 2, 2, 3, 5, 8), 1)]


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bags(mode: str) -> None:
    bag = nn.EmbeddingBag(10, 4, mode=mode)
    fixed = torch.zeros(6, 3, dtype=torch.long)
    assert of(bag, fixed) == [(EmbeddingBag(10, 4, 6, 3, mode), 1)]
    offsets = torch.tensor([0, 2, 2, 7])
    assert of(bag, fixed.view(-1), offsets) == [(EmbeddingBag(10, 4, 4, 5, mode, lengths="ragged"), 1)]
    last = nn.EmbeddingBag(10, 4, mode=mode, include_last_offset=True)
    assert of(last, fixed.view(-1), torch.tensor([0, 2, 2, 7, 18])) == [
        (EmbeddingBag(10, 4, 4, 5, mode, lengths="ragged"), 1)
    ]


def test_embedding_bags_with_weights_and_with_rows_left_out() -> None:
    fixed, weights = torch.zeros(6, 3, dtype=torch.int32), torch.randn(6, 3)
    bag = nn.EmbeddingBag(10, 4, mode="sum")
    weighted = Calls(lambda i, w: bag(i, per_sample_weights=w))
    assert of(weighted, fixed, weights) == [(EmbeddingBag(10, 4, 6, 3, weighted=True, index="i32"), 1)]
    with pytest.raises(InvalidInput, match="runs no linear layer"):
        of(nn.EmbeddingBag(10, 4, padding_idx=2), fixed.long())


def test_what_is_not_tuned_is_passed_over() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.deep, self.flat = nn.ConvTranspose2d(4, 4, 2), nn.Conv3d(1, 1, 1), nn.Conv2d(4, 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.deep(self.up(x)[:, None])
            numbers = torch.arange(9).view(3, 3)
            assert torch.equal(numbers @ numbers, numbers.mm(numbers))
            return self.flat(x[:0]).sum() + self.flat(x).sum()  # no images: nothing to tune

    assert of(Mixed(), torch.randn(1, 4, 5, 5)) == [(Conv2d(1, 4, 5, 5, 2, 1, 1, bias=True), 1)]


def test_the_model_computes_what_it_computes_without_a_trace() -> None:
    results: list[torch.Tensor] = []
    layer = nn.Conv2d(3, 4, 3)
    model = Calls(lambda x: results.append(F.relu(layer(x))))
    x = torch.randn(1, 3, 6, 6)
    with pytest.raises(InvalidInput, match="no linear layer"):
        trace.trace(Calls(torch.relu).eval(), x)
    trace.trace(model.eval(), x)
    assert torch.equal(results[0], F.relu(layer(x)))
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_inputs_may_be_named_or_many_and_on_the_meta_device() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return self.layer(a + b)

    a = torch.randn(2, 4)
    expected = (Layer("layer", Linear(2, 4, 4, bias=True), 1),)
    assert trace.trace(Sum().eval(), (a, a)) == trace.trace(Sum().eval(), [a, a]) == expected
    assert trace.trace(Sum().eval(), {"b": a, "a": a}) == expected
    assert trace.trace(Sum().eval().to("meta"), (a.to("meta"), a.to("meta"))) == expected


def test_a_model_of_the_suites() -> None:
    """A basic block of ResNet, folded, has the shapes that the suite says."""
    from autotune import suites

    block = nn.Sequential(nn.Conv2d(64, 128, 3, 2, 1), nn.Conv2d(128, 128, 3, 1, 1)).to("meta")
    first, second = (w for w, _ in of(block, torch.empty(1, 64, 56, 56, device="meta")))
    known = suites.load("resnet18").workloads
    assert Conv2d.from_dims({**first.dims(), "activation": "relu"}) in known
    assert Conv2d.from_dims({**second.dims(), "activation": "relu", "residual": True}) in known


# What is wrong


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        (lambda x: x, torch.randn(2), "a model is a torch.nn.Module, not function"),
        (nn.Linear(4, 4), torch.randn(2, 4), "in training mode: call model.eval()"),
        (nn.Linear(4, 4).eval(), torch.randn(2, 5), "the model does not run: RuntimeError: "),
        (nn.Linear(4, 4).eval(), (), "the model does not run: TypeError: "),
        (nn.Linear(4, 4).eval(), {"y": 1}, "the model does not run: TypeError: "),
        (
            nn.ReLU().eval(),
            torch.randn(2),
            "runs no linear layer, convolution, matrix product, attention or embedding bag",
        ),
    ],
)
def test_a_model_that_cannot_be_traced(model: Any, inputs: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        trace.trace(model, inputs)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


MODULE = """
import torch
def good(): return torch.nn.Linear(8, 4).eval(), torch.randn(2, 8)
def one(): return torch.nn.Linear(8, 4).eval()
def fails(): raise KeyError("weights.pt")
def wordy(): raise ValueError("first line\\nsecond line")
def training(): return torch.nn.Linear(8, 4), torch.randn(2, 8)
number = 3
"""


@pytest.fixture
def my_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user's in the working directory."""
    import sys

    (tmp_path / "my_traced_models.py").write_text(MODULE)
    (tmp_path / "my_broken_models.py").write_text("import no_such_package_anywhere")
    monkeypatch.chdir(tmp_path)
    for name in ("my_traced_models", "my_broken_models"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("my_models")
def test_a_function_is_found_in_the_working_directory() -> None:
    import sys

    before = list(sys.path)
    (layer,) = trace.trace(*trace.load("my_traced_models:good"))
    assert layer.workload == Linear(2, 4, 8, bias=True)
    assert sys.path == before


@pytest.mark.usefixtures("my_models")
@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("my_traced_models", "named as module:function, not 'my_traced_models'"),
        (":good", "named as module:function"),
        ("my_traced_models:", "named as module:function"),
        ("my_traced_models:missing", "my_traced_models has no function missing"),
        ("my_traced_models:number", "my_traced_models has no function number"),
        ("my_traced_models:one", "must return (model, example_inputs), not Linear"),
        ("my_traced_models:fails", "my_traced_models:fails failed: KeyError: 'weights.pt'"),
        ("my_traced_models:wordy", "my_traced_models:wordy failed: ValueError: first line"),
        ("my_traced_models:training", "training mode"),
        ("my_missing_models:good", "my_missing_models cannot be imported: ModuleNotFoundError"),
        ("my_broken_models:good", "my_broken_models cannot be imported: ModuleNotFoundError"),
    ],
)
def test_the_command_answers_in_one_sentence(target: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sweep", "--model", target]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


@pytest.mark.usefixtures("my_models")
def test_a_sweep_tunes_what_a_model_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from autotune.store.sql import open_store

    database = str(tmp_path / "tuned.sqlite")
    words = ["sweep", "--model", "my_traced_models:good", "--trials", "1", "--budget", "5s", "--db", database]
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    assert "my_traced_models:good runs" in printed
    with open_store(database) as store:
        assert store.workloads() == (Linear(2, 4, 8, bias=True),)
