"""conv2d: y = activation(conv(x, weight) + bias + residual), the weight constant. Depthwise and 1x1 are the same op."""

from __future__ import annotations

from autotune.dtypes import ITEMSIZE_BYTES, TORCH_NAMES, product_tolerance
from autotune.errors import InvalidInput
from autotune.noun import noun
from autotune.ops import Op, typical_product
from autotune.ops.constants import check_weight_and_bias
from autotune.workload import Pair, Sides, Workload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import torch

ACTIVATIONS = ("none", "relu", "relu6", "silu", "hardswish")
LAYOUTS = ("nchw", "channels_last")


@noun
class Conv2d(Workload):
    """A 2-D convolution: n images of c channels, h by w, to k channels, through r by s filters.

    `stride`, `dilation`: one number, or (vertical, horizontal). `padding`: one number, (vertical, horizontal),
    (top, bottom, left, right), "same" or "valid". `layout`: of the image, the result and the residual alike.
    `residual`: whether a tensor of the result's shape is added before the activation. A 1-D convolution is one with
    h = r = 1.
    """

    op = "conv2d"
    minimum = {"stride": 1, "dilation": 1, "groups": 1, "c": 1, "k": 1, "r": 1, "s": 1}  # noqa: RUF012 - read-only
    choices = {"activation": ACTIVATIONS, "layout": LAYOUTS}  # noqa: RUF012 - read-only

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride: Pair = (1, 1)
    padding: Sides = (0, 0, 0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    dtype: str = "f32"
    layout: str = "nchw"
    bias: bool = False
    activation: str = "none"
    residual: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.padding, str):
            object.__setattr__(self, "padding", _named_padding(self))
        super().__post_init__()

    def validate(self) -> None:
        if self.c % self.groups or self.k % self.groups:
            raise InvalidInput(f"groups={self.groups} must divide both c={self.c} and k={self.k}")
        if self.out_h < 1 or self.out_w < 1:
            top, bottom, left, right = self.sides
            padded = f"{self.h + top + bottom}x{self.w + left + right}"
            extent = f"{self.extent_h}x{self.extent_w}"
            raise InvalidInput(f"the filter, {extent} with its dilation, is larger than the padded image, {padded}")

    @property
    def strides(self) -> tuple[int, int]:
        """(vertical, horizontal)."""
        return self.stride  # type: ignore[return-value]  # normalised at construction

    @property
    def dilations(self) -> tuple[int, int]:
        """(vertical, horizontal)."""
        return self.dilation  # type: ignore[return-value]  # normalised at construction

    @property
    def sides(self) -> tuple[int, int, int, int]:
        """Padding: (top, bottom, left, right)."""
        return self.padding  # type: ignore[return-value]  # normalised at construction

    @property
    def extent_h(self) -> int:
        """Rows of the image that one filter spans."""
        return (self.r - 1) * self.dilations[0] + 1

    @property
    def extent_w(self) -> int:
        """Columns of the image that one filter spans."""
        return (self.s - 1) * self.dilations[1] + 1

    @property
    def out_h(self) -> int:
        top, bottom, _, _ = self.sides
        return (self.h + top + bottom - self.extent_h) // self.strides[0] + 1

    @property
    def out_w(self) -> int:
        _, _, left, right = self.sides
        return (self.w + left + right - self.extent_w) // self.strides[1] + 1

    @property
    def depth(self) -> int:
        """Products per output element."""
        return self.c // self.groups * self.r * self.s

    @property
    def is_depthwise(self) -> bool:
        return self.groups == self.c and self.groups > 1

    @property
    def is_pointwise(self) -> bool:
        """1x1 filters on an unpadded image: a matrix product over its pixels."""
        return self.r == self.s == 1 and not any(self.sides)

    @property
    def flops(self) -> int:
        return 2 * self.n * self.k * self.out_h * self.out_w * self.depth

    @property
    def bytes(self) -> int:
        result = self.n * self.k * self.out_h * self.out_w
        elements = self.n * self.c * self.h * self.w + self.k * self.depth + result
        elements += result * self.residual + self.k * self.bias
        return elements * ITEMSIZE_BYTES[self.dtype]

    @property
    def input_bytes(self) -> int:
        residual = self.output_bytes if self.residual else 0
        return self.n * self.c * self.h * self.w * ITEMSIZE_BYTES[self.dtype] + residual

    @property
    def output_bytes(self) -> int:
        return self.n * self.k * self.out_h * self.out_w * ITEMSIZE_BYTES[self.dtype]

    @classmethod
    def of(
        cls,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        stride: Pair = 1,
        padding: Sides = 0,
        dilation: Pair = 1,
        groups: int = 1,
        activation: str = "none",
        residual: torch.Tensor | None = None,
    ) -> Conv2d:
        """The workload of `F.conv2d(x, weight, bias, …)`: x [n, c, h, w], weight [k, c / groups, r, s], bias [k].

        The layout is x's; NCHW where its strides fit both, as with one channel or one pixel.
        """
        names = {name: short for short, name in TORCH_NAMES.items()}
        found = f"{list(x.shape)} and {list(weight.shape)} with groups={groups}"
        if x.dim() != 4 or weight.dim() != 4 or x.shape[1] != weight.shape[1] * groups:
            raise InvalidInput(f"conv2d needs x [n, c, h, w] and weight [k, c / groups, r, s], not {found}")
        dtype = str(weight.dtype).removeprefix("torch.")
        if x.dtype != weight.dtype or dtype not in names:
            raise InvalidInput(f"conv2d needs x and weight of one dtype, not {x.dtype} and {weight.dtype}")
        (n, c, h, w), (k, _, r, s) = x.shape, weight.shape
        made = cls(
            n, c, h, w, k, r, s, stride, padding, dilation, groups, names[dtype], layout_of(x), bias is not None,
            activation, residual is not None,
        )  # fmt: skip
        if bias is not None and bias.shape != (k,):
            raise InvalidInput(f"conv2d needs a bias of shape [{k}], not {list(bias.shape)}")
        shape = (n, k, made.out_h, made.out_w)
        if residual is not None and residual.shape != shape:
            raise InvalidInput(f"conv2d needs a residual of shape {list(shape)}, not {list(residual.shape)}")
        return made


