"""The `autotune` command: help, output for people and programs, exit codes, and a real sweep from end to end."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from autotune import __version__, hardware, online, suites
from autotune.cli import COMMANDS, common, main, parser
from autotune.dbschema import SCHEMA_REVISION
from autotune.errors import InvalidInput
from autotune.measure.local import LocalRunner
from autotune.store.sql import open_store
from tests import store_samples as sample
from tests.conftest import PLUGIN, without_privileges

LINEAR = "linear m=1 n=4096 k=1024"
BUSY = ("--tolerate-contention", "1")  # tests run beside others: what they decide must not depend on that
SCALE = "scale n=64"


class Told(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command in this process."""

    def runner(*words: str) -> Told:
        capsys.readouterr()
        code = main(words)
        return Told(code, *capsys.readouterr())

    return runner


def sentence(told: Told) -> str:
    """What a command that cannot go on said: one sentence on stderr, nothing else."""
    assert told.code == 2, told
    assert told.out == ""
    lines = told.err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("autotune: ")
    return lines[0].removeprefix("autotune: ")


def start(*words: str, **options: Any) -> subprocess.Popen[str]:
    """Starts a command in a process of its own, where the plugin is installed and Ctrl-C is not ignored."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(PLUGIN), os.environ.get("PYTHONPATH"))))}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen(
        [sys.executable, "-m", "autotune", *words],
        env=environ,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        **pipes,
    )


def finish(process: subprocess.Popen[str]) -> Told:
    out, err = process.communicate(timeout=120)
    return Told(process.returncode, out or "", err or "")


# Help


def commands() -> dict[str, argparse.ArgumentParser]:
    """Every command and subcommand by its words: "db stats"."""

    def below(words: str, command: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
        for action in command._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, child in action.choices.items():
                    yield f"{words} {name}".strip(), child
                    yield from below(f"{words} {name}".strip(), child)

    return dict(below("", parser()))


ALL_COMMANDS = commands()


def test_the_commands_are_all_here() -> None:
    assert {"hw", "suites", "algorithms", "sweep", "lookup", "db"} <= set(COMMANDS)
    assert {"db upgrade", "db stats", "db show", "db best"} <= set(ALL_COMMANDS)


@pytest.mark.parametrize("words", list(ALL_COMMANDS))
def test_every_help_has_an_example_that_parses(words: str) -> None:
    text = ALL_COMMANDS[words].format_help()
    assert "example:" in text
    assert ALL_COMMANDS[words].description
    lines = [line.strip() for line in text.partition("example:")[2].splitlines()]
    examples = [line for line in lines if line.startswith("autotune ")]
    assert examples
    for example in examples:
        assert example.startswith(f"autotune {words}")
        parser().parse_args(shlex.split(example)[1:])


@pytest.mark.parametrize("words", list(ALL_COMMANDS))
def test_every_option_is_explained(words: str) -> None:
    assert [action.dest for action in ALL_COMMANDS[words]._actions if not action.help] in ([], ["==SUPPRESS=="])


@pytest.mark.parametrize("words", [["--help"], *([*name.split(), "--help"] for name in ALL_COMMANDS)], ids=" ".join)
def test_help_is_printed_and_is_no_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 0
    assert "usage: autotune" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [[], ["tune"], ["db"], ["db", "drop"], ["lookup"], ["sweep", "--trials", "few"]], ids=str
)
def test_a_command_line_that_does_not_parse_is_an_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_the_version_is_told() -> None:
    assert finish(start("--version")) == (0, f"autotune {__version__}\n", "")


# hw, suites, algorithms


def test_hw_prints_the_profile_for_programs(run: Any) -> None:
    told = run("hw", "--no-probe", "--json")
    found = json.loads(told.out)
    assert (told.code, told.err) == (0, "")
    assert found["devices"][0]["key"] == hardware.detect().key
    assert found["devices"][0]["allowed_cpus"] >= 1
    assert found["environment"]["framework"].startswith("torch ")


def test_hw_prints_the_profile_for_people(run: Any) -> None:
    told = run("hw", "--no-probe")
    assert told.code == 0
    for word in ("silicon", "may use", "caches", "limits", "online CPUs", "environment", hardware.detect().key):
        assert word in told.out


def test_suites_are_listed(run: Any) -> None:
    told = run("suites")
    assert told.code == 0
    assert all(name in told.out for name in suites.names())
    assert [entry["name"] for entry in json.loads(run("suites", "--json").out)] == list(suites.names())


def test_the_layers_of_a_suite_are_listed(run: Any) -> None:
    found = json.loads(run("suites", "gpt2", "--json").out)
    assert found["name"] == "gpt2"
    assert {"name", "count", "workload"} == set(found["layers"][0])
    told = run("suites", "gpt2")
    assert all(layer["workload"] in told.out for layer in found["layers"])


def test_algorithms_are_listed_with_what_they_tune_or_why_not(run: Any) -> None:
    told = run("algorithms", "linear m=4 n=64 k=32 dtype=f64")
    assert told.code == 0
    assert "default: torch" in told.out
    assert "tiled" in told.out
    found = json.loads(run("algorithms", "linear m=4 n=64 k=32 dtype=f64", "--json").out)
    assert "torch" in found["spaces"]
    assert found["refused"]["fbgemm_int8"]
    assert found["refused"]["fbgemm_int8"] in told.out


# lookup


def test_lookup_without_a_database_is_the_default(run: Any) -> None:
    told = run("lookup", LINEAR)
    assert (told.code, told.err) == (0, "")
    assert "origin    DEFAULT: " in told.out
    found = json.loads(run("lookup", LINEAR, "--json").out)
    assert (found["origin"], found["algorithm"], found["expected_ns"]) == ("DEFAULT", "torch", None)
    assert found["workload"] == "linear m=1 n=4096 k=1024 dtype=f32"
    assert not os.path.exists(os.environ["AUTOTUNE_DB"]), "asking makes no database"


@pytest.mark.parametrize("spec", ["linear m=0 n=8 k=4", "linear m=4 n=8 k=0", "gemm m=8 n=0 k=4"])
def test_c14_lookup_of_nothing_is_the_default(run: Any, spec: str) -> None:
    found = json.loads(run("lookup", spec, "--json").out)
    assert (found["origin"], found["reason"]) == ("DEFAULT", "there is nothing to compute")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "a workload is written like"),
        ("conv9d n=1", "unknown op 'conv9d'"),
        ("linear m=1 n=2", "linear needs k=…"),
        ("linear m=1 n=2 k=-3", "k=-3 is out of range"),
        ("linear m=1 n=2 k=3 dtype=f31", "dtype='f31' is not one of"),
    ],
)
@pytest.mark.parametrize("words", [("lookup",), ("algorithms",), ("db", "show"), ("sweep", "--workload")], ids=" ".join)
def test_a_bad_spec_is_one_sentence(run: Any, words: tuple[str, ...], spec: str, message: str) -> None:
    assert message in sentence(run(*words, spec))


@pytest.mark.parametrize("budget", ["-1", "nan"])
def test_a_bad_error_budget_is_one_sentence(run: Any, budget: str) -> None:
    assert "--max-error must be 0 or more" in sentence(run("lookup", LINEAR, f"--max-error={budget}"))


def test_lookup_in_a_damaged_database_warns_and_gives_the_default(run: Any, database: Path) -> None:
    os.truncate(database, database.stat().st_size // 2 + 100)
    with pytest.warns(RuntimeWarning, match="the default is used") as warned:
        told = run("lookup", LINEAR, "--db", str(database))
    assert told.code == 0
    assert "DEFAULT" in told.out
    assert len(warned) == 1


# sweep: what is wrong with a command line is said before anything is measured


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "say what to tune: --suite {bert-base,"),
        (["--suite", "bert-huge"], "unknown suite 'bert-huge'; there are bert-base"),
        (["--suite", "missing.toml"], "suite missing.toml cannot be read: No such file"),
        (["--workload", LINEAR, "--budget", "5x"], "'5x' is no duration; write it like 90s, 5m or 1h"),
        (["--workload", LINEAR, "--budget", "0"], "'0' is no duration"),
        (["--workload", LINEAR, "--budget=-1m"], "'-1m' is no duration"),
        (["--workload", LINEAR, "--budget", "nan"], "'nan' is no duration"),
        (["--workload", LINEAR, "--budget", ""], "'' is no duration"),
        (["--workload", LINEAR, "--trials", "0"], "--trials must be at least 1"),
        (["--workload", LINEAR, "--trials=-3"], "--trials must be at least 1"),
        (["--workload", LINEAR, "--db", "mysql://user@host/db"], "databases of kind 'mysql' are not supported"),
        (["--workload", LINEAR, "--db", "missing/tuning.sqlite"], "missing does not exist"),
    ],
)
def test_a_bad_sweep_is_one_sentence(run: Any, words: list[str], message: str) -> None:
    assert message in sentence(run("sweep", *words))


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7200), ("0.5", 0.5)])
def test_durations(text: str, seconds: float) -> None:
    assert common.seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "1d", "1 m 3", "inf", "1e400", "0s", "-5"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(InvalidInput, match="is no duration"):
        common.seconds(text)


def test_a_package_that_is_missing_is_named_with_the_command_that_installs_it(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "optuna" else name)
    told = sentence(run("sweep", "--workload", LINEAR))
    assert told == "this needs optuna: pip install 'autotune[tune]'"


# db


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database with a few measurements in it."""
    path = tmp_path / "some.sqlite"
    with open_store(path) as store:
        store.add([sample.record(config=sample.config(n), measurement=sample.ok(ratio=1 + n / 10)) for n in range(40)])
        store.add([sample.record(sample.failed(), config=sample.config(99))])
    return path


