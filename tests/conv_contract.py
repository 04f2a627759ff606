"""The class every conv2d algorithm inherits: right within its stated error on awkward shapes, or refused with a reason.

class TestWinograd(ConvContract):
    algorithm = "winograd"
"""

from __future__ import annotations

from random import Random
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune import hardware, registry
from autotune.errors import InvalidInput
from autotune.kernels import Algorithm, Built
from autotune.measure.check import Case, check
from autotune.ops.conv2d import ACTIVATIONS, LAYOUTS, Conv2d, in_layout, plain
from autotune.types import HardwareProfile, Status

SHAPES = (
    "conv2d n=1 c=16 h=14 w=14 k=32 r=3 s=3 padding=1",
    "conv2d n=2 c=3 h=17 w=23 k=20 r=3 s=3 padding=1 bias=1 activation=relu",
    "conv2d n=1 c=8 h=9 w=7 k=5 r=3 s=3 padding=2,0,1,3 bias=1",
    "conv2d n=3 c=33 h=8 w=8 k=17 r=1 s=1 bias=1 activation=silu",
    "conv2d n=1 c=32 h=7 w=7 k=64 r=1 s=1 stride=2",
    "conv2d n=1 c=3 h=33 w=33 k=16 r=7 s=7 stride=2 padding=3 bias=1",
    "conv2d n=1 c=4 h=15 w=15 k=6 r=3 s=3 stride=2,1 padding=1",
    "conv2d n=1 c=4 h=15 w=15 k=6 r=3 s=3 dilation=2 padding=2",
    "conv2d n=1 c=6 h=12 w=12 k=8 r=5 s=5 padding=2",
    "conv2d n=2 c=5 h=1 w=40 k=9 r=1 s=3 padding=0,0,1,1",
    "conv2d n=1 c=7 h=30 w=1 k=3 r=5 s=1 padding=2,2,0,0",
    "conv2d n=1 c=24 h=10 w=10 k=24 r=3 s=3 padding=1 groups=24",
    "conv2d n=2 c=20 h=11 w=13 k=40 r=5 s=5 stride=2 padding=2 groups=20 bias=1 activation=relu6",
    "conv2d n=1 c=4 h=6 w=6 k=16 r=1 s=1 groups=2",
    "conv2d n=1 c=6 h=6 w=6 k=12 r=3 s=3 padding=1 groups=3 activation=hardswish",
    "conv2d n=1 c=1 h=1 w=1 k=1 r=1 s=1",
    "conv2d n=1 c=2 h=1 w=1 k=3 r=3 s=3 padding=1",
    "conv2d n=1 c=2 h=2 w=2 k=3 r=3 s=3 padding=5 bias=1",
    "conv2d n=0 c=4 h=6 w=6 k=8 r=3 s=3 padding=1",
    "conv2d n=2 c=16 h=9 w=9 k=16 r=3 s=3 padding=1 bias=1 activation=relu residual=1",
    "conv2d n=1 c=12 h=6 w=5 k=7 r=1 s=1 residual=1 activation=hardswish",
    "conv2d n=1 c=16 h=14 w=14 k=16 r=3 s=3 padding=1 dtype=f64",
    "conv2d n=1 c=16 h=14 w=14 k=16 r=3 s=3 padding=1 dtype=f16",
    *(f"conv2d n=1 c=8 h=9 w=9 k=8 r=3 s=3 padding=1 bias=1 residual=1 activation={a}" for a in ACTIVATIONS),
)