def _named_padding(w: Conv2d) -> tuple[int, int, int, int]:
    """ "valid" is none; "same" keeps ceil(size / stride), an odd pixel going below and to the right."""
    if w.padding == "valid":
        return 0, 0, 0, 0
    if w.padding != "same":
        raise InvalidInput(f"padding={w.padding!r} must be numbers, same or valid")

    def both(size: int, extent: int, stride: int) -> tuple[int, int]:
        total = max((-(-size // stride) - 1) * stride + extent - size, 0)
        return total // 2, total - total // 2

    def pair(value: Any) -> tuple[int, int]:
        vertical, horizontal = value if isinstance(value, (tuple, list)) else (value, value)
        return vertical, horizontal

    try:
        (stride_h, stride_w), (dilation_h, dilation_w) = pair(w.stride), pair(w.dilation)
        vertical = both(w.h, (w.r - 1) * dilation_h + 1, stride_h)
        horizontal = both(w.w, (w.s - 1) * dilation_w + 1, stride_w)
    except (TypeError, ValueError, ZeroDivisionError):  # of a field that is wrong, and refused when it is looked at
        return 0, 0, 0, 0
    return (*vertical, *horizontal)


class Conv2dOp(Op):
    name = "conv2d"
    workload = Conv2d
    constant_names = ("weight", "bias")

    def constants(self, workload: Workload, seed: int) -> dict[str, torch.Tensor | None]:
        import torch

        w = conv(workload)
        random = torch.Generator().manual_seed(2 * seed)
        dtype = getattr(torch, TORCH_NAMES[w.dtype])
        weight = torch.randn((w.k, w.c // w.groups, w.r, w.s), generator=random).mul_(w.depth**-0.5).to(dtype)
        bias = torch.randn((w.k,), generator=random).to(dtype) if w.bias else None
        return {"weight": weight, "bias": bias}

    def inputs(self, workload: Workload, seed: int) -> tuple[torch.Tensor, ...]:
        import torch

        w = conv(workload)
        random = torch.Generator().manual_seed(2 * seed + 1)
        dtype = getattr(torch, TORCH_NAMES[w.dtype])
        x = in_layout(torch.randn((w.n, w.c, w.h, w.w), generator=random).to(dtype), w.layout)
        if not w.residual:
            return (x,)
        return x, in_layout(torch.randn((w.n, w.k, w.out_h, w.out_w), generator=random).to(dtype), w.layout)

    def reference(
        self, workload: Workload, constants: dict[str, torch.Tensor | None], inputs: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        import torch

        w = conv(workload)
        weight, bias = constants["weight"], constants["bias"]
        assert weight is not None
        exact = tuple(tensor.to(torch.float64) for tensor in inputs)
        return plain(w, weight.to(torch.float64), None if bias is None else bias.to(torch.float64), *exact)

    def magnitude(
        self, workload: Workload, constants: dict[str, torch.Tensor | None], inputs: tuple[torch.Tensor, ...]
    ) -> float:
        weight = constants["weight"]
        assert weight is not None
        return typical_product(inputs[0], weight, conv(workload).depth)

    def other_layouts(self, workload: Workload) -> tuple[Workload, ...]:
        w = conv(workload)
        return tuple(Conv2d.from_dims({**w.dims(), "layout": layout}) for layout in LAYOUTS if layout != w.layout)

    def result_problem(self, workload: Workload, result: torch.Tensor) -> str:
        import torch

        w = conv(workload)
        formats = {"nchw": torch.contiguous_format, "channels_last": torch.channels_last}
        if result.is_contiguous(memory_format=formats[w.layout]):
            return ""
        return f"the result is not {w.layout}: its strides are {list(result.stride())}"

    def check_constants(self, workload: Workload, constants: dict[str, Any]) -> None:
        w = conv(workload)
        check_weight_and_bias(w.spec, constants, (w.k, w.c // w.groups, w.r, w.s), w.k, w.dtype, w.bias)

    def acceptor(self, workload: Workload) -> Callable[..., bool]:
        import torch

        w = conv(workload)
        dtype, grad_enabled = getattr(torch, TORCH_NAMES[w.dtype]), torch.is_grad_enabled
        shapes = [(w.n, w.c, w.h, w.w)] + [(w.n, w.k, w.out_h, w.out_w)] * w.residual

        def accepts(*tensors: torch.Tensor) -> bool:
            return len(tensors) == len(shapes) and all(
                t.shape == shape and t.dtype is dtype and not (t.requires_grad and grad_enabled())
                for t, shape in zip(tensors, shapes, strict=True)
            )

        return accepts

    def tolerance(self, workload: Workload) -> float:
        w = conv(workload)
        return product_tolerance(w.depth, w.dtype)


def conv(workload: Workload) -> Conv2d:
    assert isinstance(workload, Conv2d)
    return workload


def layout_of(tensor: torch.Tensor) -> str:
    """The layout of a [n, c, h, w] tensor by the order of its strides, views included; NCHW where both fit."""
    _, c, h, w = tensor.shape
    _, channel, row, column = tensor.stride()
    if tensor.is_contiguous() or c == 1 or h * w == 1:
        return "nchw"
    return "channels_last" if 0 < channel < (column if w > 1 else row) else "nchw"


def in_layout(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The [n, c, h, w] tensor stored as the layout says; itself when it is already."""
    import torch

    return tensor.contiguous(
        memory_format=torch.channels_last if layout == "channels_last" else torch.contiguous_format
    )


def plain(
    w: Conv2d,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    x: torch.Tensor,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """The workload as a torch user writes it: pad where the sides differ, convolve, add, activate."""
    import torch.nn.functional as F

    top, bottom, left, right = w.sides
    if top == bottom and left == right:
        y = F.conv2d(x, weight, bias, w.strides, (top, left), w.dilations, w.groups)
    else:
        y = F.conv2d(F.pad(x, (left, right, top, bottom)), weight, bias, w.strides, 0, w.dilations, w.groups)
    return finish(y, w.activation, residual)


def finish(y: torch.Tensor, activation: str, residual: torch.Tensor | None) -> torch.Tensor:
    """Adds the residual, then activates, with torch's own functions."""
    import torch.nn.functional as F

    if residual is not None:
        y = y + residual
    match activation:
        case "relu":
            return F.relu(y)
        case "relu6":
            return F.relu6(y)
        case "silu":
            return F.silu(y)
        case "hardswish":
            return F.hardswish(y)
    return y