VERBS = [("stats",), ("best",), ("show", LINEAR), ("upgrade",)]
verbs = pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])


def restamp(database: Path, revision: str) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE autotune_version SET version_num = ?", (revision,))


@verbs
def test_a_database_that_is_missing_is_one_sentence(run: Any, tmp_path: Path, verb: tuple[str, ...]) -> None:
    missing = tmp_path / "missing.sqlite"
    assert f"there is no database {missing}" in sentence(run("db", *verb, "--db", str(missing)))
    nowhere = tmp_path / "nowhere" / "tuning.sqlite"
    assert "nowhere does not exist" in sentence(run("db", *verb, "--db", str(nowhere)))
    assert "is a folder" in sentence(run("db", *verb, "--db", str(tmp_path)))
    assert list(tmp_path.iterdir()) == [], "nothing is made"


@verbs
@pytest.mark.parametrize("keep", [0.6, 0.1, 0.01])
def test_a_truncated_database_is_one_sentence(run: Any, database: Path, verb: tuple[str, ...], keep: float) -> None:
    os.truncate(database, int(database.stat().st_size * keep))
    told = sentence(run("db", *verb, "--db", str(database)))
    assert str(database) in told
    assert any(word in told for word in ("damaged", "truncated", "not an SQLite"))


@verbs
def test_a_database_of_a_newer_schema_is_one_sentence(run: Any, database: Path, verb: tuple[str, ...]) -> None:
    restamp(database, "9999")
    told = sentence(run("db", *verb, "--db", str(database)))
    assert told == f"{database} was written by a newer autotune (schema 9999): upgrade autotune"


