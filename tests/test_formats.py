"""Results of other tools: read line by line, written again byte by byte, imported with their bad lines told."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import json
import lzma
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from autotune import registry
from autotune.cli import main
from autotune.cost.dataset import collect
from autotune.errors import InvalidInput, Unavailable
from autotune.formats import BadLine, Format, Origin, files, miopen, miopen_key, miopen_perfdb, named_device, word
from autotune.formats.workloads import MiopenConv, RecordedKernel
from autotune.store.sql import open_store
from autotune.types import Config, Measurement, Stage, Status, TuningRecord
from tests import store_samples as sample

FWD, BWD = "miopenConvolutionFwdAlgo", "miopenConvolutionBwdDataAlgo"
KEY_2D = "8-14-10-3x1-16-14-10-2-1x0-1x1-1x1-0-NCHW-FP32-F"
NEW = f"{KEY_2D}=SolverA:0.0123456,0,{FWD}Winograd;SolverB<2-3>:1.5,4096,{FWD}GEMM"
SAME_ALGORITHM = f"8-14-14-3x3-16-14-14-2-1x1-1x1-1x1-0-NCHW-FP16-F=A1:0.5,16,{FWD}Direct;A2:0.25,0,{FWD}Direct"
OLD_KEY = "4-7-7-1x1-6-14-14-2-0x0-2x2-1x1-0-NCHW-BF16-B_g2"
OLD = f"{OLD_KEY}={BWD}GEMM:Gemm,0.4,128,x,not used;{BWD}Direct:Naive,3e+01,0,x,<unused>"
ZERO = f"8-14-14-1x1-16-14-14-2-0x0-1x1-1x1-0-NCHW-FP32-F=Z:0,0,{FWD}GEMM;A:0.5,0,{FWD}Direct"
DEEP = f"8-5-14-14-1x1x1-16-5-14-14-2-0x0-1x1x1-1x1x1-0-NCDHW-FP32-F=A:0.5,0,{FWD}Direct"
VOLUME = f"8-5-14-14-1x1x1-16-5-14-14-2-0x0x0-1x1x1-1x1x1-0-NCDHW-FP32-F=A:0.5,0,{FWD}Direct"
MI = Origin("gfx942130.HIP.fdb.txt")

CACHE = {
    "device_name": "NVIDIA_Example 10",
    "kernel_name": "stencil",
    "problem_size": [4096, 64],
    "tune_params_keys": ["block", "layout"],
    "tune_params": {"block": [16, 32], "layout": ["a", "b"]},
}
ENTRIES = {
    "16,a": {"block": 16, "layout": "a", "time": 1.5, "times": [1.0, 1.5, 2.0], "compile_time": 12.5},
    "32,a": {"block": 32, "layout": "a", "time": "CompilationFailedConfig"},
    "16,b": {"block": 16, "layout": "b", "time": "RuntimeFailedConfig"},
    "32,b": {"block": 32, "layout": "b", "compile_time": 3.0},
    "64,a": {"block": 64, "layout": "a", "time": 1e20},
    "64,b": {"block": 64, "layout": "b", "time": 3.25, "timestamp": "2024-05-06T07:08:09+00:00"},
}


def cache_text(ending: str = "}}") -> str:
    """As Kernel Tuner writes it: an entry per line."""
    head = json.dumps(CACHE)[:-1]
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in ENTRIES.items())
    return f'{head},\n"cache": {{\n{lines}{ending}'


def split(found: Iterator[TuningRecord | BadLine]) -> tuple[list[TuningRecord], list[BadLine]]:
    every = list(found)
    return [r for r in every if isinstance(r, TuningRecord)], [b for b in every if isinstance(b, BadLine)]


def times(records: list[TuningRecord]) -> list[tuple[float, ...]]:
    return [record.measurement.times_ns for record in records]


# MIOpen's keys


@pytest.mark.parametrize("line", [NEW, SAME_ALGORITHM, OLD, VOLUME])
def test_a_key_is_written_as_it_was_read(line: str) -> None:
    key = line.partition("=")[0]
    assert miopen_key.parse(key).key == key


def test_sizes_are_those_of_the_forward_pass_whatever_the_direction() -> None:
    forward = miopen_key.parse("4-14-15-3x1-6-7-8-2-1x0-2x2-1x1-0-NCHW-FP32-F")
    backward = miopen_key.parse("6-7-8-3x1-4-14-15-2-1x0-2x2-1x1-0-NCHW-FP32-B")
    assert (forward.c, forward.image, forward.k, forward.result) == (4, (14, 15), 6, (7, 8))
    assert replace(backward, direction="F") == forward
    assert backward.layer == forward.layer
    assert forward.flops == 2 * 2 * 6 * 7 * 8 * 4 * 3


@pytest.mark.parametrize("layout", ["NHWC-NHWC-NHWC", "NCHW-NCHW-NHWC"])
def test_three_layouts_and_casts_are_kept(layout: str) -> None:
    key = f"4-14-15-3x1-6-7-8-2-1x0-2x2-1x1-0-{layout}-INT8INT8FP32-F_g2_ciFP8_coFP8"
    found = miopen_key.parse(key)
    assert (found.layout, found.groups, found.casts, found.key) == (layout, 2, "_ciFP8_coFP8", key)


@pytest.mark.parametrize(
    "key", ["", "1-2-3", "4-14-15-3x1-6-7-8-2-1x0-2x2-1x1-0-NCHW-FP32-F_g3", DEEP.partition("=")[0]]
)
def test_a_key_that_is_none_is_refused(key: str) -> None:
    with pytest.raises(InvalidInput):
        miopen_key.parse(key)


# MIOpen's find-db


def test_c20_two_solvers_of_one_algorithm_are_both_kept_time_and_workspace_exact() -> None:
    (found,) = miopen.read(SAME_ALGORITHM)
    assert isinstance(found, miopen.Found)
    assert [(s.solver, s.time_ms, s.workspace_bytes) for s in found.solutions] == [("A1", 0.5, 16), ("A2", 0.25, 0)]
    records, bad = split(registry.format("miopen-find-db").read(f"{NEW}\n{SAME_ALGORITHM}", MI))
    assert not bad
    assert times(records) == [(12345.6,), (1_500_000,), (500_000,), (250_000,)]
    assert [r.measurement.workspace_bytes for r in records] == [0, 4096, 16, 0]
    assert len({r.uid for r in records}) == 4


def test_both_grammars_are_written_as_they_were_read() -> None:
    text = "\n".join((NEW, SAME_ALGORITHM, OLD, VOLUME)) + "\n"
    found = [one for one in miopen.read(text) if isinstance(one, miopen.Found)]
    assert miopen.write(found) == text
    old = found[2].solutions[1]
    assert (old.solver, old.algorithm, old.time_ms, old.unused) == ("Naive", f"{BWD}Direct", 30.0, ("x", "<unused>"))


def test_c20_bad_lines_are_told_by_number_and_the_rest_is_read() -> None:
    lines = [
        NEW,
        "",
        "no key here",
        f"x={FWD}GEMM:too,few",
        OLD,
        NEW,
        f"{SAME_ALGORITHM};B:nan,0,{FWD}GEMM;C:1,-1,{FWD}GEMM",
    ]
    found = list(miopen.read("\r\n".join(lines)))
    bad = {one.number: one.reason for one in found if isinstance(one, BadLine)}
    assert [one.number for one in found if isinstance(one, miopen.Found)] == [1, 5, 7]
    assert sorted(one.number for one in found if isinstance(one, BadLine)) == [3, 4, 6, 7, 7]
    assert "no key" in bad[3]
    assert "2 fields" in bad[4]
    assert "line 1 already" in bad[6]
    assert "workspace" in bad[7]


def test_c44_times_of_zero_and_3d_keys_with_2d_padding_are_told_and_left_out() -> None:
    records, bad = split(registry.format("miopen-find-db").read("\n".join((ZERO, DEEP, VOLUME, OLD)), MI))
    assert [r.config.params["solver"] for r in records] == ["A", "Gemm", "Naive"]
    assert [b.number for b in bad] == [1, 2, 3]
    assert "time 0" in bad[0].reason
    assert "not that of a 2-D or 3-D convolution" in bad[1].reason
    assert "3 dimensions" in bad[2].reason


def test_a_record_says_which_gpu_direction_and_source() -> None:
    records, _ = split(registry.format("miopen-find-db").read(OLD, MI))
    first = records[0]
    assert first.workload == MiopenConv(
        2, 6, 14, 14, 4, 1, 1, 7, 7, "backward_data", (2, 2), (0, 0), (1, 1), 2, "bf16", "nchw"
    )
    assert (first.hardware.arch, first.hardware.physical_cores, first.hardware.vendor) == ("gfx942", 304, "AMD")
    assert (first.source, first.stage, first.measurement.paired) == ("miopen-find-db", Stage.SCREEN, False)
    assert (first.measurement.speedup, first.measurement.interval, first.measurement.max_error) == (None, None, None)
    assert registry.parse_workload(first.workload.spec) == first.workload


@pytest.mark.parametrize(
    ("file", "device", "arch", "units"),
    [
        ("gfx1030_36.HIP.fdb.txt", "", "gfx1030", 36),
        ("gfx90a6e.HIP.fdb.txt.xz", "", "gfx90a", 110),
        ("gfx90878.OpenCL.fdb.txt", "", "gfx908", 120),
        ("gfx906_60.HIP.3_2_0_x.ufdb.txt", "", "gfx906", 60),
        ("mine.txt", "gfx942:304", "gfx942", 304),
    ],
)
def test_the_gpu_of_a_file(file: str, device: str, arch: str, units: int) -> None:
    records, _ = split(registry.format("miopen-find-db").read(OLD, Origin(file, device=device)))
    assert (records[0].hardware.arch, records[0].hardware.physical_cores) == (arch, units)


@pytest.mark.parametrize(
    "origin", [Origin("mine.txt"), Origin("gfx942130.HIP.fdb.txt", device="MI300"), Origin("gfx942_0.HIP.fdb.txt")]
)
def test_a_file_that_does_not_tell_its_gpu_is_refused(origin: Origin) -> None:
    with pytest.raises(InvalidInput, match="gfx942:304"):
        list(registry.format("miopen-find-db").read(OLD, origin))


# MIOpen's perf-db

KEY = (2, 8, 14, 14, 1, 3, 3, 1, 16, 2, 1, 1, 0, 1, 1, 0, 1, 1, 0, 0, 1, "NCHW", "FP32", "F")


def test_the_three_forms_of_a_perf_db_say_the_same(tmp_path: Path) -> None:
    key = "x".join(map(str, KEY))
    from_text = list(miopen_perfdb.read(f"{key}=A:1,2,3;B<1>:4\n"))
    heads = "\t".join((*miopen_perfdb.COLUMNS, "solver", "params"))
    cells = "\t".join(map(str, KEY))
    from_table = list(miopen_perfdb.read(f"{heads}\n{cells}\tA\t1,2,3\n{cells}\tB<1>\t4\n"))
    path = str(tmp_path / "gfx.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE TABLE config (id INTEGER PRIMARY KEY, {', '.join(miopen_perfdb.COLUMNS)})")
        connection.execute("CREATE TABLE perf_db (id INTEGER PRIMARY KEY, solver, config, params)")
        connection.execute(f"INSERT INTO config VALUES (7, {', '.join('?' * len(KEY))})", KEY)
        connection.executemany(
            "INSERT INTO perf_db (solver, config, params) VALUES (?, 7, ?)", [("A", "1,2,3"), ("B<1>", "4")]
        )
        connection.commit()
    from_sqlite = list(miopen_perfdb.read_sqlite(path))
    for found in (from_text, from_table, from_sqlite):
        assert [(t.problem, t.solver, t.params, t.key) for t in found if isinstance(t, miopen_perfdb.Tuned)] == [
            (KEY, "A", ("1", "2", "3"), key),
            (KEY, "B<1>", ("4",), key),
        ]


def test_bad_lines_of_a_perf_db_are_told() -> None:
    key = "x".join(map(str, KEY))
    text = f"nothing\n{key}=A\n2x3=A:1\n{key.replace('x14x', 'xbx', 1)}=A:1\n{key[:-1]}Q=A:1\n{key}=A:1"
    found = list(miopen_perfdb.read(text))
    assert [one.number for one in found if isinstance(one, BadLine)] == [1, 2, 3, 4, 5]
    assert isinstance(found[-1], miopen_perfdb.Tuned)
    with pytest.raises(InvalidInput, match="no column"):
        list(miopen_perfdb.read("a\tb\n1\t2"))
    with pytest.raises(Unavailable):
        list(miopen_perfdb.read_sqlite("/nowhere/at/all.db"))


# Kernel Tuner


@pytest.mark.parametrize("ending", ["}}", "\n}\n}\n", "},\n", "}", "", ",\n"])
def test_c22_a_cache_without_timings_with_failures_and_without_its_last_braces(ending: str) -> None:
    records, bad = split(registry.format("kernel-tuner-cache").read(cache_text(ending), Origin("x.json")))
    status = [record.measurement.status for record in records]
    assert status == [Status.OK, Status.BUILD_FAILED, Status.RUN_FAILED, Status.RUN_FAILED, Status.OK]
    assert times(records) == [(1_000_000, 1_500_000, 2_000_000), (), (), (), (3_250_000,)]
    assert [(b.number, b.reason) for b in bad] == [(4, "it has no time")]
    assert all(record.measurement.median_ns is None for record in records if record.measurement.status is not Status.OK)
    first = records[0]
    assert first.workload == RecordedKernel("stencil", "4096x64")
    assert first.config == Config("kernel_tuner", {"block": 16, "layout": "a"}, "cuda:0")
    assert (first.hardware.name, first.measurement.build_ns) == ("NVIDIA Example 10", 12_500_000)
    assert records[-1].measured_at.isoformat() == "2024-05-06T07:08:09+00:00"
    assert registry.parse_workload(first.workload.spec) == first.workload


def test_c22_a_damaged_entry_of_a_cache_is_told_and_the_others_are_read() -> None:
    text = cache_text().replace('"block": 32, "layout": "a", "time"', '"block": 32, "layout": "a" "time"')
    records, bad = split(registry.format("kernel-tuner-cache").read(text, Origin("x.json")))
    assert len(records) == 4
    assert [b.number for b in bad] == [2, 4]


def result(invalidity: str = "correct", **fields: object) -> dict[str, object]:
    made = {
        "configuration": {"block": 16},
        "times": {"compilation_time": 2.0},
        "invalidity": invalidity,
        "measurements": [{"name": "power", "value": 3}, {"name": "time", "value": 2.0, "unit": "ms"}],
    }
    return {**made, **fields}


def test_c22_t4_results_with_either_name_of_the_build_time() -> None:
    invalid = ("compile", "runtime", "timeout", "correctness", "constraints")
    results = [
        result(),
        result(times={"compilation": 3.0}, measurements=[{"name": "time", "value": 5, "unit": "us"}]),
        *map(result, invalid),
        result(measurements=[]),
        result(configuration=None),
        result(measurements=[{"name": "time", "value": 1, "unit": "weeks"}]),
    ]
    origin = Origin("stencil.json", device="Example 10", problem="64")
    records, bad = split(registry.format("kernel-tuner-t4").read(json.dumps({"results": results}), origin))
    assert times(records[:2]) == [(2_000_000,), (5_000,)]
    assert [r.measurement.build_ns for r in records[:2]] == [2_000_000, 3_000_000]
    assert [r.measurement.status for r in records[2:]] == [
        Status.BUILD_FAILED, Status.RUN_FAILED, Status.TIMEOUT, Status.WRONG_RESULT, Status.NOT_APPLICABLE,
    ]  # fmt: skip
    assert [b.number for b in bad] == [8, 9, 10]
    assert records[0].workload == RecordedKernel("stencil", "64")
    with pytest.raises(InvalidInput, match="--device"):
        list(registry.format("kernel-tuner-t4").read(json.dumps({"results": results}), Origin("stencil.json")))


TABLE = """block,layout,time_ms,compile_ms,status
16,a,1.5,2,ok
32,a,,3,compile_fail
16,b,,,runtime_fail
32,b,,,ok
1,2,3
64,a,fast,,ok
64,0.5,0.25,,ok
128,a,0,,ok
"""


def test_c22_a_table_with_failures_and_bad_rows() -> None:
    records, bad = split(registry.format("kernel-table").read(TABLE, Origin("Example_10.csv", "stencil")))
    assert [r.measurement.status for r in records] == [
        Status.OK, Status.BUILD_FAILED, Status.RUN_FAILED, Status.OK, Status.RUN_FAILED,
    ]  # fmt: skip
    assert times(records) == [(1_500_000,), (), (), (250_000,), ()]
    assert [b.number for b in bad] == [5, 6, 7]
    assert (records[0].workload, records[0].hardware.name) == (RecordedKernel("stencil"), "Example 10")
    assert records[3].config.params["layout"] == 0.5


# Every format


@pytest.mark.parametrize("name", registry.BUILT_IN["formats"])
@pytest.mark.parametrize(
    "text", ["", "{", "\0\1\2", "[1, 2]", '{"results": 3, "cache": []}', "a,b\n1,2", "[" * 100_000]
)
def test_text_of_another_format_gives_no_record_and_no_other_error(name: str, text: str) -> None:
    made = registry.format(name)
    assert isinstance(made, Format)
    records: list[TuningRecord] = []
    with contextlib.suppress(InvalidInput):
        records, _ = split(made.read(text, replace(MI, device="gfx942:304")))
    assert records == []


def test_a_gpu_known_by_name_is_a_machine_of_its_own() -> None:
    assert named_device("NVIDIA_A100-PCIE-40GB") == named_device("NVIDIA A100-PCIE-40GB")
    assert named_device("NVIDIA A100").key != named_device("NVIDIA A100-PCIE-40GB").key
    assert named_device("AMD Radeon PRO W7800").vendor == named_device("MI250X").vendor == "AMD"
    with pytest.raises(InvalidInput, match="--device"):
        named_device(" ")


def test_names_become_words_of_a_spec_string() -> None:
    assert word([4096, 64]) == word("(4096, 64)") == "4096x64"
    assert word(None) == ""
    assert word("my kernel/2") == "my-kernel-2"
    with pytest.raises(InvalidInput):
        RecordedKernel("two words")


# What is imported


def test_a_measurement_without_a_default_beside_it_decides_nothing() -> None:
    lone = Measurement(Status.OK, times_ns=(5.5,), paired=False)
    assert (lone.median_ns, lone.speedup, lone.interval, lone.baseline_median_ns) == (5.5, None, None, None)
    assert Measurement(Status.OK, times_ns=(5,)).status is Status.RUN_FAILED
    assert Measurement(Status.OK, times_ns=(5,), baseline_ns=(6,), paired=False).status is Status.RUN_FAILED
    with pytest.raises(InvalidInput, match="decide"):
        sample.record(measurement=lone, stage=Stage.FINAL)


def test_imported_records_come_back_as_they_were_and_teach_nothing(where: str) -> None:
    records, _ = split(registry.format("miopen-find-db").read(f"{NEW}\n{OLD}", MI))
    table, _ = split(registry.format("kernel-table").read(TABLE, Origin("Example_10.csv", "stencil")))
    with open_store(where) as store:
        assert store.add(records + table) == 9
        assert store.add(records + table) == 0
        back = {record.uid: record for record in store.records()}
        assert back == {record.uid: record for record in records + table}
        first = records[0]
        assert store.choices(first.workload.key, first.hardware.key, first.environment.key) == ()
        assert collect(store.records()).groups == []


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_c20_an_import_keeps_the_good_lines_and_tells_the_bad_ones(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "gfx942130.HIP.fdb.txt.xz").write_bytes(lzma.compress(f"{NEW}\nbad\n{ZERO}\n{OLD}\n".encode()))
    command = ["import", "miopen-find-db", "gfx942130.HIP.fdb.txt.xz", "--db", "own.sqlite"]
    assert main(command) == 1
    told = capsys.readouterr()
    assert "5 results of 3 workloads (0 of them failures), 5 of them new; 2 bad lines left out" in told.out
    assert "gfx942130.HIP.fdb.txt.xz:2: there is no key" in told.err
    assert "gfx942130.HIP.fdb.txt.xz:3: Z: the time 0" in told.err
    assert main(command) == 1
    assert "0 of them new" in capsys.readouterr().out
    assert (
        main(
            [
                "db",
                "show",
                split(registry.format("miopen-find-db").read(NEW, MI))[0][0].workload.spec,
                "--db",
                "own.sqlite",
            ]
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert shown.index("SolverA") < shown.index("SolverB")
    assert main(["db", "verify", "--db", "own.sqlite"]) == 0


def test_many_bad_lines_are_cut_short_unless_asked_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "gfx942130.HIP.fdb.txt").write_text("bad\n" * 30 + NEW)
    command = ["import", "miopen-find-db", "gfx942130.HIP.fdb.txt", "--db", "own.sqlite"]
    assert main(command) == 1
    told = capsys.readouterr().err
    assert told.count("there is no key") == 20
    assert "and 10 more" in told
    assert main([*command, "--all-bad"]) == 1
    assert capsys.readouterr().err.count("there is no key") == 30


def test_a_good_file_is_imported_with_exit_code_0(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "gfx942130.HIP.fdb.txt.bz2").write_bytes(bz2.compress(f"{NEW}\n".encode()))
    assert main(["import", "miopen-find-db", "gfx942130.HIP.fdb.txt.bz2", "--db", "own.sqlite"]) == 0
    assert "2 results of 1 workloads" in capsys.readouterr().out


def test_what_cannot_be_imported_is_said_in_one_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "cut.txt.gz").write_bytes(gzip.compress(b"x" * 100)[:-10])
    (folder / "binary.txt").write_bytes(b"\xff\xfe\xfd")
    (folder / "t4.json").write_text("{}")
    for words in (
        ["tea-leaves", "t4.json"],
        ["miopen-find-db", "missing.txt"],
        ["miopen-find-db", "cut.txt.gz"],
        ["miopen-find-db", "binary.txt"],
        ["kernel-tuner-t4", "t4.json"],
    ):
        assert main(["import", *words, "--db", "own.sqlite"]) == 2
        told = capsys.readouterr()
        assert told.err.startswith("autotune: ")
        assert told.err.count("\n") == 1
    assert not (folder / "own.sqlite").exists()


def test_a_text_that_unpacks_to_more_than_there_is_room_for_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 1000)
    (folder / "bomb.gz").write_bytes(gzip.compress(b"x" * 1001))
    with pytest.raises(InvalidInput, match="more than"):
        files.read_text("bomb.gz")
