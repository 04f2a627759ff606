"""Wishes: from lookups that missed to the queue, ranked by what granting them is worth."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import autotune
from autotune import hardware, wishes
from autotune.cli import main
from autotune.errors import InvalidInput
from autotune.ops.gemm import Gemm
from autotune.ops.linear import Linear
from autotune.store import Wish
from autotune.store.sql import open_store
from autotune.types import Origin
from tests import store_samples as sample


@pytest.fixture(autouse=True)
def _nothing_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wishes, "_noted", set())


def open_wishes(path: Path) -> list[tuple[str, int]]:
    with open_store(path) as store:
        return [(wish.workload.spec, wish.asked) for wish in store.wishes()]


def test_a_missed_lookup_is_queued_once_per_process(tmp_path: Path) -> None:
    for _ in range(3):
        assert autotune.lookup("linear m=3 n=5 k=7", on_miss="queue").origin is Origin.DEFAULT
    autotune.lookup("linear m=4 n=5 k=7")  # not asked to be queued
    autotune.lookup("linear m=0 n=5 k=7", on_miss="queue")  # nothing to compute
    lines = Path(wishes.spool()).read_text().splitlines()
    assert lines == [f"{hardware.detect().key}\t{Linear(3, 5, 7).spec}"]
    with open_store(tmp_path / "queue.sqlite") as store:
        assert wishes.collect(store) == 1
        assert wishes.collect(store) == 0
        assert store.wishes() == (Wish(Linear(3, 5, 7), hardware.detect().key),)
    assert not os.path.exists(wishes.spool())


def test_what_was_measured_is_not_queued(tmp_path: Path) -> None:
    from autotune import environment, settings

    with open_store(settings.database()) as store:
        machine, software = hardware.detect(), environment.current()
        store.add([sample.record(hardware=machine, environment=software, config=autotune.Config("torch"))])
    assert autotune.lookup(sample.WORKLOAD, on_miss="queue").origin is Origin.EXACT
    assert not os.path.exists(wishes.spool())


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(InvalidInput, match="on_miss"):
        autotune.lookup("linear m=3 n=5 k=7", on_miss="tune")


def test_noting_never_raises_and_lines_of_threads_do_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda m: wishes.note(Linear(m, 5, 7).spec, "h"), range(1, 400)))
    lines = Path(wishes.spool()).read_text().splitlines()
    assert sorted(lines) == sorted(f"h\t{Linear(m, 5, 7).spec}" for m in range(1, 400))
    monkeypatch.setattr(wishes, "MOST_BYTES", 10)
    wishes.note(Linear(1, 1, 1).spec, "h")  # full
    assert len(Path(wishes.spool()).read_text().splitlines()) == 399
    monkeypatch.setenv("AUTOTUNE_DB", "/dev/null/nowhere/tuning.sqlite")
    wishes.note(Linear(2, 1, 1).spec, "h")


def test_lines_that_say_nothing_and_an_interrupted_run_are_taken_over(tmp_path: Path) -> None:
    spec = Linear(1, 2, 3).spec
    spool = Path(wishes.spool())
    spool.parent.mkdir(parents=True, exist_ok=True)
    spool.with_name(spool.name + ".taken").write_text(f"h\t{spec}\nh\t{spec}\n")
    spool.write_bytes(b"garbage\n\xff\xfe\tlinear m=x\nh\t" + spec.encode() + b"\nh\tunheard n=1\n")
    with open_store(tmp_path / "queue.sqlite") as store:
        assert wishes.collect(store) == 3
        assert [wish.asked for wish in store.wishes()] == [3]


def _collect(path: str) -> int:
    with open_store(path) as store:
        return sum(wishes.collect(store) for _ in range(20))


def test_processes_that_note_and_collect_at_once_lose_and_double_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "queue.sqlite")
    open_store(path).close()
    specs = [Linear(m, 3, 4).spec for m in range(1, 301)]
    with ThreadPoolExecutor(4) as writers, ThreadPoolExecutor(2) as readers:
        reading = [readers.submit(_collect, path) for _ in range(2)]
        list(writers.map(lambda spec: wishes.note(spec, "h"), specs))
        moved = sum(job.result() for job in reading)
    with open_store(path) as store:
        assert moved + wishes.collect(store) == len(specs)
        assert {wish.workload.spec: wish.asked for wish in store.wishes()} == dict.fromkeys(specs, 1)


def test_wishes_are_ranked_by_what_they_are_worth(tmp_path: Path) -> None:
    machine = replace(sample.HARDWARE, peak_gflops={"f32": 100.0}, bandwidth_gbs=10.0)
    large, small = Gemm(1000, 1000, 1000), Gemm(10, 10, 10)
    with open_store(tmp_path / "queue.sqlite") as store:
        store.wish([Wish(small, asked=3), Wish(large), Wish(Linear(1000, 1000, 1000))])
        store.add([sample.record(sample.ok(ratio=4.0))])  # linear gains 4x here
        ranked = wishes.by_gain(store, store.wishes(), machine)
    seconds = 2e9 / 100e9
    assert [wish.workload for _, wish in ranked] == [Linear(1000, 1000, 1000), large, small]
    assert ranked[0][0] == pytest.approx(seconds * 0.75)
    assert ranked[1][0] == pytest.approx(seconds * (1 - 1 / wishes.PRIOR_SPEEDUP))


def test_enqueue_lists_what_is_wished_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "queue.sqlite")
    autotune.lookup("gemm m=3 n=5 k=7", on_miss="queue")
    assert main(["enqueue", "linear m=3 n=5 k=7", "--suite", "gpt2", "--db", path]) == 0
    out = capsys.readouterr().out
    assert Linear(3, 5, 7).spec in out
    assert Gemm(3, 5, 7).spec in out
    assert main(["enqueue", "--db", path, "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(open_wishes(Path(path)))
    for spec, sentence in (("linear m=0 n=5 k=7", "nothing to compute"), ("nonsense", "unknown op")):
        assert main(["enqueue", spec, "--db", path]) == 2
        assert sentence in capsys.readouterr().err


def test_a_sweep_grants_wishes(tmp_path: Path, plugin: None, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "queue.sqlite")
    arguments: list[Any] = ["sweep", "--wishes", "1", "--trials", "2", "--tolerate-contention", "1", "--db", path]
    assert main(arguments) == 0
    assert "nobody wishes" in capsys.readouterr().out
    assert main(["enqueue", "scale n=64", "scale n=1000", "--db", path]) == 0
    assert main(arguments) == 0
    assert open_wishes(Path(path)) == [("scale n=64 dtype=f32", 1)] or len(open_wishes(Path(path))) == 1
    assert main(["sweep", "--wishes", "0", "--db", path]) == 2
