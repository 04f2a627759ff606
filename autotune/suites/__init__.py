"""Suites: the layers of real models as data files, one TOML per model.

    title = "BERT base, 12 layers, hidden 768"
    source = "Devlin et al., NAACL 2019, section 3"

    [[layer]]
    name = "feed-forward in, GELU"
    count = 12
    workload = "linear m={m} n=3072 k=768 bias=1 activation=gelu"
    m = [16, 64, 128]

A placeholder such as `{m}` takes each value of the list of that name in turn.
"""

from __future__ import annotations

import itertools
import os
import tomllib
from dataclasses import dataclass
from typing import Any

from autotune import paths, registry
from autotune.errors import InvalidInput
from autotune.types import Workload


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
        layers = tuple(layer for entry in data["layer"] for layer in _expand(entry))
        name = os.path.basename(path).removesuffix(".toml")
        return Suite(name, str(data["title"]), str(data.get("source", "")), layers)
    except OSError as error:
        raise InvalidInput(f"suite {path} cannot be read: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"suite {path} is not valid TOML: {error}") from None
    except (KeyError, TypeError) as error:
        raise InvalidInput(f"suite {path} lacks {error}: see `autotune suites --help` for the format") from None


def _expand(entry: dict[str, Any]) -> list[Layer]:
    lists = {name: values for name, values in entry.items() if isinstance(values, list)}
    layers = []
    for values in itertools.product(*lists.values()):
        spec = str(entry["workload"]).format(**dict(zip(lists, values, strict=True)))
        layers.append(Layer(str(entry["name"]), registry.parse_workload(spec), int(entry.get("count", 1))))
    return layers
