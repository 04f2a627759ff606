"""Suites: the shipped ones are sound, and a user's own is read or refused in one sentence."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from autotune import suites
from autotune.errors import InvalidInput
from autotune.ops.linear import Linear

SHIPPED = suites.names()

LAYER = '[[layer]]\nname = "a layer"\ncount = 2\nworkload = "linear m={m} n=8 k=4"\nm = [1, 16]\n'
GOOD = f'title = "A model"\nsource = "a paper"\n{LAYER}'


def write(folder: Path, text: str | bytes) -> str:
    path = folder / "mine.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_the_models_of_the_first_release_are_shipped() -> None:
    assert {"bert-base", "vit-b16", "gpt2", "llama-3-8b-decode", "llama-3-8b-prefill"} <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_suite_is_sound(name: str) -> None:
    suite = suites.load(name)
    assert suite.name == name
    assert suite.title
    assert suite.source, "it says where its shapes are published"
    assert suite.layers
    assert all(layer.count > 0 and layer.name for layer in suite.layers)
    assert not any(workload.is_empty for workload in suite.workloads)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_suite_says_a_layer_once(name: str) -> None:
    """Two layers of a model may have one shape, but a pair of name and shape is there once."""
    suite = suites.load(name)
    repeated = [pair for pair, count in Counter((x.name, x.workload) for x in suite.layers).items() if count > 1]
    assert repeated == []
    assert len(set(suite.workloads)) == len(suite.workloads)
    assert set(suite.workloads) == {layer.workload for layer in suite.layers}


def test_layers_have_the_shapes_of_the_model() -> None:
    bert = {layer.workload: layer.count for layer in suites.load("bert-base").layers}
    assert bert[Linear(128, 3072, 768, bias=True, activation="gelu")] == 12
    assert bert[Linear(16, 768, 768, bias=True)] == 48
    assert {w.m for w in suites.load("llama-3-8b-prefill").workloads if isinstance(w, Linear)} == {128}


def test_a_users_own_suite_is_read_by_its_path(tmp_path: Path) -> None:
    suite = suites.load(write(tmp_path, GOOD))
    assert (suite.name, suite.title, suite.source) == ("mine", "A model", "a paper")
    assert [(x.name, x.count, x.workload) for x in suite.layers] == [
        ("a layer", 2, Linear(1, 8, 4)),
        ("a layer", 2, Linear(16, 8, 4)),
    ]


def test_every_combination_of_listed_values_is_a_layer(tmp_path: Path) -> None:
    text = 'title = "t"\n[[layer]]\nname = "x"\nworkload = "linear m={m} n={n} k=4"\nm = [1, 2]\nn = [8, 16, 32]\n'
    layers = suites.load(write(tmp_path, text)).layers
    assert [(w.m, w.n) for w in (x.workload for x in layers) if isinstance(w, Linear)] == [
        (1, 8), (1, 16), (1, 32), (2, 8), (2, 16), (2, 32),
    ]  # fmt: skip
    assert {layer.count for layer in layers} == {1}, "count is one where none is given"


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "lacks 'layer'"),
        (changed('title = "A model"\n', ""), "lacks 'title'"),
        (changed('name = "a layer"\n', ""), "lacks 'name'"),
        (changed('workload = "linear m={m} n=8 k=4"\n', ""), "lacks 'workload'"),
        (changed("m = [1, 16]\n", ""), "lacks 'm'"),
        ("title = ", "is not valid TOML"),
        ("title = 'a'\ntitle = 'b'\n", "is not valid TOML"),
        (b"title = '\xff\xfe'\n", "is not valid TOML"),
        (changed("linear", "conv9d"), "unknown op 'conv9d'"),
        (changed(" k=4", ""), "linear needs k=…"),
        (changed("k=4", "k=-4"), "k=-4 is out of range"),
        (changed("[1, 16]", '["few"]'), "m=few must be a whole number"),
        (changed("[1, 16]", "[]"), "'a layer' has no"),
        (changed("count = 2", 'count = "many"'), "count"),
        (changed("count = 2", "count = 0"), "count"),
        (changed("count = 2", "count = 2.5"), "count"),
        (changed("{m}", "{}"), "placeholder"),
        (changed("{m}", "{m"), "placeholder"),
        (changed("{m}", "{m.real}"), "placeholder"),
        ('title = "t"\nlayer = 3\n', "layer"),
        ('title = "t"\nlayer = ["linear m=1 n=2 k=3"]\n', "layer"),
        ('title = "t"\nlayer = []\n', "has no layers"),
    ],
)
def test_what_is_wrong_with_a_suite_is_said_in_one_sentence(tmp_path: Path, text: Any, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InvalidInput) as caught:
        suites.load(path)
    told = str(caught.value)
    assert message in told
    assert path in told
    assert "\n" not in told


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bert-huge", "unknown suite 'bert-huge'; there are bert-base, "),
        ("../suites/gpt2", "unknown suite"),
        ("", "unknown suite ''"),
        ("missing.toml", "missing.toml cannot be read: No such file"),
    ],
)
def test_an_unknown_suite_is_answered_with_what_there_is(name: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        suites.load(name)


def test_a_folder_is_no_suite(tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(InvalidInput, match="cannot be read: Is a directory"):
        suites.load(str(tmp_path / "folder.toml"))
