"""Finds a C++ compiler, and compiles one source with given defines into a cached shared library.

The cache key holds everything that decides the object code: source text with its quoted includes, defines,
flags, compiler identity, and the silicon that `-march=native` resolves to. A cache folder shared with a lesser
machine is therefore safe: that machine computes another key and compiles its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from functools import cache

from autotune import paths, settings
from autotune.canonical import content_key
from autotune.errors import Unavailable
from autotune.noun import Noun, noun

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FLAGS = ("-O3", "-std=gnu++20", "-shared", "-fPIC", "-ffp-contract=fast", "-fno-math-errno", "-Wall", "-Werror")
TIMEOUT_S = 60
HEADERS = paths.package_file("kernels", "cpp")
"""Where quoted includes are looked for that are not beside the file that names them."""


@noun
class Compiler(Noun):
    """`command`: the words that start it. `identity`: name and version, part of every key."""

    command: tuple[str, ...]
    identity: str


def _candidates() -> list[tuple[str, ...]]:
    asked = settings.compiler()
    if asked:
        return [tuple(asked.split())]
    found: list[tuple[str, ...]] = [(path,) for name in ("g++", "clang++") if (path := _which(name))]
    if _has_ziglang():
        found.append((sys.executable, "-m", "ziglang", "c++"))
    return found


def _which(name: str) -> str | None:
    """Like shutil.which on Unix, without the 5 ms that importing shutil costs the first lookup of a process."""
    folders = [""] if os.sep in name else os.environ.get("PATH", os.defpath).split(os.pathsep)
    for folder in folders:
        path = os.path.join(folder, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def _has_ziglang() -> bool:
    return any(os.path.isdir(os.path.join(entry, "ziglang")) for entry in sys.path)


def _fingerprint(command: Sequence[str]) -> str:
    """Changes when the compiler is replaced, without running it."""
    path = _which(command[0]) or command[0]
    real = os.path.realpath(path)
    stat = os.stat(real)
    return content_key([list(command), real, stat.st_size, stat.st_mtime_ns])


def _ask_version(command: Sequence[str]) -> str:
    import subprocess

    shown = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    first = shown.stdout.splitlines()[0]
    words = first.split()
    version = next((word for word in reversed(words) if word[0].isdigit()), "")
    name = "zig c++" if "ziglang" in command else "clang++" if "clang" in first else "g++"
    return f"{name} {version}"


def _identify(command: Sequence[str]) -> str:
    """Name and version; asked once per compiler file, then read from the cache folder."""
    note = os.path.join(settings.cache_dir(), "compilers", _fingerprint(command) + ".json")
    try:
        with open(note, encoding="utf-8") as file:
            return str(json.load(file)["identity"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    identity = _ask_version(command)
    with contextlib.suppress(OSError):  # a read-only cache folder only costs time
        _write_atomically(note, json.dumps({"identity": identity}).encode())
    return identity


@cache
def find() -> Compiler | None:
    """The compiler that AUTOTUNE_CXX names, else g++, clang++ or ziglang, whichever answers first; None without one."""
    for command in _candidates():
        try:
            return Compiler(command, _identify(command))
        except Exception:  # one that cannot even say its version cannot compile
            continue
    return None


def identity() -> str:
    """Name and version such as "g++ 12.2.0"; "" without a compiler."""
    compiler = find()
    return compiler.identity if compiler else ""


def missing_reason() -> str:
    """Why nothing can be compiled, as a sentence; "" when a compiler was found."""
    if find() is not None:
        return ""
    asked = settings.compiler()
    if asked:
        return f"the C++ compiler {asked!r} (AUTOTUNE_CXX) does not run"
    return "no C++ compiler was found: install g++ or clang++, or `pip install ziglang`"


def shared_library(source_path: str, defines: Mapping[str, str | int], extra_flags: Sequence[str] = ()) -> str:
    """Path of the compiled library, from the cache or made now (about half a second).

    Safe to call from several processes at once. Raises `Unavailable` without a compiler or when it fails,
    with its first error line.
    """
    compiler = find()
    if compiler is None:
        raise Unavailable(missing_reason())
    source = source_text(source_path)
    from autotune.hardware import detect

    silicon = detect()
    tuning = "-mcpu=native" if silicon.arch == "aarch64" and compiler.identity.startswith("g++") else "-march=native"
    flags = [*FLAGS, tuning, *extra_flags, *(f"-D{name}={value}" for name, value in sorted(defines.items()))]
    key = content_key([source, flags, compiler.identity, silicon.arch, silicon.model, list(silicon.isa)])
    stem = os.path.splitext(os.path.basename(source_path))[0]
    target = os.path.join(settings.cache_dir(), "kernels", f"{stem}-{key}.so")
    if not os.path.exists(target):
        _compile(compiler, source_path, flags, target)
    return target


def _compile(compiler: Compiler, source_path: str, flags: Sequence[str], target: str) -> None:
    import subprocess
    import tempfile

    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with tempfile.TemporaryDirectory(dir=os.path.dirname(target)) as scratch:
            made = os.path.join(scratch, "kernel.so")
            done = subprocess.run(
                [*compiler.command, *flags, "-iquote", HEADERS, "-o", made, source_path],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TIMEOUT_S,
                check=False,
            )
            if done.returncode != 0 or not os.path.exists(made):
                lines = done.stderr.strip().splitlines() or [f"no output, exit code {done.returncode}"]
                told = next((line for line in lines if "error:" in line), lines[-1])
                raise Unavailable(f"{compiler.identity} could not compile {os.path.basename(source_path)}: {told}")
            os.replace(made, target)  # atomic: another process sees all of it or nothing
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{compiler.identity} took more than {TIMEOUT_S} s for {source_path}") from None
    except OSError as error:
        raise Unavailable(f"compiled kernels cannot be kept in {os.path.dirname(target)}: {error}") from error


def _write_atomically(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    partial = f"{path}.{os.getpid()}"
    with open(partial, "wb") as file:
        file.write(data)
    os.replace(partial, path)


def source_text(path: str) -> str:
    """The source followed by every header of ours that it includes in quotes, directly or not, each once."""
    import re

    texts: dict[str, str] = {}

    def read(file_path: str) -> None:
        if file_path in texts:
            return
        with open(file_path, encoding="utf-8") as file:
            texts[file_path] = text = file.read()
        for name in re.findall(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', text, flags=re.MULTILINE):
            beside = os.path.join(os.path.dirname(file_path), name)
            found = next((p for p in (beside, os.path.join(HEADERS, name)) if os.path.isfile(p)), None)
            if found:  # one that is missing is for the compiler to tell
                read(os.path.normpath(found))

    read(os.path.normpath(path))
    return "\n".join(texts.values())


def source_revision(*sources: str) -> str:
    """Hash of sources and their headers without comments and white space.

    It changes when the code does, not when it is explained.
    """
    return content_key([_code_only(path) for path in sources])


def _code_only(path: str) -> str:
    import re

    text = source_text(path)
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
    text = re.sub(r"//[^\n]*", " ", text)
    return " ".join(text.split())
