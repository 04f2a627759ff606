"""SearchSpace: what it contains is what it iterates over and draws from."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune import hardware
from autotune.errors import InvalidInput
from autotune.kernels.tiled_space import tiled_space
from autotune.ops.gemm import Gemm
from autotune.ops.linear import Linear
from autotune.space import Params, SearchSpace
from autotune.types import Workload

VALUES = st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True).map(tuple)
PARAMETERS = st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=4)


def even_sum(params: Params) -> bool:
    return sum(value for value in params.values() if isinstance(value, int)) % 2 == 0


SPACES = st.builds(SearchSpace, PARAMETERS, st.sampled_from([(), (even_sum,)]))


@given(SPACES)
def test_everything_iterated_is_contained_once(space: SearchSpace) -> None:
    combinations = list(space)
    assert all(space.contains(params) and space.valid(params) for params in combinations)
    assert len({tuple(params.items()) for params in combinations}) == len(combinations) <= space.size
    assert list(space) == combinations, "the order is fixed"


@given(PARAMETERS)
def test_without_constraints_every_combination_is_iterated(parameters: Mapping[str, tuple[int, ...]]) -> None:
    space = SearchSpace(parameters)
    assert len(list(space)) == space.size


@given(SPACES, st.integers())
def test_a_sample_is_contained(space: SearchSpace, seed: int) -> None:
    params = space.sample(Random(seed))
    assert params is None or space.contains(params)
    assert params is not None or not list(space)
    assert space.sample(Random(seed)) == params, "the same seed draws the same sample"


SHAPES = st.integers(1, 300)


@settings(max_examples=15, deadline=None)
@given(st.builds(Linear, SHAPES, SHAPES, SHAPES) | st.builds(Gemm, SHAPES, SHAPES, SHAPES, st.integers(1, 3)))
def test_the_tiled_kernel_has_valid_configs_and_seeds_for_every_shape(workload: Workload) -> None:
    space = tiled_space(workload, hardware.detect(), 4, (1, 2))
    assert space.seeds
    params = space.sample(Random(1))
    assert params is not None
    assert space.contains(params)


def test_a_space_without_parameters_has_one_combination() -> None:
    assert (list(SearchSpace({})), SearchSpace({}).size) == ([{}], 1)
    assert SearchSpace({}).sample(Random(0)) == {}


@pytest.mark.parametrize("other", [True, 1.0, "1", (1,), None])
def test_equal_looking_values_of_another_type_are_not_contained(other: Any) -> None:
    space = SearchSpace({"unroll": (1, 2)})
    assert space.contains({"unroll": 1})
    assert not space.contains({"unroll": other})
    assert not SearchSpace({"pack": (True, False)}).contains({"pack": 1})


@pytest.mark.parametrize("params", [{}, {"a": 1}, {"a": 1, "b": 3}, {"a": 1, "b": 2, "c": 3}])
def test_exactly_the_parameters_of_the_space_are_contained(params: Params) -> None:
    space = SearchSpace({"a": (1,), "b": (2,)})
    assert not space.contains(params)
    assert space.contains({"b": 2, "a": 1})


@pytest.mark.parametrize("seed", [{}, {"a": 3}, {"a": True}, {"a": 1}, {"a": 2, "b": 1}])
def test_a_seed_outside_the_space_is_refused(seed: Params) -> None:
    with pytest.raises(InvalidInput, match="outside the space"):
        SearchSpace({"a": (1, 2)}, (even_sum,), (seed,))
    assert SearchSpace({"a": (1, 2)}, (even_sum,), ({"a": 2},)).seeds == ({"a": 2},)


def test_a_parameter_without_values_is_refused() -> None:
    with pytest.raises(InvalidInput, match="parameter b has no values"):
        SearchSpace({"a": (1,), "b": ()})


def test_contradictory_constraints_leave_nothing() -> None:
    space = SearchSpace({"a": (1, 2)}, (even_sum, lambda params: not even_sum(params)))
    assert list(space) == []
    assert space.sample(Random(0)) is None
    assert not space.contains({"a": 1})
    assert space.size == 2, "the size counts combinations before constraints"
