"""Triton's interpreter: a test module that imports `interpreting` runs this project's Triton kernels on CPU tensors.

Triton decides when a function is decorated, its own functions included, and looks again when some of them are called.
So it is imported here with all kernels while its interpreter is asked for, and asked for again while the module's
tests run. What others decorate in this process is not interpreted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest

from autotune import paths


@contextmanager
def _asked_for() -> Iterator[None]:
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TRITON_INTERPRET"]
        else:
            os.environ["TRITON_INTERPRET"] = before


@pytest.fixture(autouse=True, scope="module")
def interpreting() -> Iterator[None]:
    with _asked_for():
        yield


with _asked_for():
    if "triton" in sys.modules:
        own = type(sys.modules["triton"].language.cdiv).__name__
        assert own == "InterpretedFunction", "triton was imported before its interpreter was asked for"
    for source in sorted(Path(paths.package_file("kernels", "triton")).glob("*_kernel.py")):
        import_module(f"autotune.kernels.triton.{source.stem}")
