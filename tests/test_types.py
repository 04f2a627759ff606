"""The nouns: what can be constructed, what their keys are made of, and their ways through JSON and spec strings."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass, fields, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune import registry
from autotune.canonical import KEY_LENGTH, canonical_json
from autotune.dtypes import ITEMSIZE_BYTES
from autotune.errors import InvalidInput
from autotune.measure import wire
from autotune.ops.activations import ACTIVATIONS
from autotune.ops.gemm import Gemm
from autotune.ops.linear import Linear
from autotune.records import BenchmarkSpec, Measurement, Stage, Status
from autotune.types import Cache, Config, Environment, HardwareProfile, StrideClass, Workload
from tests import store_samples as sample

DIMS = st.integers(0, 2**63 - 1)
LAYOUTS = st.sampled_from([layout.value for layout in StrideClass])
DTYPES = st.sampled_from(sorted(ITEMSIZE_BYTES))
LINEARS = st.builds(Linear, DIMS, DIMS, DIMS, DTYPES, st.booleans(), st.sampled_from(ACTIVATIONS), LAYOUTS)
GEMMS = st.builds(Gemm, DIMS, DIMS, DIMS, DIMS, DTYPES, LAYOUTS, LAYOUTS)
WORKLOADS: st.SearchStrategy[Workload] = LINEARS | GEMMS

VALUES = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=5,
)
PARAMS = st.dictionaries(st.text(), VALUES, max_size=5)

FULL_PROFILE = replace(
    sample.HARDWARE,
    performance_cores=4,
    efficiency_cores=4,
    numa_nodes=2,
    slice="1g.18gb",
    peak_gflops={"f32": 1234.5, "f64": 617.25},
    bandwidth_gbs=81.5,
)
FULL_ENVIRONMENT = Environment(
    framework="torch 2.13.0+cpu",
    libraries=("numpy 2.4.6", "numba 0.68.1"),
    compiler="g++ 12.2.0",
    driver="nvidia 570.86.15",
    threads="gomp",
    num_threads="2",
    wait_policy="OMP_WAIT_POLICY=passive",
    allocator="libjemalloc.so.2",
    system="linux",
)


# Workloads: construction


@pytest.mark.parametrize(
    "value",
    [True, False, np.True_, 4.0, np.float64(4), "4", None, [4], (4,), int, 4j, np.array([4, 4]), b"4"],
    ids=repr,
)
def test_a_dimension_that_is_no_whole_number_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match="m must be a whole number"):
        Linear(value, 2, 3)


@pytest.mark.parametrize("value", [-1, np.int64(-1), -(2**63), 2**63, 10**30])
def test_a_dimension_out_of_range_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match=r"k=.* is out of range"):
        Gemm(1, 2, value)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_numpy_integers_are_plain_ones(kind: Any) -> None:
    workload = Linear(kind(3), kind(4), kind(5))
    assert workload == Linear(3, 4, 5)
    assert workload.key == Linear(3, 4, 5).key
    assert type(workload.m) is int


def test_the_largest_dimension_is_the_largest_64_bit_integer() -> None:
    assert Linear(2**63 - 1, 1, 1).m == 2**63 - 1


@pytest.mark.parametrize("workload", [Linear(0, 4, 8), Linear(4, 0, 8), Linear(4, 8, 0), Gemm(0, 4, 8), Gemm(4, 8, 0)])
def test_c14_a_dimension_of_zero_is_valid_and_leaves_nothing_to_tune(workload: Workload) -> None:
    assert workload.is_empty
    assert workload.flops == 0
    assert workload.bytes >= 0
    assert not Linear(1, 1, 1).is_empty


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dtype", "f31"),
        ("dtype", None),
        ("dtype", ["f32"]),
        ("dtype", {}),
        ("dtype", np.float32),
        ("activation", "tanh"),
        ("activation", 0),
        ("weight_layout", "Contiguous"),
        ("weight_layout", ["contiguous"]),
    ],
)
def test_a_value_that_is_not_one_of_the_choices_is_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"{field}=.* is not one of"):
        Linear(1, 2, 3, **{field: value})


@pytest.mark.parametrize("value", ["yes", "0", 2, -1, None, [1], np.array([1, 0])], ids=repr)
def test_a_flag_that_is_neither_true_nor_false_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match="bias must be true or false"):
        Linear(1, 2, 3, bias=value)


@pytest.mark.parametrize("value", [True, 1, np.True_])
def test_a_flag_may_be_written_as_one(value: Any) -> None:
    assert Linear(1, 2, 3, bias=value) == Linear(1, 2, 3, bias=True)
    assert Linear(1, 2, 3, bias=value).bias is True


def test_a_layout_may_be_given_as_its_class() -> None:
    assert Gemm(1, 2, 3, a_layout=StrideClass.STRIDED) == Gemm(1, 2, 3, a_layout="strided")


def test_workloads_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Linear(1, 2, 3).m = 4  # type: ignore[misc]


def test_unknown_and_missing_fields_are_named() -> None:
    with pytest.raises(InvalidInput, match="linear has no field 'q'; its fields are m, n, k"):
        Linear.from_dims({"m": 1, "n": 2, "k": 3, "q": 4})
    with pytest.raises(InvalidInput, match="linear needs n=… k=…"):
        Linear.from_dims({"m": 1})


# Workloads: keys and counts


@given(WORKLOADS, WORKLOADS)
def test_equal_keys_are_equal_workloads(a: Workload, b: Workload) -> None:
    assert (a == b) == (a.key == b.key) == (a.spec == b.spec)
    assert a != b or hash(a) == hash(b)
    assert len(a.key) == KEY_LENGTH


def test_two_ops_of_the_same_shape_are_two_workloads() -> None:
    assert Linear(1, 2, 3) != Gemm(1, 2, 3)
    assert Linear(1, 2, 3).key != Gemm(1, 2, 3).key


def test_a_default_is_not_in_the_key_but_dtype_always_is() -> None:
    assert Linear(1, 2, 3).dims() == {"m": 1, "n": 2, "k": 3, "dtype": "f32"}
    assert Linear(1, 2, 3, "f32", False, "none", "contiguous").key == Linear(1, 2, 3).key
    assert Gemm(1, 2, 3, batch=1).dims() == {"m": 1, "n": 2, "k": 3, "dtype": "f32"}
    assert Linear(1, 2, 3, bias=True).dims() == {"m": 1, "n": 2, "k": 3, "dtype": "f32", "bias": True}


def test_a_field_added_later_changes_no_existing_key() -> None:
    @dataclass(frozen=True, eq=False)
    class Before(Workload):
        op = "probe"
        n: int
        dtype: str = "f32"

    @dataclass(frozen=True, eq=False)
    class After(Before):
        groups: int = 1

    assert After(5).key == Before(5).key
    assert After(5, groups=2).key != Before(5).key


def test_c1_each_dtype_has_its_own_key() -> None:
    keys = {Gemm(512, 512, 512, dtype=dtype).key for dtype in ("f16", "f32", "bf16")}
    assert len(keys) == 3


def test_c13_the_stride_class_is_in_the_key() -> None:
    assert len({Linear(1, 2, 3, weight_layout=layout.value).key for layout in StrideClass}) == 4
    pairs = {Gemm(1, 2, 3, a_layout=a.value, b_layout=b.value).key for a in StrideClass for b in StrideClass}
    assert len(pairs) == 16


def test_c7_counts_of_large_batches_are_exact() -> None:
    workload = Gemm(m=2560, n=3072, k=3072, batch=320)
    assert workload.flops == 2 * 320 * 2560 * 3072 * 3072
    assert workload.bytes == 320 * (2560 * 3072 + 3072 * 3072 + 2560 * 3072) * 4
    assert 2**31 < workload.bytes < workload.flops < 2**63
    assert type(workload.flops) is type(workload.bytes) is int


@given(st.integers(1, 2**20), st.integers(1, 2**20), st.integers(1, 2**20), DTYPES)
def test_a_linear_layer_counts_like_the_gemm_it_is(m: int, n: int, k: int, dtype: str) -> None:
    linear, gemm = Linear(m, n, k, dtype), Gemm(m, n, k, 1, dtype)
    assert (linear.flops, linear.bytes) == (gemm.flops, gemm.bytes)
    assert Linear(m, n, k, dtype, bias=True).bytes == linear.bytes + n * ITEMSIZE_BYTES[dtype]


# Workloads: spec strings


@given(WORKLOADS)
def test_a_spec_string_is_read_back(workload: Workload) -> None:
    assert registry.parse_workload(workload.spec) == workload
    assert str(workload) == workload.spec


@given(WORKLOADS)
def test_json_is_read_back(workload: Workload) -> None:
    dims = json.loads(canonical_json(workload.dims()))
    assert registry.op(workload.op).workload.from_dims(dims) == workload


def test_spec_strings_look_like_the_documented_one() -> None:
    assert Linear(1, 4096, 1024).spec == "linear m=1 n=4096 k=1024 dtype=f32"
    assert Linear(2, 3, 4, bias=True, activation="relu").spec == "linear m=2 n=3 k=4 dtype=f32 bias=1 activation=relu"


# Keys do not depend on the process

KEYS_PROGRAM = """
from autotune.ops.gemm import Gemm
from autotune.ops.linear import Linear
from autotune.records import BenchmarkSpec
from autotune.types import Cache, Config, Environment, HardwareProfile
config = Config("tiled", {"tile": (6, 16), "b": True, "é": "ü", "x": 0.1})
hardware = HardwareProfile("cpu", "n", "v", "x86_64", "m", ("fma", "avx2", "avx"), caches=(Cache(1, 32768),))
nouns = (Linear(1, 2, 3, bias=True), Gemm(4, 5, 6, b_layout="transposed"), config, hardware,
         Environment("torch 2.13.0", ("numpy 2.4.6",)), BenchmarkSpec())
