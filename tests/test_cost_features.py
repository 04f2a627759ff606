"""Features: what they say, and that training and lookup see the same numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.cost.features import FeatureSet, Table, roofline_ns
from autotune.cost.views import distance, shape_of, view
from autotune.ops.attention import Attention
from autotune.ops.conv2d import Conv2d
from autotune.ops.embedding_bag import EmbeddingBag
from autotune.ops.gemm import Gemm
from autotune.ops.linear import Linear
from autotune.types import Config, Workload
from tests import store_samples as sample

LAYER = Linear(m=10, n=100, k=64)
TILED = Config(
    "tiled", {"tile": (4, 32), "vector": 32, "threads": 2, "chunks": 2, "split": "n", "kc": 32, "mc": 0, "nc": 0}
)
PLAIN = Config("torch")


def value(name: str, config: Config = TILED, workload: Linear | Conv2d | Gemm = LAYER) -> float:
    made = FeatureSet.of([workload], [TILED, PLAIN, config])
    return float(made.matrix(workload, sample.HARDWARE, Table([config]))[0, made.names.index(name)])


def test_tile_efficiency_is_the_useful_share_of_the_products() -> None:
    assert value("row_efficiency") == pytest.approx(10 / 12)
    assert value("column_efficiency") == pytest.approx(100 / 128)
    assert value("tile_efficiency") == pytest.approx(10 * 100 / (12 * 128))


def test_waves_and_panels() -> None:
    assert 2 ** value("log2_units") == pytest.approx(4)  # panels of 32 columns
    assert value("wave_fill") == pytest.approx(1.0)
    assert 2 ** value("log2_panel_of_l1") * 32_768 == pytest.approx(32 * 32 * 4)
    assert value("register_share") == pytest.approx((4 * 4 + 4 + 1) / 16)


def test_what_a_config_does_not_have_is_missing_and_not_zero() -> None:
    assert np.isnan(value("tile_efficiency", PLAIN))
    assert np.isnan(value("param.tile[0]", PLAIN))


def test_winograd_multiplies_less() -> None:
    conv = Conv2d(n=1, c=64, h=56, w=56, k=64, r=3, s=3, padding=1)
    config = Config("winograd", {"m": 4, "tile": (6, 32), "vector": 32, "threads": 2, "split": "tiles", "block": 0})
    assert value("work_share", config, conv) == pytest.approx(36 / (16 * 9), rel=1e-3)


def test_more_threads_than_units_leave_the_last_wave_empty() -> None:
    config = replace(TILED, params={**TILED.params, "threads": 16, "chunks": 1})
    assert value("wave_fill", config) == pytest.approx(4 / 16)


def test_a_category_never_seen_has_no_column_of_its_own_and_nobody_elses() -> None:
    made = FeatureSet.of([LAYER], [TILED, PLAIN])
    alien = Config("alien", {"tile": (4, 32)})
    row = made.matrix(LAYER, sample.HARDWARE, Table([alien]))[0]
    assert [row[i] for i, name in enumerate(made.names) if name.startswith("algorithm=")] == [0.0, 0.0]
    assert made.knows(TILED)
    assert not made.knows(alien)
    assert not made.knows(Config("tiled", {**TILED.params, "split": "z"}))
    assert made.unseen(Linear(m=10, n=100, k=64, dtype="bf16")) == "dtype bf16"


def test_c15_the_name_of_a_machine_is_no_feature() -> None:
    made = FeatureSet.of([LAYER], [TILED])
    renamed = replace(sample.HARDWARE, name="SAMPLE_CPU_2.00GHz", peak_gflops={"f32": 99.0})
    table = Table([TILED])
    np.testing.assert_array_equal(made.matrix(LAYER, sample.HARDWARE, table), made.matrix(LAYER, renamed, table))


def test_columns_come_in_the_order_that_is_asked_for() -> None:
    made = FeatureSet.of([LAYER], [TILED, PLAIN])
    turned = made.reordered(made.names[::-1])
    table = Table([TILED, PLAIN])
    np.testing.assert_array_equal(
        made.matrix(LAYER, sample.HARDWARE, table)[:, ::-1], turned.matrix(LAYER, sample.HARDWARE, table)
    )
    with pytest.raises(ValueError, match=r"param\.kc"):
        made.reordered([name for name in made.names if name != "param.kc"])


def test_a_config_alone_has_the_features_that_it_has_among_others() -> None:
    made = FeatureSet.of([LAYER], [TILED, PLAIN])
    both = made.matrix(LAYER, sample.HARDWARE, Table([PLAIN, TILED]))
    np.testing.assert_array_equal(both[1:], made.matrix(LAYER, sample.HARDWARE, Table([TILED])))


def test_every_op_and_layout_has_numbers() -> None:
    for workload in (
        LAYER,
        Gemm(m=8, n=8, k=8, batch=3),
        Conv2d(n=2, c=8, h=9, w=9, k=8, r=3, s=3, groups=8, layout="channels_last"),
        Conv2d(n=1, c=1, h=1, w=1, k=1, r=1, s=1),
    ):
        made = FeatureSet.of([workload], [TILED, Config("depthwise", {"rows": 1, "columns": 2, "vector": 32})])
        row = made.workload_row(workload, sample.HARDWARE)
        assert np.isfinite(row[: len(made.extras) + 18]).all()
        assert roofline_ns(workload, sample.HARDWARE) >= 1


def test_shapes_ignore_batch_dtype_and_epilogue_and_distance_does_not() -> None:
    a, b = Linear(m=1, n=64, k=32), Linear(m=64, n=64, k=32, dtype="bf16", bias=True, activation="relu")
    assert shape_of(a) == shape_of(b) != shape_of(Linear(m=1, n=64, k=33))
    assert distance(view(a), view(a)) == 0
    assert distance(view(a), view(b)) > 6


def test_what_attention_and_bags_move_beyond_their_operands_is_counted() -> None:
    step = Attention(1, 32, 8, 1, 2048, 128)

    def moved(config: Config, workload: Workload = step) -> float:
        made = FeatureSet.of([workload], [config])
        row = made.matrix(workload, sample.HARDWARE, Table([config]))[0]
        return float((2 ** row[made.names.index("log2_extra_bytes_share")] - 1) * workload.bytes)

    whole = Config("stream_kv", {"tile": 4, "block": 64, "prefetch": 0, "splits": 1, "vector": 32, "threads": 2})
    assert moved(whole) == 0
    for name in ("split", "splits"):
        assert moved(Config("any", {name: 16})) == pytest.approx(2 * 16 * 32 * (128 + 2) * 4, rel=1e-3)
    assert moved(Config("matmul_attention", {"threads": 2})) == pytest.approx(4 * 32 * 2048 * 4, rel=1e-3)
    bags = EmbeddingBag(1000, 64, 8, 5)
    assert moved(Config("gather_reduce", {"threads": 2}), bags) == pytest.approx(2 * 40 * 64 * 4, rel=1e-3)
    assert moved(Config("fused_bag", {"threads": 2}), bags) == 0
