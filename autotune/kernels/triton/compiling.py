"""The compile stage: what a compiler makes of a config, for any target, with or without a GPU.

Compiling happens in a child (`server.py`) with limits of time and memory, as some configs take minutes and gigabytes.
Its facts are kept in the cache folder by what decides them: sources, specialization, architecture, compiler.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from functools import cache

from autotune import settings
from autotune.errors import Unavailable
from autotune.hardware import gpu
from autotune.kernels import NotApplicable
from autotune.kernels.triton import Launch, TritonAlgorithm, missing_reason
from autotune.kernels.triton.facts import CompileFacts
from autotune.noun import Noun, noun

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from autotune.space import Params
    from autotune.types import Workload


@noun
class CompileLimits(Noun):
    """What one compilation may take. Address space, Triton itself included, which maps about 2 GiB."""

    seconds: float = 60.0
    memory_bytes: int = 8 << 30


DEFAULT_LIMITS = CompileLimits()


def compiler() -> str:
    """Name and version, such as "triton 3.9.0", without loading it. Raises `Unavailable` where it is missing."""
    version = _version()
    if not version:
        raise Unavailable(missing_reason())
    return f"triton {version}"


@cache
def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("triton").partition("+")[0]
    except PackageNotFoundError:
        return ""


def facts_of(
    algorithm: TritonAlgorithm,
    workload: Workload,
    params: Params,
    arch: str,
    limits: CompileLimits = DEFAULT_LIMITS,
    keep: bool = False,
) -> tuple[CompileFacts, ...]:
    """The facts of each launch of a config on `arch`, from the cache or compiled now (0.5 to 5 s each, mostly).

    With `keep` the code goes into Triton's own cache, for launches to find. A failure is in the facts.
    Raises `Unavailable` without Triton or when its process cannot be kept alive.
    """
    return tuple(
        _facts(launch, algorithm.revision(), arch, limits, keep) for launch in algorithm.launches(workload, params)
    )


def _facts(launch: Launch, revision: str, arch: str, limits: CompileLimits, keep: bool) -> CompileFacts:
    key = launch.key(revision, arch, compiler())
    kept = os.path.join(settings.cache_dir(), "compiled" if keep else "facts", f"{key}.json")
    known = _read(kept)
    if known and not (known.problem and known.seconds < limits.seconds):  # more time or another cause may do
        return known
    with _server() as server:
        facts = server.ask(launch, arch, limits, keep)
    with contextlib.suppress(OSError):  # a read-only cache folder only costs time
        os.makedirs(os.path.dirname(kept), exist_ok=True)
        partial = f"{kept}.{os.getpid()}.{threading.get_ident()}"
        with open(partial, "w", encoding="utf-8") as file:
            json.dump(facts.to_json(), file)
        os.replace(partial, kept)
    return facts


def _read(path: str) -> CompileFacts | None:
    try:
        with open(path, encoding="utf-8") as file:
            return CompileFacts.from_json(json.load(file))
    except (OSError, ValueError, TypeError):
        return None


def compile_here(algorithm: TritonAlgorithm, workload: Workload, params: Params) -> None:
    """Compiles a config for the first GPU of this process, so that launching finds it compiled.

    Raises `NotApplicable` when no block of it can be launched, and `Unavailable` when it does not compile. Does nothing
    without a GPU: the interpreter compiles nothing.
    """
    arch = _arch_here()
    if not arch:
        return
    for facts in facts_of(algorithm, workload, params, arch, keep=True):
        if facts.problem:
            raise Unavailable(facts.problem)
        if facts.over_limit:
            raise NotApplicable(facts.over_limit)


@cache
def _arch_here() -> str:
    found = gpu.profiles()
    return found[0].arch if found else ""


class Server:
    """A compiling process; one request at a time. Started with the first one, and again when it is gone."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, launch: Launch, arch: str, limits: CompileLimits, keep: bool = False) -> CompileFacts:
        request = {
            "launch": launch.specialized(),
            "arch": arch,
            "seconds": limits.seconds,
            "memory_bytes": limits.memory_bytes,
            "keep": keep,
        }
        for attempt in range(2):
            answer = self._exchange(request)
            if answer is not None:
                return CompileFacts.from_json(answer)
            self.close()  # killed by the system or a person: once more with a new one
            if attempt:
                raise Unavailable(f"the compiling process ended unexpectedly{self._last_words}")
        raise AssertionError

    def _exchange(self, request: dict[str, Any]) -> dict[str, Any] | None:
        if self._process is None:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            return None
        return dict(json.loads(line)) if line.endswith(b"\n") else None

    _last_words = ""

    def _start(self) -> None:
        if missing_reason():
            raise Unavailable(missing_reason())
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "autotune.kernels.triton.server"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=settings.compiling_environment(),
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(f"the compiling process cannot be started: {error}") from error

    def close(self) -> None:
        """Ends the process; a later `ask` starts another."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        self._last_words = f": {said[-1][:300]}" if said else ""
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        self._process = None


_idle: list[Server] = []  # kept from request to request; each ends when its stdin does, with this process at the latest


@contextlib.contextmanager
def _server() -> Iterator[Server]:
    """One that nobody else uses; as many exist as threads ask at once."""
    server = _idle.pop() if _idle else Server()
    try:
        yield server
    except BaseException:
        server.close()
        raise
    _idle.append(server)