@pytest.mark.parametrize("verb", VERBS[:3], ids=lambda verb: verb[0])
def test_a_database_of_an_older_schema_is_one_sentence(run: Any, database: Path, verb: tuple[str, ...]) -> None:
    restamp(database, "0000")
    assert sentence(run("db", *verb, "--db", str(database))).endswith("run `autotune db upgrade`")


def test_a_schema_that_never_was_cannot_be_upgraded(run: Any, database: Path) -> None:
    restamp(database, "0000")
    before = database.read_bytes()
    assert "with schema 0000 cannot be upgraded: " in sentence(run("db", "upgrade", "--db", str(database)))
    assert database.read_bytes() == before


@verbs
def test_something_else_is_one_sentence(run: Any, tmp_path: Path, verb: tuple[str, ...]) -> None:
    other = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(other)) as connection, connection:
        connection.execute("CREATE TABLE studies (id INTEGER)")
    assert "is not an autotune database" in sentence(run("db", *verb, "--db", str(other)))


def test_a_database_in_a_read_only_folder_is_one_sentence_at_most(run: Any, readable: Path) -> None:
    path = readable / "tuning.sqlite"
    with open_store(path) as store:
        store.add([sample.record()])
    run("db", "stats", "--db", str(path))  # everything is imported now
    with without_privileges():
        told = run("db", "stats", "--db", str(path))
    assert told.code == 0 or "tuning.sqlite" in sentence(told)
    assert sorted(file.name for file in readable.iterdir()) == ["tuning.sqlite"]


