"""Compiling kernels: what fails is a sentence, and the cache never hands out an object made for something else."""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autotune import hardware
from autotune.errors import Unavailable
from autotune.kernels import compiler, tiled
from autotune.ops.linear import Linear
from tests.conftest import without_privileges

ANSWER = 'extern "C" int answer() { return ANSWER; }\n'

needs_compiler = pytest.mark.skipif(compiler.find() is None, reason="no C++ compiler on this machine")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder and a compiler search of each test's own."""
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("AUTOTUNE_CXX", raising=False)
    compiler.find.cache_clear()
    yield tmp_path / "cache"
    compiler.find.cache_clear()


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "answer.cpp"
    path.write_text(ANSWER)
    return str(path)


def fake_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str, version: str = "g++ (Fake) 99.1.0") -> Path:
    """A script that states a version and then does `body`; AUTOTUNE_CXX names it."""
    script = folder / "fake-g++"
    script.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo "{version}"; exit 0; fi\n{body}\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("AUTOTUNE_CXX", str(script))
    compiler.find.cache_clear()
    return script


WRITES_ITS_ARGUMENTS = 'while [ "$1" != -o ]; do shift; done; echo made > "$2"'
"""A compiler whose objects are text: enough for questions about file names."""


# Compilers that do not work


def test_a_compiler_that_fails_is_told_with_its_first_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    body = """echo "answer.cpp: In function 'int answer()':" >&2
echo "answer.cpp:1:34: error: 'ANSWER' was not declared" >&2
echo "answer.cpp:1:34: error: another one" >&2
exit 1"""
    fake_compiler(tmp_path, monkeypatch, body)
    with pytest.raises(Unavailable) as caught:
        compiler.shared_library(source, {})
    assert str(caught.value) == (
        "g++ 99.1.0 could not compile answer.cpp: answer.cpp:1:34: error: 'ANSWER' was not declared"
    )


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("exit 4", "no output, exit code 4"),
        ("echo out of luck >&2; exit 1", "out of luck"),
        ("kill -9 $$", "no output, exit code -9"),
        ("exit 0", "no output, exit code 0"),
        ("printf 'Gr\\374\\337e' >&2; exit 1", "Gr\ufffd\ufffde"),
    ],
)
def test_a_compiler_that_fails_without_an_error_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, own_cache: Path, body: str, told: str
) -> None:
    fake_compiler(tmp_path, monkeypatch, body)
    with pytest.raises(Unavailable, match=rf"g\+\+ 99.1.0 could not compile answer.cpp: {told}"):
        compiler.shared_library(source, {})
    assert list((own_cache / "kernels").iterdir()) == [], "nothing is left behind"


def test_a_compiler_that_hangs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    fake_compiler(tmp_path, monkeypatch, "exec sleep 60")
    assert compiler.find() is not None
    monkeypatch.setattr(compiler, "TIMEOUT_S", 0.2)
    with pytest.raises(Unavailable, match=r"g\+\+ 99.1.0 took more than 0.2 s"):
        compiler.shared_library(source, {})


@needs_compiler
def test_a_real_error_is_told_with_its_line(source: str) -> None:
    with pytest.raises(
        Unavailable, match=r"could not compile answer.cpp: .*answer.cpp:1:34: error: .*ANSWER.*declared"
    ):
        compiler.shared_library(source, {})


@pytest.mark.parametrize("asked", ["/nowhere/g++", "a-compiler-that-is-missing -O1", "/bin/false"])
def test_a_compiler_asked_for_that_does_not_run_is_named(
    monkeypatch: pytest.MonkeyPatch, source: str, asked: str
) -> None:
    monkeypatch.setenv("AUTOTUNE_CXX", asked)
    compiler.find.cache_clear()
    assert compiler.find() is None
    assert compiler.identity() == ""
    assert compiler.missing_reason() == f"the C++ compiler '{asked}' (AUTOTUNE_CXX) does not run"
    with pytest.raises(Unavailable, match=r"\(AUTOTUNE_CXX\) does not run"):
        compiler.shared_library(source, {})


def test_without_a_compiler_the_tiled_kernel_refuses_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    workload, profile = Linear(1, 8, 8), hardware.detect()
    monkeypatch.setattr(compiler, "_candidates", lambda: [])
    compiler.find.cache_clear()
    reason = compiler.missing_reason()
    assert reason == "no C++ compiler was found: install g++ or clang++, or `pip install ziglang`"
    assert tiled.Tiled().refusal(workload, profile) == reason


