"""Element types by their short names, as in spec strings: f32, f16, bf16 …"""

from __future__ import annotations

import math

ITEMSIZE_BYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i8": 1}

UNIT_ROUNDOFF = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
"""Half the distance from 1 to the next number: the relative error of one rounding."""

TORCH_NAMES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i8": "int8"}


def product_tolerance(k: int, dtype: str) -> float:
    """Per-element relative error that rounding explains in a sum of k products: 4·u + 8·v·√k.

    u is the unit roundoff of the dtype (the result is rounded to it), v that of the accumulator, which is f32
    for the 16-bit types. Rounding errors of a k-term sum grow like √k (Higham, Accuracy and Stability of
    Numerical Algorithms, 2.8).
    """
    u = UNIT_ROUNDOFF.get(dtype, UNIT_ROUNDOFF["bf16"])
    v = min(u, UNIT_ROUNDOFF["f32"])
    return 4 * u + 8 * v * math.sqrt(max(k, 1))
