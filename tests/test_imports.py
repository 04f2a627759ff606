"""Imports point downward only, and the path of an exact lookup stays light: in the sources, and in processes."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import autotune
from autotune import environment, hardware, paths, registry
from autotune.ops.linear import Linear
from autotune.store.sql import open_store
from autotune.types import Config
from tests import store_samples as sample

ROOT = Path(autotune.__file__).parent

LAYERS = (
    # A module imports from layers above its own in this list, and from its own folder. "name" is a module or a
    # folder's __init__.py, "name.*" all modules inside the folder.
    ("language", ("errors", "canonical", "dtypes", "stats", "noun")),
    ("workloads", ("workload",)),
    ("nouns", ("types",)),
    ("nouns of measuring", ("records",)),
    ("settings", ("settings",)),
    ("foundation", ("space", "registry", "paths", "decide", "dbschema", "ops", "ops.*")),
    ("machine", ("hardware", "hardware.*")),
    ("formats", ("formats", "formats.*")),
    ("environment and models", ("environment", "suites")),
    ("users' models", ("trace",)),
    ("contracts", ("kernels", "measure", "search", "store", "snapshot", "devices")),
    ("kernels", ("kernels.*", "kernels.triton.*")),
    ("wishes of lookups", ("wishes",)),
    ("cost model", ("cost", "cost.*")),
    ("placement", ("placement",)),
    ("lookup", ("online",)),
    ("implementations", ("measure.*", "search.*", "store.*")),
    ("devices", ("devices.*",)),
    ("kernels of others", ("triton_kernels",)),
    ("reports", ("report", "report.*")),
    ("job", ("job", "budget")),
    ("executor contract", ("cluster",)),
    ("executors", ("cluster.*",)),
    ("sweep", ("sweep",)),
    ("command line", ("cli", "cli.*")),
    ("start", ("__main__",)),
)

UPWARD = {
    # Inside functions only, with the reason.
    ("environment", "kernels.compiler"): "the compiler's version is part of the environment; asked once",
    ("hardware.probe", "kernels.compiler"): "the probe is a C++ source that is compiled like a kernel",
    ("types", "records"): "the nouns of measuring can be imported from types too, without a lookup loading them",
}

THIRD_PARTY = {
    # Packages that a layer's modules may import, and where: "module" level or only "function" level.
    "kernels": {
        "torch": "function",
        "numpy": "function",
        "numba": "function",
        "llvmlite": "function",
        "threadpoolctl": "function",
        "triton": "module",  # in the files of kernel functions; test_triton.py holds that only they do
    },
    "foundation": {"torch": "function"},
    "cost model": {"numpy": "module", "xgboost": "function", "sklearn": "function"},  # loaded by lookup on a miss only
    "devices": {"torch": "function", "pynvml": "function"},
    "lookup": {"torch": "function"},  # only to build a kernel, and to say so where it is missing
    "machine": {"pynvml": "function"},
    "environment and models": {"torch": "function"},
    "users' models": {"torch": "function"},
    "implementations": {
        "sqlalchemy": "module",
        "alembic": "function",
        "psycopg": "function",  # COPY, on PostgreSQL only
        "optuna": "module",  # the sampler's module alone; sweeps load none of it before they search
        "numpy": "module",
        "xgboost": "function",
        "torch": "function",
    },
    "kernels of others": {"torch": "function", "triton": "function"},
    "reports": {"sqlalchemy": "module", "matplotlib": "function", "pyarrow": "function"},
    "executors": {"ray": "function"},
    "command line": {"rich": "function"},
}

HEAVY = {"sklearn", "torch", "sqlalchemy", "optuna", "xgboost", "numpy", "alembic", "numba", "rich", "triton", "ray"}


class Import(NamedTuple):
    """`target`: a module of ours without "autotune." ("" is the package itself), or a foreign top-level package."""

    target: str
    ours: bool
    where: str  # "module", "function" or "typing"
    line: int


def modules() -> list[str]:
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[0] != "_data":
            found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


def file_of(module: str) -> Path:
    base = ROOT.joinpath(*module.split(".")) if module else ROOT
    return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")


@cache
def imports_of(module: str) -> tuple[Import, ...]:
    return tuple(_imports(ast.parse(file_of(module).read_text(encoding="utf-8")), "module"))


def _imports(node: ast.AST, where: str) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield from _named(alias.name, where, child.lineno)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are written absolutely"
            if child.module == "__future__":
                continue
            for alias in child.names:
                yield from _named(f"{child.module}.{alias.name}", where, child.lineno)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _imports(ast.Module(child.body, []), "typing")
            yield from _imports(ast.Module(child.orelse, []), where)
        else:
            inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from _imports(child, "function" if inside and where == "module" else where)


def _named(dotted: str, where: str, line: int) -> Iterator[Import]:
    top, _, rest = dotted.partition(".")
    if top != "autotune":
        if top not in sys.stdlib_module_names and top not in ("_sha2", "_sha256"):
            yield Import(top, False, where, line)
        return
    if "." not in rest and rest in autotune._HOMES:  # `from autotune import lookup`: the home of a lazy name
        rest = autotune._HOMES[rest].removeprefix("autotune.")
    while rest and not file_of(rest).exists():
        rest = rest.rpartition(".")[0]  # a name in a module
    yield Import(rest, True, where, line)


def layer_of(module: str) -> int:
    folder = module.rpartition(".")[0]
    for number, (_, patterns) in enumerate(LAYERS):
        if module in patterns or (folder and f"{folder}.*" in patterns):
            return number
    raise AssertionError(f"autotune.{module} is in no layer: add it to LAYERS")


def same_folder(one: str, other: str) -> bool:
    return one.partition(".")[0] == other.partition(".")[0]


# The direction of imports


def test_every_module_is_in_a_layer_and_every_layer_has_modules() -> None:
    layers = {layer_of(module) for module in modules() if module}
    assert layers == set(range(len(LAYERS)))


def test_imports_point_downward() -> None:
    wrong = []
    for module in filter(None, modules()):
        for found in imports_of(module):
            downward = not found.ours or not found.target or layer_of(found.target) < layer_of(module)
            if downward or same_folder(module, found.target) or found.where == "typing":
                continue
            if found.where == "function" and (module, found.target) in UPWARD:
                continue
            wrong.append(f"{module}:{found.line} imports {found.target}")
    assert wrong == []


def test_a_contract_does_not_import_its_implementations() -> None:
    wrong = []
    for contract in ("ops", "kernels", "measure", "search", "store", "cluster", "cost", "formats", "devices"):
        wrong += [
            f"{contract}:{found.line} imports {found.target}"
            for found in imports_of(contract)
            if found.ours and found.where != "typing" and found.target.startswith(f"{contract}.")
        ]
    assert wrong == []


def test_the_exceptions_are_still_needed() -> None:
    used = {(module, found.target) for module in modules() for found in imports_of(module) if found.where == "function"}
    assert set(UPWARD) <= used


def test_the_package_itself_imports_nothing_of_ours() -> None:
    assert [found for found in imports_of("") if found.ours and found.where != "typing"] == []


def test_third_party_packages_are_imported_only_where_they_belong() -> None:
    wrong = []
    for module in filter(None, modules()):
        allowed = THIRD_PARTY.get(LAYERS[layer_of(module)][0], {})
        for found in imports_of(module):
            level = allowed.get(found.target)
            if found.ours or found.where == "typing" or level == "module" or level == found.where:
                continue
            wrong.append(f"{module}:{found.line} imports {found.target} at {found.where} level")
    assert wrong == []


def test_nothing_that_lookup_imports_is_heavy() -> None:
    reached, todo = set(), ["online"]
    while todo:
        module = todo.pop()
        if module not in reached:
            reached.add(module)
            todo += [found.target for found in imports_of(module) if found.ours and found.where == "module"]
    foreign = {found.target for module in reached for found in imports_of(module) if not found.ours}
    at_import = [f for module in reached for f in imports_of(module) if not f.ours and f.where == "module"]
    assert at_import == []
    assert foreign <= {"torch", "pynvml"}, "even inside functions"
    assert {"snapshot", "registry", "types", "hardware", "environment"} <= reached
    assert not {"records", "measure", "search", "store", "sweep"} & reached


@pytest.mark.parametrize("path", sorted(Path(paths.migrations_dir()).rglob("*.py")), ids=lambda path: path.stem)
def test_migrations_import_only_alembic_and_sqlalchemy(path: Path) -> None:
    found = set(_imports(ast.parse(path.read_text(encoding="utf-8")), "module"))
    assert {(f.target, f.ours) for f in found} <= {("alembic", False), ("sqlalchemy", False)}


# What processes load


def run(program: str, *options: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, *options, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done


def loaded(program: str) -> set[str]:
    """Top-level packages that a process imports, by -X importtime."""
    lines = run(program, "-X", "importtime").stderr.splitlines()
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines if line.startswith("import time:")}


def test_importing_autotune_loads_no_third_party_module() -> None:
    ours = loaded("import autotune") - loaded("pass")
    assert "autotune" in ours
    assert {name for name in ours if name not in sys.stdlib_module_names} == {"autotune"}


def test_every_public_name_is_there_without_anything_heavy() -> None:
    program = "import autotune, sys\nfor name in autotune.__all__: getattr(autotune, name)\nprint(*sys.modules)"
    found = set(run(program).stdout.split())
    assert "autotune.online" in found
    assert not HEAVY & found


EXACT = """
import sys, autotune
answer = autotune.lookup(autotune.Linear(m=1, n=4096, k=1024))
print(answer.origin.value, answer.config.algorithm, answer.reason, sep="|")
print(*sys.modules)
"""


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user database in which this machine has decided for `tiled`."""
    path = tmp_path / "prepared.sqlite"
    revision = registry.algorithm("tiled").revision()
    record = sample.record(
        workload=Linear(1, 4096, 1024),
        config=Config("tiled", {"tile": (1, 64), "threads": 1}),
        hardware=hardware.detect(),
        environment=environment.current(),
        kernel_revision=revision,
    )
    with open_store(path) as store:
        store.add([record, replace(record, config=Config("torch"), measurement=sample.ok(ratio=1.0))])
    monkeypatch.setenv("AUTOTUNE_DB", str(path))
    return path


@pytest.mark.usefixtures("prepared")
def test_an_exact_lookup_loads_nothing_heavy() -> None:
    answer, names = run(EXACT).stdout.splitlines()
    assert answer.startswith("EXACT|tiled|measured here")
    assert not HEAVY & set(names.split())
    assert not {
        name for name in names.split() if name.startswith(("autotune.store", "autotune.measure", "autotune.cli"))
    }


@pytest.mark.usefixtures("prepared")
def test_an_exact_lookup_needs_none_of_them_installed() -> None:
    """The light core: `pip install autotune` without extras."""
    blocked = f"import sys\nsys.modules.update(dict.fromkeys({sorted(HEAVY - {'torch', 'numpy', 'numba'})}))\n"
    assert run(blocked + EXACT).stdout.startswith("EXACT|tiled")


def test_a_lookup_without_a_database_loads_nothing_heavy() -> None:
    assert not os.path.exists(os.environ["AUTOTUNE_DB"])
    answer, names = run(EXACT).stdout.splitlines()
    assert answer.startswith(("DEFAULT|torch", "EXACT"))
    assert not HEAVY & set(names.split())