print(*(noun.key for noun in nouns))
"""


def test_keys_are_equal_in_every_process() -> None:
    def keys(seed: str) -> str:
        environ = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", KEYS_PROGRAM]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=60).stdout

    found = keys("1")
    assert found == keys("4242")
    assert found.split()[0] == Linear(1, 2, 3, bias=True).key


def test_keys_are_what_they_were_when_databases_were_written() -> None:
    """Shipped databases hold these: a change here needs a migration."""
    assert Linear(1, 4096, 1024).key == "2d5c4b98c7528a9d60c3da183e8ccf82"
    assert Gemm(1000, 999, 1001, 2, "bf16", b_layout="transposed").key == "a78f7b0424b11f3b4ecbb79d980b76e5"
    assert Config("torch").key == "846fe62d983dbd34498e272e8379447e"
    assert Config("tiled", {"tile": (6, 16), "split": "n"}).key == "b339ce894e076d1acddc6f033d88fae4"


# Configs


@given(PARAMS)
def test_parameters_come_back_from_json_as_they_were(params: Mapping[str, Any]) -> None:
    config = Config("tiled", params)
    back = Config("tiled", json.loads(config.params_json))
    assert back == config
    assert back.key == config.key
    assert dict(back.params) == dict(params)
    assert [type(v) for v in back.params.values()] == [type(params[name]) for name in sorted(params)]


def test_c26_tuples_stay_tuples() -> None:
    config = Config("tiled", {"tile": (6, (16, 2)), "order": ("m", "n")})
    back = wire.config_from_json(json.loads(json.dumps(wire.config_to_json(config))))
    assert back.params["tile"] == (6, (16, 2))
    assert back.params["order"] == ("m", "n")
    assert back.key == config.key
    assert hash(back) == hash(config)


@given(st.permutations(["tile", "kc", "nc", "split", "threads"]))
def test_the_key_does_not_depend_on_the_order_of_parameters(names: list[str]) -> None:
    values = {"tile": (6, 16), "kc": 256, "nc": 0, "split": "n", "threads": 2}
    assert Config("tiled", {name: values[name] for name in names}).key == Config("tiled", values).key


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, (1, (math.nan,)), None, {"a": 1}, {1}, b"x"])
def test_a_parameter_that_json_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match="parameter kc must be"):
        Config("tiled", {"kc": value})


def test_parameters_are_frozen() -> None:
    given_params = {"kc": 256}
    config = Config("tiled", given_params)
    key = config.key
    given_params["kc"] = 512
    with pytest.raises(TypeError):
        config.params["kc"] = 512  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        config.algorithm = "other"  # type: ignore[misc]
    assert (config.params["kc"], config.key) == (256, key)


def test_everything_in_a_config_is_in_its_key() -> None:
    configs = [
        Config("tiled", {"kc": 1}),
        Config("tiled", {"kc": 2}),
        Config("tiled", {"kc": "1"}),
        Config("tiled", {"kc": (1,)}),
        Config("tiled", {"nc": 1}),
        Config("other", {"kc": 1}),
        Config("tiled", {"kc": 1}, "cuda:0"),
    ]
    assert len({config.key for config in configs}) == len(configs)


@pytest.mark.parametrize("values", [(1, True), (1, 1.0), (0, False), (0.0, -0.0)], ids=repr)
def test_configs_are_equal_exactly_when_their_keys_are(values: tuple[Any, Any]) -> None:
    one, other = (Config("tiled", {"kc": value}) for value in values)
    assert (one == other) == (one.key == other.key) == (len({one, other}) == 1)


def test_a_config_needs_an_algorithm_and_a_placement() -> None:
    with pytest.raises(InvalidInput, match="needs an algorithm"):
        Config("")
    with pytest.raises(InvalidInput, match="needs an algorithm and a placement"):
        Config("torch", {}, "")


# Hardware


@pytest.mark.parametrize(
    "change",
    [
        {"name": "Marketing Name 9000 (TM)"},
        {"peak_gflops": {"f32": 1.0}},
        {"bandwidth_gbs": 1.0},
        {"memory_bytes": (64 << 30) - 12345},  # the kernel reserved a little more
    ],
)
def test_what_only_describes_a_machine_is_not_in_its_key(change: dict[str, Any]) -> None:
    assert replace(FULL_PROFILE, **change).key == FULL_PROFILE.key


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "gpu"},
        {"vendor": "Other"},
        {"arch": "aarch64"},
        {"model": "family 1 model 3"},
        {"isa": ("avx2",)},
        {"physical_cores": 4},
        {"logical_cores": 8},
        {"performance_cores": 8, "efficiency_cores": 0},
        {"caches": (Cache(1, 32_768, 2),)},
        {"caches": tuple(replace(c, shared_by=1) for c in sample.HARDWARE.caches)},
        {"numa_nodes": 1},
        {"memory_bytes": 16 << 30},
        {"allowed_cpus": 15},
        {"slice": "2g.35gb"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_silicon_and_limits_are_in_the_key(change: dict[str, Any]) -> None:
    assert replace(FULL_PROFILE, **change).key != FULL_PROFILE.key


def test_isa_flags_are_a_set() -> None:
    shuffled = replace(FULL_PROFILE, isa=("fma", "avx2", "fma"))
    assert shuffled.key == FULL_PROFILE.key
    assert shuffled.isa == ("avx2", "fma")


@pytest.mark.parametrize(
    "change", [{"kind": "tpu"}, {"allowed_cpus": 0}, {"logical_cores": -1}, {"physical_cores": True}], ids=str
)
def test_an_impossible_machine_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        replace(FULL_PROFILE, **change)


def test_a_missing_cache_level_has_no_size() -> None:
    assert FULL_PROFILE.cache_bytes(2) == 1_048_576
    assert FULL_PROFILE.cache_bytes(4) == 0


# Environments and benchmark specs


@pytest.mark.parametrize("name", [item.name for item in fields(Environment)])
def test_every_field_of_an_environment_is_in_its_key(name: str) -> None:
    changed: Any = ("other 1",) if name == "libraries" else "other"
    assert replace(FULL_ENVIRONMENT, **{name: changed}).key != FULL_ENVIRONMENT.key


@pytest.mark.parametrize("name", [item.name for item in fields(BenchmarkSpec)])
def test_every_field_of_a_benchmark_spec_is_in_its_key(name: str) -> None:
    value = getattr(BenchmarkSpec(), name)
    choices = {"cache_state": "cold", "operands_on": "host", "clock": "events", "graph": True}
    changed = choices.get(name, value + "!" if isinstance(value, str) else value * 2)
    assert replace(BenchmarkSpec(), **{name: changed}).key != BenchmarkSpec().key


# JSON


@pytest.mark.parametrize(
    "noun", [FULL_PROFILE, sample.HARDWARE, FULL_ENVIRONMENT, Environment("torch"), BenchmarkSpec(final_pairs=20)]
)
def test_nouns_come_back_from_json(noun: Any) -> None:
    back = type(noun).from_json(json.loads(json.dumps(noun.to_json(), allow_nan=False)))
    assert back == noun
    assert back.key == noun.key
    assert hash(back) == hash(noun)


@pytest.mark.parametrize("kind", [HardwareProfile, Environment, BenchmarkSpec])
def test_fields_of_a_later_version_are_passed_over(kind: Any) -> None:
    noun = {HardwareProfile: FULL_PROFILE, Environment: FULL_ENVIRONMENT, BenchmarkSpec: BenchmarkSpec()}[kind]
    assert kind.from_json({**noun.to_json(), "of_a_later_version": 1}) == noun


MEASUREMENTS = [
    Measurement(Status.OK, "", (100, 110), (200, 215), 1e-7, 5, 6, 7, True),
    Measurement(Status.WRONG_RESULT, "an element is off by 0.1", max_error=0.1, build_ns=3),
    Measurement(Status.NOT_APPLICABLE, "no compiler"),
]


@pytest.mark.parametrize("measurement", MEASUREMENTS, ids=lambda m: m.status.value)
def test_measurements_come_back_from_json(measurement: Measurement) -> None:
    text = json.dumps(wire.measurement_to_json(measurement), allow_nan=False)
    assert wire.measurement_from_json(json.loads(text)) == measurement


# Measurements


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan, 0, 0.0, -1, "12", None], ids=repr)
@pytest.mark.parametrize("where", ["times_ns", "baseline_ns"])
def test_c25_a_time_that_is_no_time_is_a_failed_run(bad: Any, where: str) -> None:
    good: dict[str, Any] = {"times_ns": (100, 101, 102), "baseline_ns": (200, 201, 202)}
    found = Measurement(Status.OK, **{**good, where: (100, bad, 102)})
    assert found.status is Status.RUN_FAILED
    assert f"recorded time {bad!r} is not a positive finite number" in found.message
    assert (found.times_ns, found.baseline_ns) == ((), ())
    assert (found.speedup, found.interval, found.median_ns, found.baseline_median_ns) == (None, None, None, None)


@pytest.mark.parametrize(
    ("times", "baseline", "message"),
    [
        ((), (), "no time was recorded"),
        ((), (1,), "no time was recorded"),
        ((1, 2), (), "2 times but 0 baseline times"),
    ],
)
def test_c25_times_without_a_baseline_are_a_failed_run(times: Any, baseline: Any, message: str) -> None:
    found = Measurement(Status.OK, times_ns=times, baseline_ns=baseline)
    assert (found.status, found.message) == (Status.RUN_FAILED, message)
    assert (found.times_ns, found.baseline_ns) == ((), ())


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_a_failure_keeps_its_message_and_no_times(status: Status) -> None:
    found = Measurement(status, "why", (100,), (200,))
    assert (found.status, found.message) == (status, "why")
    assert (found.times_ns, found.baseline_ns, found.speedup) == ((), (), None)


@pytest.mark.parametrize("error", [math.nan, math.inf])
def test_an_error_that_is_no_number_is_not_known(error: float) -> None:
    assert Measurement(Status.WRONG_RESULT, max_error=error).max_error is None


PAIRS = st.lists(st.tuples(st.integers(1, 10**12), st.integers(1, 10**12)), min_size=1, max_size=12)


@settings(max_examples=30)
@given(PAIRS)
def test_the_interval_contains_the_speedup_and_is_always_the_same(pairs: list[tuple[int, int]]) -> None:
    times, baseline = (tuple(side) for side in zip(*pairs, strict=True))
    one, other = (Measurement(Status.OK, "", times, baseline) for _ in range(2))
    assert one.interval == other.interval
    assert one.interval is not None
    assert one.speedup is not None
    low, high = one.interval
    assert 0 < low <= one.speedup <= high


def test_the_speedup_is_the_median_of_paired_ratios() -> None:
    drifting = Measurement(Status.OK, "", (100, 200, 400), (200, 400, 1200))
    assert drifting.speedup == 2.0
    assert (drifting.median_ns, drifting.baseline_median_ns) == (200, 400)


# Records


def test_the_same_content_has_the_same_uid() -> None:
    assert sample.record().uid == sample.record().uid
    again = sample.record(sample.ok((1, 2, 3)), measured_at=sample.at(60))
    assert again.uid == sample.record().uid, "what came out, and when, is no part of what was measured"


@pytest.mark.parametrize(
    "change",
    [
        {"workload": Linear(2, 4096, 1024)},
        {"config": Config("torch")},
        {"hardware": sample.OTHER_HARDWARE},
        {"environment": sample.OTHER_ENVIRONMENT},
        {"spec": BenchmarkSpec(final_pairs=20)},
        {"kernel_revision": "r2"},
        {"stage": Stage.SCREEN},
        {"job": "job-2"},
        {"repetition": 1},
        {"source": "imported"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_everything_that_was_measured_is_in_the_uid(change: dict[str, Any]) -> None:
    assert sample.record(**change).uid != sample.record().uid


def test_a_time_zone_is_required_and_time_is_kept_in_utc() -> None:
    with pytest.raises(InvalidInput, match="time zone"):
        sample.record(measured_at=datetime(2026, 1, 31, 9, 30))
    there = datetime(2026, 1, 31, 11, 30, tzinfo=timezone(timedelta(hours=2)))
    found = sample.record(measured_at=there).measured_at
    assert (found, found.tzinfo) == (datetime(2026, 1, 31, 9, 30, tzinfo=UTC), UTC)