def test_a_new_database_in_a_read_only_folder_is_one_sentence(
    run: Any, readable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalRunner, "start", lambda runner: None)  # nobody may not even start this Python
    with open_store(readable / "warm.sqlite"):
        pass  # everything is imported now
    with without_privileges():
        told = run("sweep", "--workload", LINEAR, "--db", str(readable / "new.sqlite"))
    assert "new.sqlite cannot be opened" in sentence(told)


def test_upgrading_a_database_of_this_version_changes_nothing(run: Any, database: Path) -> None:
    before = database.read_bytes()
    assert run("db", "upgrade", "--db", str(database)) == (0, f"schema {SCHEMA_REVISION}, as before\n", "")
    assert database.read_bytes() == before


def test_stats_count_what_there_is(run: Any, database: Path) -> None:
    told = run("db", "stats", "--db", str(database))
    assert told.code == 0
    assert told.out.startswith("41 measurements of 41 configs for 1 workloads")
    found = json.loads(run("db", "stats", "--db", str(database), "--json").out)
    assert (found["measurements"], found["by_status"]) == (41, {"OK": 40, "RUN_FAILED": 1})


def test_show_lists_the_fastest_first_and_failures_last(run: Any, database: Path) -> None:
    where = ("--db", str(database))
    rows = [json.loads(line) for line in run("db", "show", LINEAR, *where, "--json", "--limit", "100").out.splitlines()]
    assert len(rows) == 41
    assert rows[0]["params"] == {"mr": 39}
    assert (rows[-1]["status"], rows[-1]["message"]) == ("RUN_FAILED", "segmentation fault")
    assert len(run("db", "show", LINEAR, *where, "--limit", "5").out.splitlines()) == 2 + 5
    assert run("db", "show", "linear m=7 n=7 k=7", *where).code == 1
    assert "--limit must be at least 1" in sentence(run("db", "show", LINEAR, *where, "--limit", "0"))


def test_best_lists_what_lookup_would_serve(run: Any, database: Path) -> None:
    where = ("--db", str(database))
    (row,) = [json.loads(line) for line in run("db", "best", *where, "--json").out.splitlines()]
    assert (row["workload"], row["params"]) == ("linear m=1 n=4096 k=1024 dtype=f32", {"mr": 39})
    assert len(run("db", "best", *where, "--op", "linear").out.splitlines()) == 2
    assert run("db", "best", *where, "--op", "gemm", "--json") == (0, "", "")
    assert "unknown op 'magic'" in sentence(run("db", "best", *where, "--op", "magic"))


