# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""What kernels share: products of tiles, and activations of a tile in registers, in f32.

The activations' formulas are those of the framework's functions of the same name; tanh(y) is 2·sigmoid(2y) − 1. NaN
stays NaN in all of them.
"""

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def multiply_add(a, b, sums, PRECISION: tl.constexpr):
    """sums + a · b, in f32. The interpreter holds bf16 as integers and would multiply those."""
    if INTERPRETED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, sums, input_precision=PRECISION)


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == "relu":
        x = tl.where(x < 0, 0.0, x)
    elif ACTIVATION == "relu6":
        x = tl.where(x < 0, 0.0, tl.where(x > 6, 6.0, x))
    elif ACTIVATION == "gelu":
        x = 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":
        x = x / (1 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    elif ACTIVATION == "silu":
        x = x / (1 + tl.exp(-x))
    elif ACTIVATION == "hardswish":
        shifted = x + 3
        clipped = tl.where(shifted < 0, 0.0, tl.where(shifted > 6, 6.0, shifted))
        x = x * clipped / 6
    return x