class ConvContract:
    algorithm: ClassVar[str]
    hardware: ClassVar[HardwareProfile] = hardware.detect()
    configs_per_workload: ClassVar[int] = 2

    @property
    def subject(self) -> Algorithm:
        return registry.algorithm(self.algorithm)

    def configs(self, workload: Conv2d) -> list[dict[str, Any]]:
        """Seeds first, then a fixed draw from the space."""
        space = self.subject.space(workload, self.hardware)
        random = Random(workload.spec)
        found = [dict(seed) for seed in space.seeds[:1]]
        while len(found) < self.configs_per_workload:
            drawn = space.sample(random)
            assert drawn is not None, "an algorithm that does not refuse has at least one configuration"
            found.append(drawn)
        return found

    def built(self, workload: Conv2d, params: dict[str, Any], constants: dict[str, Any]) -> Built:
        self.subject.compile(workload, params)
        return self.subject.build(workload, params, constants)

    def assert_right(self, workload: Conv2d, seed: int = 3) -> None:
        """Refused with a sentence, or right for each config: values, shape, layout, fresh memory, inputs untouched."""
        reason = self.subject.refusal(workload, self.hardware)
        if reason:
            assert len(reason) > 10
            assert "\n" not in reason
            return
        op = registry.op("conv2d")
        constants = op.constants(workload, seed)
        cases = []
        for index in range(2):
            inputs = op.inputs(workload, seed + index)
            reference = op.reference(workload, constants, inputs)
            cases.append(Case(inputs, reference, op.magnitude(workload, constants, inputs)))
        for params in self.configs(workload):
            assert self.subject.space(workload, self.hardware).contains(params)
            built = self.built(workload, params, constants)
            assert built.workspace_bytes >= 0
            verdict = check(
                built.call, cases, self.subject.error_bound(workload), lambda y: op.result_problem(workload, y)
            )
            assert verdict.status is Status.OK, (verdict.message, workload.spec, params)

    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("spec", SHAPES)
    def test_right_or_refused_with_a_reason(self, spec: str, layout: str) -> None:
        workload = registry.parse_workload(f"{spec} layout={layout}")
        assert isinstance(workload, Conv2d)
        self.assert_right(workload)

    @settings(
        max_examples=25,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
    )
    @given(data=st.data())
    def test_right_or_refused_for_any_shape(self, data: st.DataObject) -> None:
        self.assert_right(data.draw(convolutions()), data.draw(st.integers(0, 1000)))

    def test_any_memory_format_of_the_image_is_taken(self) -> None:
        """A caller may hand over the other layout, a view, or an expanded image: right all the same."""
        workload = Conv2d(2, 8, 10, 12, 8, 3, 3, padding=1, bias=True)
        if self.subject.refusal(workload, self.hardware):
            pytest.skip("it does not take this workload")
        constants = registry.op("conv2d").constants(workload, 5)
        call = self.built(workload, self.configs(workload)[0], constants).call
        (x,) = registry.op("conv2d").inputs(workload, 5)
        views = (x, in_layout(x, "channels_last"), torch.randn(2, 16, 10, 24)[:, ::2, :, ::2], x[:1].expand(x.shape))
        for view in views:
            expected = plain(workload, constants["weight"], constants["bias"], view)
            assert torch.allclose(call(view), expected, atol=1e-3)

    def test_nan_in_the_image_reaches_what_depends_on_it_only(self) -> None:
        workload = Conv2d(1, 8, 24, 24, 8, 3, 3, padding=1)
        if self.subject.refusal(workload, self.hardware):
            pytest.skip("it does not take this workload")
        constants = registry.op("conv2d").constants(workload, 5)
        (x,) = registry.op("conv2d").inputs(workload, 5)
        x[0, 3, 12, 12] = float("nan")
        y = self.built(workload, self.configs(workload)[0], constants).call(x)
        assert y[0, :, 11:14, 11:14].isnan().all()
        far = torch.ones(24, 24, dtype=torch.bool)
        far[4:20, 4:20] = False  # a Winograd tile may spread it over the tile
        assert not y[0][:, far].isnan().any()


@st.composite
def convolutions(draw: st.DrawFn) -> Conv2d:
    """Valid convolutions of every kind, small."""
    groups = draw(st.sampled_from((1, 1, 1, 2, 3, 8)))
    depthwise = draw(st.booleans()) and groups > 1
    c = groups if depthwise else groups * draw(st.integers(1, 9))
    r, s = draw(st.sampled_from(((3, 3), (3, 3), (1, 1), (5, 5), (1, 3), (3, 1), (2, 4), (7, 7))))
    try:
        return Conv2d(
            draw(st.integers(1, 3)),
            c,
            draw(st.integers(1, 20)),
            draw(st.integers(1, 20)),
            groups * draw(st.integers(1, 9)),
            r,
            s,
            draw(st.sampled_from((1, 1, 1, 2, (2, 1), 3))),
            draw(st.sampled_from((0, 1, 1, 2, (1, 0), (0, 1, 2, 3), "same", "valid"))),
            draw(st.sampled_from((1, 1, 1, 2, (1, 2)))),
            groups,
            layout=draw(st.sampled_from(LAYOUTS)),
            bias=draw(st.booleans()),
            activation=draw(st.sampled_from(ACTIVATIONS)),
            residual=draw(st.booleans()),
        )
    except InvalidInput:  # the filter is larger than the padded image: give it room
        return Conv2d(1, c, r + 8, s + 8, groups * 2, r, s, groups=groups)
