"""Boosted trees for prediction: XGBoost's library through its C interface, one thread, no training.

Importing the Python package takes up to 1.3 s (it imports scikit-learn and pandas where they are installed); loading
its library takes 30 ms, and the first predicted lookup of a process has 350 ms. `XGBoosterPredictFromDense` may be
called from several threads at once; with one thread there is no pool that a fork would break, and a child inherits
the trees as they are.
"""

from __future__ import annotations

import ctypes
import json
import os
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.cost.ubjson import check
from autotune.environment import package_folder
from autotune.errors import Unavailable

_LIBRARIES = ("lib/libxgboost.so", "lib/libxgboost.dylib", "lib/xgboost.dll")


@cache
def _library() -> ctypes.CDLL:
    folder = package_folder("xgboost")
    path = next((p for name in _LIBRARIES if os.path.exists(p := os.path.join(folder, name))), "") if folder else ""
    if not path:
        raise Unavailable("predicting needs xgboost: pip install 'autotune[serve]'")
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise Unavailable(f"xgboost's library cannot be loaded: {error}") from None
    library.XGBGetLastError.restype = ctypes.c_char_p
    return library


def _called(library: ctypes.CDLL, name: str, *arguments: Any) -> None:
    if getattr(library, name)(*arguments) != 0:
        told = (library.XGBGetLastError() or b"").decode(errors="replace").strip().splitlines()
        raise Unavailable(f"xgboost says: {told[0] if told else 'no reason'}")


class Trees:
    """One booster. `blob`: its UBJSON, checked here; raises `ubjson.Malformed`, and `Unavailable` without xgboost."""

    def __init__(self, blob: bytes, features: int) -> None:
        self.blob, self.features = blob, features
        self.count = check(blob, features)
        self._library = library = _library()
        self._handle = ctypes.c_void_p()
        _called(library, "XGBoosterCreate", None, ctypes.c_uint64(0), ctypes.byref(self._handle))
        _called(library, "XGBoosterLoadModelFromBuffer", self._handle, blob, ctypes.c_uint64(len(blob)))
        _called(library, "XGBoosterSetParam", self._handle, b"nthread", b"1")
        self._config = json.dumps(
            {"type": 0, "training": False, "iteration_begin": 0, "iteration_end": 0, "strict_shape": True,
             "cache_id": 0, "missing": float("nan")}
        ).encode()  # fmt: skip
        self.predict(np.zeros((1, features), np.float32))  # the library configures itself, before threads share this

    def predict(self, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """[rows, features] f32 → [rows]; of a classifier, the probability."""
        rows = np.ascontiguousarray(rows, np.float32)
        shape_text, address = f"[{rows.shape[0]},{rows.shape[1]}]", rows.ctypes.data
        array = f'{{"data":[{address},true],"shape":{shape_text},"typestr":"<f4","version":3}}'
        shape, result = ctypes.POINTER(ctypes.c_uint64)(), ctypes.POINTER(ctypes.c_float)()
        dimensions = ctypes.c_uint64()
        _called(
            self._library, "XGBoosterPredictFromDense", self._handle, array.encode(), self._config, None,
            ctypes.byref(shape), ctypes.byref(dimensions), ctypes.byref(result),
        )  # fmt: skip
        return np.ctypeslib.as_array(result, (rows.shape[0],)).copy()  # the library's buffer is reused by this thread

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle:
            self._library.XGBoosterFree(handle)