def test_the_database_of_the_environment_is_used(run: Any, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_DB", str(database))
    assert json.loads(run("db", "stats", "--json").out)["measurements"] == 41


# As a process


def test_a_bad_input_ends_a_process_without_a_traceback() -> None:
    told = finish(start("lookup", "linear m=-1 n=2 k=3"))
    assert "m=-1 is out of range" in sentence(told)


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    end, pipe = os.pipe()
    os.close(end)  # what `| head` does, before the first line
    told = finish(start("suites", "--json", stdout=pipe))
    os.close(pipe)
    assert told == (0, "", "")


# A real sweep


class Swept(NamedTuple):
    database: Path
    told: Told


@pytest.fixture(scope="module")
def swept_once(tmp_path_factory: pytest.TempPathFactory) -> Swept:
    path = tmp_path_factory.mktemp("swept") / "tuning.sqlite"
    return Swept(path, finish(start("sweep", "--workload", SCALE, *BUSY, "--db", str(path))))


@pytest.fixture
def swept(swept_once: Swept, tmp_path: Path, plugin: None) -> Swept:
    """A workload of the plugin, tuned by `autotune sweep`; each test has its own copy of the database."""
    copy = tmp_path / "tuning.sqlite"
    shutil.copy(swept_once.database, copy)
    return Swept(copy, swept_once.told)


def rows(database: Path) -> dict[str, tuple[Any, ...]]:
    """What is committed, by uid."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        found = connection.execute("SELECT uid, stage, workload_key, config_key, status, median_ns FROM measurements")
        return {row[0]: row[1:] for row in found}


def test_a_sweep_tells_how_it_ended(swept: Swept) -> None:
    assert swept.told.code == 0, swept.told.err
    assert swept.told.out.splitlines()[1].startswith("scale n=64 dtype=f32")
    assert "8 tried, 4 failed" in swept.told.out
    assert "[1/1] scale n=64 dtype=f32: " in swept.told.err


def test_a_sweep_keeps_every_result_failures_too(run: Any, swept: Swept) -> None:
    told = run("db", "show", SCALE, "--db", str(swept.database), "--json", "--limit", "1000")
    found = [json.loads(line) for line in told.out.splitlines()]
    statuses = {(row["params"].get("way"), row["status"]) for row in found if row["algorithm"] == "misbehaving"}
    assert statuses == {
        ("segfault", "RUN_FAILED"),
        ("raise", "RUN_FAILED"),
        ("one_wrong", "WRONG_RESULT"),
        ("build_raises", "BUILD_FAILED"),
    }
    screened = [(row["algorithm"], str(row["params"])) for row in found if row["stage"] == "screen"]
    assert len(screened) == len(set(screened)) == 8
    finals = {row["algorithm"] for row in found if row["stage"] == "final"}
    assert "scale_torch" in finals, "the default is decided like any other"
    assert "misbehaving" not in finals
    assert {row["params"].get("pair") is None for row in found if row["algorithm"] == "scale_twice"} == {False}


def test_what_was_swept_is_looked_up_exactly(run: Any, swept: Swept) -> None:
    told = run("lookup", SCALE, "--db", str(swept.database), "--json")
    found = json.loads(told.out)
    assert (found["origin"], found["source"]) == ("EXACT", "tuning.sqlite")
    assert found["algorithm"] in ("scale_torch", "scale_twice")
    assert found["expected_ns"] > 0
    assert found["speedup"] >= 1.0
    (best,) = [json.loads(x) for x in run("db", "best", "--db", str(swept.database), "--json").out.splitlines()]
    assert (best["algorithm"], best["params"]) == (found["algorithm"], found["params"])
    online.refresh()
    other = json.loads(run("lookup", "scale n=65", "--db", str(swept.database), "--json").out)
    assert other["origin"] == "DEFAULT", "another size was not measured"


def test_a_second_sweep_knows_and_measures_nothing(run: Any, swept: Swept) -> None:
    before = rows(swept.database)
    told = run("sweep", "--workload", SCALE, *BUSY, "--db", str(swept.database), "--json")
    assert told.code == 0
    job, report = (json.loads(line) for line in told.out.splitlines())
    assert (job["state"], job["trials"]) == ("known", 8)
    assert report["useful_s"] == 0.0
    assert rows(swept.database) == before


def test_c14_a_sweep_of_nothing_stores_nothing(run: Any, swept: Swept) -> None:
    before = rows(swept.database)
    told = run("sweep", "--workload", "linear m=0 n=8 k=4", "--db", str(swept.database))
    assert told.code == 0
    assert "empty" in told.out
    assert rows(swept.database) == before


def sweep_until(database: Path, count: int) -> subprocess.Popen[str]:
    """A sweep that has committed that many rows and is going on."""
    process = start("sweep", "--workload", SCALE, *BUSY, "--db", str(database))
    for _ in range(6000):
        if process.poll() is not None:
            break
        try:
            if len(rows(database)) >= count:
                return process
        except sqlite3.Error:
            pass  # not made yet
        time.sleep(0.01)
    raise AssertionError(finish(process))


def test_c26_a_killed_sweep_loses_nothing_and_goes_on_where_it_was(tmp_path: Path) -> None:
    database = tmp_path / "killed.sqlite"
    process = sweep_until(database, 1)  # a candidate that crashed: the next one waits for a new child
    process.kill()
    finish(process)
    before = rows(database)
    assert 1 <= len(before) < 8

    told = finish(start("sweep", "--workload", SCALE, *BUSY, "--db", str(database), "--json"))
    job = json.loads(told.out.splitlines()[0])
    assert (told.code, job["state"], job["trials"]) == (0, "tuned", 8)
    after = rows(database)
    assert before.items() <= after.items(), "what was committed is there, unchanged"
    screened = [row[1:3] for row in after.values() if row[0] == "screen"]
    assert len(screened) == len(set(screened)) == 8, "nothing is measured twice"


def test_an_interrupted_sweep_says_so_and_keeps_what_it_has(tmp_path: Path) -> None:
    database = tmp_path / "interrupted.sqlite"
    process = sweep_until(database, 1)
    process.send_signal(signal.SIGINT)
    told = finish(process)
    assert told.code == 130
    assert told.err.splitlines() == [
        "autotune: interrupted; what was measured is kept, run the same command again to go on"
    ]
    assert rows(database)
