"""Triton's interpreter: a test module that imports this runs Triton kernels on CPU tensors. Import it before triton."""

from __future__ import annotations

import os
import sys

os.environ["TRITON_INTERPRET"] = "1"
if "triton" in sys.modules:
    assert sys.modules["triton"].knobs.runtime.interpret, "triton was imported before its interpreter was asked for"
