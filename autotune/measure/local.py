"""LocalRunner: measures in a child process that is replaced when a candidate kills, hangs or bloats it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from autotune import registry
from autotune.errors import Unavailable
from autotune.measure import Effort, Runner, Task, wire
from autotune.types import Config, Measurement, Stage, Status

START_TIMEOUT_S = 120.0


class _Died(Exception):
    """The child is gone; the text says how."""


class _Silent(Exception):
    """The child said nothing before the deadline; the text names the phase it was in."""


class LocalRunner(Runner):
    """One child at a time, kept from candidate to candidate and from task to task."""

    def __init__(self) -> None:
        self.effort = Effort()
        self._child: _Child | None = None
        self._task: Task | None = None

    def start(self) -> None:
        if self._child is None:
            try:
                self._child = _Child()
            except OSError as error:  # no memory, no processes left
                raise Unavailable(f"the measuring process cannot be started: {error}") from error
            self._task = None

    def prepare(self, task: Task, configs: Sequence[Config]) -> None:
        begin = time.perf_counter()
        with ThreadPoolExecutor(max_workers=max(1, task.hardware.allowed_cpus)) as pool:
            for done in [pool.submit(_compile, task, config) for config in configs]:
                done.result()
        self.effort.build_s += time.perf_counter() - begin

    def measure(self, task: Task, config: Config, stage: Stage) -> Measurement:
        child = self._child_for(task)
        begin = time.perf_counter()
        try:
            answer = child.ask(
                {"config": wire.config_to_json(config), "stage": stage.value},
                {"build": task.spec.build_timeout_s, "": task.spec.build_timeout_s},
                task.spec.run_timeout_s,
            )
        except _Died as death:
            self._drop()
            self.effort.time_s += time.perf_counter() - begin
            return Measurement(Status.RUN_FAILED, str(death))
        except _Silent as silence:
            self._drop()
            self.effort.time_s += time.perf_counter() - begin
            return Measurement(Status.TIMEOUT, str(silence))
        if "measurement" not in answer:
            self._drop()
            return Measurement(Status.RUN_FAILED, str(answer.get("failed", "the measuring process lost its way")))
        for phase, seconds in answer["effort"].items():
            setattr(self.effort, phase, getattr(self.effort, phase) + seconds)
        if answer.get("spent"):  # the device is lost to that process, as after an illegal memory access on a GPU
            self._drop()
        return wire.measurement_from_json(answer["measurement"])

    def close(self) -> None:
        self._drop()

    def _child_for(self, task: Task) -> _Child:
        self.start()
        child = self._child
        assert child is not None
        if self._task != task:
            begin = time.perf_counter()
            try:
                answer = child.ask({"task": wire.task_to_json(task)}, {}, START_TIMEOUT_S + task.spec.run_timeout_s)
            except (_Died, _Silent) as trouble:
                self._drop()
                raise Unavailable(f"nothing can be measured for {task.workload}: {trouble}") from None
            if "failed" in answer:
                if answer.get("spent"):
                    self._drop()
                raise Unavailable(f"{task.workload} cannot be set up: {answer['failed']}")
            # operands and references belong to the check; waiting for the child's imports is overhead
            self.effort.check_s += max(0.0, time.perf_counter() - max(begin, child.ready_at))
            self._task = task
        return child

    def _drop(self) -> None:
        if self._child is not None:
            self._child.kill()
        self._child = None
        self._task = None


class _Child:
    """The worker process and its two pipes."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        self._process = subprocess.Popen(
            [sys.executable, "-m", "autotune.measure.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C reaches the sweep only
        )
        self._buffer = b""
        self._up = False
        self.ready_at = float("inf")  # when its imports were done

    def ask(self, request: dict[str, Any], limits_s: dict[str, float], limit_s: float) -> dict[str, Any]:
        """Sends, then reads until something other than a phase comes. Each phase has its own time limit."""
        if not self._up:
            self._read(START_TIMEOUT_S, "start")
            self._up = True
            self.ready_at = time.perf_counter()
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request, allow_nan=False).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise _Died(self._how_it_died()) from None
        phase = ""
        while True:
            message = self._read(limits_s.get(phase, limit_s), phase or "set-up")
            if "phase" not in message:
                return message
            phase = message["phase"]

    def _read(self, limit_s: float, phase: str) -> dict[str, Any]:
        deadline = time.monotonic() + limit_s
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise _Silent(f"no answer within {limit_s:g} s in phase {phase}")
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                raise _Died(self._how_it_died())
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return dict(json.loads(line))

    def _how_it_died(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        code = self._process.returncode
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        last = f" ({said[-1][:300]})" if said else ""
        if code is not None and code < 0:
            return f"the process was killed by {signal.Signals(-code).name}{last}"
        return f"the process ended with exit code {code}{last}"

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()


def _compile(task: Task, config: Config) -> None:
    # a failure shows again, with its message, when the config is measured
    with contextlib.suppress(Exception):
        algorithm = registry.algorithm(config.algorithm)
        if not algorithm.refusal(task.workload, task.hardware):
            algorithm.compile(task.workload, config.params)