def test_compilers_are_searched_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = fake_compiler(tmp_path, monkeypatch, "exit 1", "Fake clang version 42.0.1 (deadbeef)")
    script.rename(tmp_path / "clang++")
    monkeypatch.delenv("AUTOTUNE_CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    compiler.find.cache_clear()
    assert compiler.find() == compiler.Compiler((str(tmp_path / "clang++"),), "clang++ 42.0.1")


def test_a_broken_compiler_is_passed_over_for_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = fake_compiler(tmp_path, monkeypatch, "exit 1")
    monkeypatch.setattr(compiler, "_candidates", lambda: [("/bin/false",), ("/nowhere/g++",), (str(script),)])
    compiler.find.cache_clear()
    assert compiler.find() == compiler.Compiler((str(script),), "g++ 99.1.0")


# The cache


@needs_compiler
def test_what_was_compiled_is_loaded_and_kept(source: str) -> None:
    path = compiler.shared_library(source, {"ANSWER": 42})
    assert ctypes.CDLL(path).answer() == 42
    before = os.stat(path)
    assert compiler.shared_library(source, {"ANSWER": 42}) == path
    assert os.stat(path).st_mtime_ns == before.st_mtime_ns
    assert sorted(os.listdir(os.path.dirname(path))) == [os.path.basename(path)], "no scratch is left"


def test_everything_that_decides_the_object_is_in_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    fake_compiler(tmp_path, monkeypatch, WRITES_ITS_ARGUMENTS)
    names = {compiler.shared_library(source, {"ANSWER": 1})}
    assert {compiler.shared_library(source, {"ANSWER": 1})} == names

    names.add(compiler.shared_library(source, {"ANSWER": 2}))
    names.add(compiler.shared_library(source, {"ANSWER": 1, "MORE": 1}))
    names.add(compiler.shared_library(source, {"ANSWER": 1}, ("-pthread",)))
    assert len(names) == 4

    Path(source).write_text(ANSWER.replace("ANSWER;", "ANSWER + 1;"))
    names.add(compiler.shared_library(source, {"ANSWER": 1}))
    assert len(names) == 5, "the source"

    fake_compiler(tmp_path, monkeypatch, WRITES_ITS_ARGUMENTS, "g++ (Fake) 99.2.0")
    names.add(compiler.shared_library(source, {"ANSWER": 1}))
    assert len(names) == 6, "the compiler's version"

    profile = hardware.detect()
    for other in (
        replace(profile, isa=profile.isa[:-1] if profile.isa else ("avx2",)),
        replace(profile, model="another model"),
        replace(profile, arch="riscv64"),
    ):
        monkeypatch.setattr(hardware, "detect", lambda other=other: other)
        names.add(compiler.shared_library(source, {"ANSWER": 1}))
    assert len(names) == 9, "the silicon that -march=native means"
    assert all(os.path.isfile(name) for name in names)


def test_the_order_of_defines_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    fake_compiler(tmp_path, monkeypatch, WRITES_ITS_ARGUMENTS)
    one = compiler.shared_library(source, {"A": 1, "B": 2})
    assert compiler.shared_library(source, {"B": 2, "A": 1}) == one


def test_an_object_of_a_machine_with_more_isa_flags_is_never_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """A cache folder shared by a cluster: the lesser machine compiles its own."""
    fake_compiler(tmp_path, monkeypatch, WRITES_ITS_ARGUMENTS)
    greater = replace(hardware.detect(), isa=("avx2", "avx512f", "fma"))
    lesser = replace(greater, isa=("avx2", "fma"))
    monkeypatch.setattr(hardware, "detect", lambda: greater)
    foreign = compiler.shared_library(source, {})
    monkeypatch.setattr(hardware, "detect", lambda: lesser)
    assert compiler.shared_library(source, {}) != foreign


def test_a_replaced_compiler_is_asked_its_version_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_compiler(tmp_path, monkeypatch, "exit 1", "g++ (Fake) 1.2.3")
    assert compiler.identity() == "g++ 1.2.3"
    compiler.find.cache_clear()
    assert compiler.identity() == "g++ 1.2.3", "from the note in the cache folder"
    fake_compiler(tmp_path, monkeypatch, "exit 1", "g++ (Fake) 1.2.30")
    assert compiler.identity() == "g++ 1.2.30"


@pytest.mark.parametrize("junk", ["", "{", "[]", '{"other": 1}', "\0\0"])
def test_a_damaged_note_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path, junk: str
) -> None:
    fake_compiler(tmp_path, monkeypatch, "exit 1")
    assert compiler.identity() == "g++ 99.1.0"
    (note,) = (own_cache / "compilers").iterdir()
    note.write_text(junk)
    compiler.find.cache_clear()
    assert compiler.identity() == "g++ 99.1.0"
    assert "99.1.0" in note.read_text()


COMPILE = (
    "import sys; from autotune.kernels import compiler; print(compiler.shared_library(sys.argv[1], {'ANSWER': 7}))"
)


