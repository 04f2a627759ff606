"""Suites: the layers of real models as data files, one TOML per model; `FORMAT` shows one."""

from __future__ import annotations

import itertools
import os
import re
import tomllib
from dataclasses import dataclass
from typing import Any

from autotune import paths, registry
from autotune.errors import InvalidInput
from autotune.types import Workload

FORMAT = """\
title = "BERT base, 12 layers, hidden 768"
source = "Devlin et al., NAACL 2019, section 3"

[[layer]]
name = "feed-forward in, GELU"
count = 12                             # how often one pass runs it; 1 if left out
workload = "linear m={m} n=3072 k=768 bias=1 activation=gelu"
m = [16, 64, 128]                      # {m} takes each of these values in turn
"""


@dataclass(frozen=True)
class Layer:
    """A workload of a model, and how often one pass runs it."""

    name: str
    workload: Workload
    count: int


@dataclass(frozen=True)
class Suite:
    """`title` and `source` say which model, and where its shapes are published."""

    name: str
    title: str
    source: str
    layers: tuple[Layer, ...]

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """The distinct workloads, in the model's order."""
        return tuple(dict.fromkeys(layer.workload for layer in self.layers))


def names() -> tuple[str, ...]:
    """The suites that are shipped."""
    folder = paths.package_file("suites")
    return tuple(sorted(name.removesuffix(".toml") for name in os.listdir(folder) if name.endswith(".toml")))


def load(name_or_path: str) -> Suite:
    """A shipped suite by name, or one of the user's by the path of its TOML file. Raises `InvalidInput`."""
    path = name_or_path
    if not path.endswith(".toml"):
        if name_or_path not in names():
            raise InvalidInput(f"unknown suite {name_or_path!r}; there are {', '.join(names())}, or a .toml file")
        path = paths.package_file("suites", f"{name_or_path}.toml")
    try:
        with open(path, "rb") as file:
            data = tomllib.load(file)
    except OSError as error:
        raise InvalidInput(f"suite {path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # TOMLDecodeError, or bytes that are not UTF-8
        raise InvalidInput(f"suite {path} is not valid TOML: {error}") from None
    try:
        layers = tuple(layer for entry in _entries(data) for layer in _expand(entry))
        name = os.path.basename(path).removesuffix(".toml")
        return Suite(name, str(data["title"]), str(data.get("source", "")), layers)
    except InvalidInput as error:
        raise InvalidInput(f"suite {path}: {error}") from None
    except KeyError as error:
        raise InvalidInput(f"suite {path} lacks {error}: see `autotune suites --help` for the format") from None


def _entries(data: dict[str, Any]) -> list[dict[str, Any]]:
    entries = data["layer"]
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidInput("each layer is a table that begins with [[layer]]")
    if not entries:
        raise InvalidInput("it has no layers")
    return entries


def _expand(entry: dict[str, Any]) -> list[Layer]:
    name, template, count = str(entry["name"]), str(entry["workload"]), entry.get("count", 1)
    if type(count) is not int or count < 1:
        raise InvalidInput(f"count of layer {name!r} must be a whole number of at least 1, not {count!r}")
    lists = {key: values for key, values in entry.items() if isinstance(values, list)}
    layers = []
    for values in itertools.product(*lists.values()):
        chosen = dict(zip(lists, values, strict=True))
        spec = template
        for placeholder in re.findall(r"\{(\w+)\}", template):
            spec = spec.replace(f"{{{placeholder}}}", str(chosen[placeholder]))
        if "{" in spec or "}" in spec:
            raise InvalidInput(f"layer {name!r} has a placeholder that is not a name in braces: {template!r}")
        layers.append(Layer(name, registry.parse_workload(spec), count))
    if not layers:
        raise InvalidInput(f"layer {name!r} has no values for a placeholder")
    return layers
