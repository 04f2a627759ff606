"""The gate before timing: what a kernel's results must be, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from autotune.measure.check import Case, Verdict, check, poisoned_allocations
from autotune.ops import relative_error
from autotune.types import Status

BOUND = 1e-6
Tensor = torch.Tensor
Run = Callable[[Tensor], Tensor]


def cases(n: int = 1000, count: int = 2) -> list[Case]:
    """y = 3 x."""
    random = torch.Generator().manual_seed(n)
    inputs = [torch.rand(n, generator=random) + 1 for _ in range(count)]
    return [Case((x,), x.double() * 3) for x in inputs]


def verdict(run: Run, bound: float = BOUND, n: int = 1000) -> Verdict:
    return check(run, cases(n), bound)


def test_a_right_kernel_passes_with_its_worst_error() -> None:
    found = verdict(lambda x: x * 3)
    assert (found.status, found.message) == (Status.OK, "")
    assert found.max_error is not None
    assert 0 < found.max_error < 1e-7
    assert verdict(lambda x: (x.double() * 3).float() * (1 + 4e-7)).max_error == pytest.approx(2e-7, rel=0.6)


def unwritten_half(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    y[: len(x) // 2] = (x * 3)[: len(x) // 2]
    return y


def unwritten_last(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    y[:-1] = (x * 3)[:-1]
    return y


def with_nan(x: Tensor) -> Tensor:
    y = x * 3
    y[7] = math.nan
    return y


def with_inf(x: Tensor) -> Tensor:
    y = x * 3
    y[7] = math.inf
    return y


def overwrites(x: Tensor) -> Tensor:
    y = x * 3
    x[-1] += 1
    return y


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (unwritten_half, "an element is NaN or infinite"),
        (unwritten_last, "an element is NaN or infinite"),
        (with_nan, "an element is NaN or infinite"),
        (with_inf, "an element is NaN or infinite"),
        (lambda x: x * 2, "an element is off by 0.19"),
        (lambda x: x * 3.00001, "an element is off by"),
        (torch.zeros_like, "an element is off by"),
        (lambda x: (x * 3).double(), "the result is torch.float64, not torch.float32"),
        (lambda x: (x * 3).half(), "the result is torch.float16, not torch.float32"),
        (lambda x: (x * 3)[:-1], "the result has shape [999], not [1000]"),
        (lambda x: (x * 3)[None], "the result has shape [1, 1000], not [1000]"),
        (lambda x: (x * 3).sum(), "the result has shape [], not [1000]"),
        (overwrites, "an input was overwritten"),
    ],
)
def test_a_wrong_result_is_told(run: Run, message: str) -> None:
    found = verdict(run)
    assert found.status is Status.WRONG_RESULT
    assert found.message.startswith(message)
    assert found.max_error is None or found.max_error > BOUND


def test_c8_one_wrong_element_among_many_is_wrong_although_the_mean_error_is_tiny() -> None:
    def one_off(x: Tensor) -> Tensor:
        y = x * 3
        y[54_321] *= 1.001
        return y

    case = cases(100_000)[0]
    mean = ((one_off(case.inputs[0]).double() - case.reference).abs() / case.reference).mean()
    assert mean < 1e-7, "an aggregate would not see it"
    found = verdict(one_off, n=100_000)
    assert found.status is Status.WRONG_RESULT
    assert found.message.startswith("an element is off by 0.0")
    assert found.max_error is not None
    assert 3e-4 < found.max_error < 1e-3, "the error is kept with the result"


def test_a_kernel_that_reuses_its_output_is_wrong() -> None:
    buffer = torch.empty(1000)
    found = verdict(lambda x: torch.mul(x, 3, out=buffer))
    assert (found.status, found.message) == (Status.WRONG_RESULT, "the result shares memory with an earlier result")


def test_c2_two_kernels_that_write_half_each_of_a_shared_buffer_are_both_wrong() -> None:
    shared = torch.zeros(1000)

    def half(where: slice) -> Run:
        def run(x: Tensor) -> Tensor:
            shared[where] = (x * 3)[where]
            return shared

        return run

    both = [half(slice(0, 500)), half(slice(500, 1000))]
    assert [verdict(run).status for run in both] == [Status.WRONG_RESULT] * 2
    assert [verdict(run).status for run in both] == [Status.WRONG_RESULT] * 2, "nor when tried again"


def test_a_kernel_that_remembers_its_first_result_is_wrong() -> None:
    kept: list[Tensor] = []

    def stale(x: Tensor) -> Tensor:
        kept.append(x * 3)
        return kept[0].clone()

    assert verdict(stale).status is Status.WRONG_RESULT


def test_a_kernel_that_is_right_once_is_wrong() -> None:
    calls: list[int] = []

    def tires(x: Tensor) -> Tensor:
        calls.append(1)
        return x * (3 if len(calls) == 1 else 2)

    assert verdict(tires).status is Status.WRONG_RESULT


def test_results_are_overwritten_so_that_memory_a_kernel_keeps_proves_nothing() -> None:
    kept: list[Tensor] = []

    def keeps(x: Tensor) -> Tensor:
        kept.append(x * 3)
        return kept[-1]

    assert verdict(keeps).status is Status.OK
    assert len(kept) == 2
    assert all(result.isnan().all() for result in kept)


def test_the_dtype_of_a_result_is_the_cases_where_it_says_one() -> None:
    indices = torch.tensor([1, 2])
    half = Case((indices,), torch.ones(2, dtype=torch.float64), dtype=torch.float16)
    assert check(lambda i: torch.ones(2, dtype=torch.float16), [half], BOUND).status is Status.OK
    found = check(lambda i: torch.ones(2), [half], BOUND)
    assert (found.status, found.message) == (Status.WRONG_RESULT, "the result is torch.float32, not torch.float16")


def test_an_exception_comes_through() -> None:
    def fails(x: Tensor) -> Tensor:
        raise ValueError("no such tile")

    with pytest.raises(ValueError, match="no such tile"):
        verdict(fails)


def test_nan_that_belongs_there_is_not_taken_for_an_overwritten_input() -> None:
    x = torch.tensor([1.0, math.nan])
    found = check(lambda x: x * 3, [Case((x,), x.double() * 3)], BOUND)
    assert found.message == "an element is NaN or infinite", "a result that is NaN proves nothing"


def test_c14_an_empty_result_passes() -> None:
    x = torch.empty(0)
    assert check(lambda x: x * 3, [Case((x,), x.double())] * 2, BOUND) == Verdict(Status.OK, "", 0.0)


def test_new_memory_is_poisoned_only_inside() -> None:
    before = torch.are_deterministic_algorithms_enabled()
    with poisoned_allocations():
        assert torch.empty(1000).isnan().all()
    assert torch.are_deterministic_algorithms_enabled() == before

    def fails() -> None:
        with poisoned_allocations():
            raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        fails()
    assert torch.are_deterministic_algorithms_enabled() == before


# The error itself


@pytest.mark.parametrize(
    ("result", "exact", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([], [], 0.0),
        ([0.0, 0.0], [0.0, 0.0], 0.0),
        ([1.0, 0.0], [0.0, 0.0], math.inf),
        ([math.nan, 1.0], [1.0, 1.0], math.inf),
        ([math.inf, 1.0], [1.0, 1.0], math.inf),
        ([1.0], [1.0, 1.0], math.inf),
        ([1.1, 1.0], [1.0, 1.0], 0.05),  # against itself and the root mean square
    ],
)
def test_the_error_is_the_worst_elements(result: list[float], exact: list[float], error: float) -> None:
    assert relative_error(torch.tensor(result), torch.tensor(exact, dtype=torch.float64)) == pytest.approx(error)


def test_an_element_that_cancels_to_nothing_is_measured_against_the_others() -> None:
    exact = torch.tensor([1e-12, 1.0, -1.0], dtype=torch.float64)
    assert relative_error(torch.tensor([1e-8, 1.0, -1.0]), exact) < 1e-7


def test_where_all_elements_are_clipped_the_ops_own_magnitude_counts() -> None:
    result, exact = torch.tensor([1e-8, 0.0]), torch.zeros(2, dtype=torch.float64)
    assert relative_error(result, exact) == math.inf
    assert relative_error(result, exact, magnitude=1.0) == pytest.approx(1e-8)
    assert relative_error(result + 1, exact, magnitude=1.0) > 0.9
    assert relative_error(torch.tensor([math.nan, 0.0]), exact, magnitude=1.0) == math.inf