@needs_compiler
def test_two_processes_that_compile_the_same_at_once_both_succeed(source: str) -> None:
    command = [sys.executable, "-c", COMPILE, source]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = [process.communicate(timeout=60)[0].strip() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert paths[0] == paths[1]
    assert ctypes.CDLL(paths[0]).answer() == 7


def test_a_cache_folder_that_cannot_be_made_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path / "file" / "cache"))
    fake_compiler(tmp_path, monkeypatch, WRITES_ITS_ARGUMENTS)
    with pytest.raises(
        Unavailable, match=r"compiled kernels cannot be kept in .*file/cache/kernels: .*Not a directory"
    ):
        compiler.shared_library(source, {})


def test_a_read_only_cache_folder_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    folder.mkdir(mode=0o555)
    with (
        without_privileges(),
        pytest.raises(Unavailable, match=r"compiled kernels cannot be kept in .*Permission denied"),
    ):
        compiler._compile(compiler.Compiler(("/bin/true",), "g++ 1"), "x.cpp", (), str(folder / "x.so"))


# Revisions


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("int f(int a) {\n  return a + 1;\n}\n", True),
        ("int f(int a) { return a + 1; } // explained", True),
        ("/* a story\n   in two lines */ int f(int a) { return a + 1; }", True),
        ("int  f(int a)\n\n{\treturn a + 1; }", True),
        ("int f(int a) { return a + 2; }", False),
        ("int f(int b) { return b + 1; }", False),
        ("intf(int a) { return a + 1; }", False),
        ("", False),
    ],
)
def test_the_revision_changes_with_the_code_only(tmp_path: Path, text: str, same: bool) -> None:
    one, other = tmp_path / "one.cpp", tmp_path / "other.cpp"
    one.write_text("int f(int a) { return a + 1; }")
    other.write_text(text)
    assert (compiler.source_revision(str(one)) == compiler.source_revision(str(other))) is same


def test_the_revision_of_several_sources_changes_with_each(tmp_path: Path) -> None:
    one, other = tmp_path / "one.cpp", tmp_path / "other.cpp"
    one.write_text("int a;")
    other.write_text("int b;")
    both = compiler.source_revision(str(one), str(other))
    assert both != compiler.source_revision(str(one))
    other.write_text("int c;")
    assert compiler.source_revision(str(one), str(other)) != both


# Headers


@pytest.fixture
def with_headers(tmp_path: Path, source: str) -> str:
    """A source whose answer comes from a header that a header includes."""
    (tmp_path / "answer.hpp").write_text('#pragma once\n  #  include "number.hpp"\n')
    (tmp_path / "number.hpp").write_text('#pragma once\n#include "answer.hpp"\ninline int number() { return 5; }\n')
    Path(source).write_text('#include <cstdint>\n#include "answer.hpp"\nextern "C" int answer() { return number(); }\n')
    return source


@needs_compiler
def test_a_changed_header_is_another_object(tmp_path: Path, with_headers: str) -> None:
    path, revision = compiler.shared_library(with_headers, {}), compiler.source_revision(with_headers)
    assert ctypes.CDLL(path).answer() == 5
    header = tmp_path / "number.hpp"
    header.write_text(header.read_text().replace("5", "6"))
    assert compiler.source_revision(with_headers) != revision
    other = compiler.shared_library(with_headers, {})
    assert other != path
    assert ctypes.CDLL(other).answer() == 6


def test_an_explained_header_keeps_the_revision(tmp_path: Path, with_headers: str) -> None:
    revision = compiler.source_revision(with_headers)
    (tmp_path / "number.hpp").write_text("// why five\n" + (tmp_path / "number.hpp").read_text())
    assert compiler.source_revision(with_headers) == revision


@needs_compiler
def test_headers_of_the_package_are_found_from_anywhere(source: str) -> None:
    defines: dict[str, str | int] = {
        "REAL": "float",
        "LANES": 4,
        "MR": 2,
        "NV": 1,
        "UNROLL": 1,
        "PREFETCH": 0,
        "ACT": 5,
    }
    Path(source).write_text('#include "tile.hpp"\nextern "C" int answer() { return (int)activate_one(7.5f); }\n')
    assert "struct Tile" in compiler.source_text(source)
    assert ctypes.CDLL(compiler.shared_library(source, defines)).answer() == 6


@needs_compiler
def test_a_missing_header_is_told_by_the_compiler(source: str) -> None:
    Path(source).write_text('#include "nowhere.hpp"\n')
    with pytest.raises(Unavailable, match=r"could not compile answer.cpp: .*nowhere.hpp"):
        compiler.shared_library(source, {})
