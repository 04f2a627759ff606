"""TunableOp files: read and written byte by byte, padded leading dimensions kept apart, bad lines told."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune import registry
from autotune.cli import main
from autotune.errors import InvalidInput
from autotune.formats import BadLine, Origin
from autotune.formats.tunableop import Problem, Validator, Winner, read, write
from autotune.store.sql import open_store

TEXT = """\
Validator,PT_VERSION,2.13.0
Validator,ROCM_VERSION,6.2.0.0-66-e9a1c9d
Validator,GCN_ARCH_NAME,gfx942:sramecc+:xnack-
GemmTunableOp_float_NT,nt_65536_32768_384_ld_65536_65536_65536,Gemm_Rocblas_1234,12.5
GemmTunableOp_BFloat16_TN,tn_4096_16_4096_ld_4096_4096_4096,Default
GemmStridedBatchedTunableOp_Half_NN,nn_64_64_128_B_12_ld_64_128_64,Gemm_Hipblaslt_99,0.00731
ScaledGemmTunableOp_Float8_e4m3fn_Float8_e4m3fn_BFloat16_TN,tn_8_16_32_ld_32_32_8_rw_1_bias_None,Gemm_Hipblaslt_7,0.01
"""


def test_c19_a_file_is_written_as_it_was_read() -> None:
    lines = list(read(TEXT))
    assert not [line for line in lines if isinstance(line, BadLine)]
    assert write(line for line in lines if not isinstance(line, BadLine)) == TEXT


def test_c19_padded_leading_dimensions_are_kept_and_are_another_problem() -> None:
    key = "nt_65536_32768_384_ld_65536_65536_65536"
    problem = Problem.parse(key)
    assert str(problem) == key
    assert (problem.m, problem.n, problem.k, problem.transposed) == (65536, 32768, 384, (False, True))
    padded = Problem.parse("nt_65536_32768_384_ld_65600_65536_65536")
    assert padded != problem
    text = "\n".join(f"GemmTunableOp_float_NT,{p},Default,1.0" for p in (problem, padded))
    records = list(registry.format("tunableop").read(text, Origin("t.csv", device="gfx942")))
    assert len({record.workload.key for record in records if not isinstance(record, BadLine)}) == 2


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    st.builds(
        Problem,
        st.tuples(st.booleans(), st.booleans()),
        *(st.integers(0, 2**40) for _ in range(3)),
        st.tuples(*(st.integers(0, 2**40) for _ in range(3))),
        st.one_of(st.none(), st.integers(0, 10**6)),
    )
)
def test_any_key_comes_back(problem: Problem) -> None:
    assert Problem.parse(str(problem)) == problem


@pytest.mark.parametrize(
    "key", ["", "tn_1_2_3", "xn_1_2_3_ld_1_2_3", "tn_01_2_3_ld_1_2_3", "tn_1_2_3_ld_1_2", "tn_-1_2_3_ld_1_2_3"]
)
def test_what_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(InvalidInput, match="is no product"):
        Problem.parse(key)


def test_bad_lines_are_told_by_number_and_the_rest_is_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = "GemmTunableOp_float_NN,nn_2_3,Default,1\nnonsense\nGemmTunableOp_float_NN,nn_2_3_4_ld_2_4_2,Default,inf\n"
    path = tmp_path / "tunableop_results0.csv"
    path.write_text(TEXT + bad)
    database = str(tmp_path / "imported.sqlite")
    assert main(["import", "tunableop", str(path), "--db", database]) == 1
    told = capsys.readouterr()
    for number in (5, 8, 9, 10):
        assert str(number) in told.out + told.err
    with open_store(database) as store:
        found = list(store.records())
    assert {record.config.params["solution"] for record in found} == {
        "Gemm_Rocblas_1234",
        "Gemm_Hipblaslt_99",
        "Gemm_Hipblaslt_7",
    }
    assert {record.measurement.times_ns[0] for record in found} == {12_500_000, 7_310, 10_000}
    assert all(not record.measurement.paired and record.source == "tunableop" for record in found)


def test_a_device_and_lines_of_its_kind_are_needed() -> None:
    form = registry.format("tunableop")
    with pytest.raises(InvalidInput, match="--device"):
        list(form.read("GemmTunableOp_float_NN,nn_2_3_4_ld_2_4_2,Default,1.0", Origin("t.csv")))
    with pytest.raises(InvalidInput, match="no TunableOp file"):
        list(form.read("hello\nworld", Origin("t.csv", device="gfx942")))


def test_a_validator_may_hold_commas() -> None:
    (line,) = read("Validator,HIPBLASLT_VERSION,a,b")
    assert isinstance(line, Validator)
    assert line.value == "a,b"
    assert not isinstance(line, Winner)
