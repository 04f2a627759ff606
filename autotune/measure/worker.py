"""The measuring process: `python -m autotune.measure.worker`, driven by JSON lines on stdin and stdout.

    {"task": …}                    → {"ready": true} or {"failed": why}
    {"config": …, "stage": …}      → {"phase": "build" | "check" | "time"} …, then {"measurement": …, "effort": …}

"spent": true beside an answer says that this process can use the device no more and wants to be replaced.

It dies with its parent, keeps its memory within the spec's limit, and lets nothing that a candidate prints
into the protocol.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import IO, Any

from autotune.errors import Unavailable
from autotune.measure import Task, wire
from autotune.measure.bench import Bench
from autotune.types import Stage, Workload

PR_SET_PDEATHSIG = 1
M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4


def main() -> None:
    protocol = _take_stdout()
    _die_with_parent()
    _steady_allocator()
    import torch  # noqa: F401 - before the first task, so that starting up is over when it comes

    _say(protocol, {"started": True})
    bench: Bench | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if "task" in request:
            bench = None  # frees the operands of the last task before making the next
            bench = _open(protocol, wire.task_from_json(request["task"]))
            continue
        if bench is None:
            _say(protocol, {"failed": "no task is open"})
            continue
        measurement = bench.measure(wire.config_from_json(request["config"]), Stage(request["stage"]))
        effort = {"build_s": bench.effort.build_s, "check_s": bench.effort.check_s, "time_s": bench.effort.time_s}
        answer = {"measurement": wire.measurement_to_json(measurement), "effort": effort, "spent": bench.spent}
        _say(protocol, answer)
        bench.effort.build_s = bench.effort.check_s = bench.effort.time_s = 0.0


def _open(protocol: IO[str], task: Task) -> Bench | None:
    limit_memory(task)
    try:
        bench = Bench(task, lambda phase: _say(protocol, {"phase": phase}))
    except Unavailable as error:
        _say(protocol, {"failed": str(error), "spent": task.device != "cpu"})
        return None
    except Exception as error:
        _say(protocol, {"failed": f"{type(error).__name__}: {error}", "spent": task.device != "cpu"})
        return None
    _say(protocol, {"ready": True})
    return bench


def limit_memory(task: Task) -> None:
    """Address space: what is mapped now, room for operands with their f64 references, and the spec's limit.

    None for other devices than the CPU: a GPU's driver maps address space by the terabyte. There the GPU's own memory
    is the limit, and the time.
    """
    try:
        import resource

        if task.device != "cpu":
            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
            return

        with open("/proc/self/statm", encoding="ascii") as file:
            mapped = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        limit = mapped + _room_bytes(task.workload) + task.spec.memory_limit_bytes
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    except (ImportError, OSError, ValueError):
        return  # not Linux: the timeout is the only guard


def _room_bytes(workload: Workload) -> int:
    """For the operands themselves, and what is made of those that a call reads: references in f64, copies."""
    return workload.operand_bytes + 11 * workload.bytes


def _take_stdout() -> IO[str]:
    """The protocol keeps the real stdout; prints of candidates, Python's or C's, go to stderr."""
    protocol = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return protocol


def _die_with_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the sweep's to handle
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return  # not Linux: the end of stdin ends us


def _steady_allocator() -> None:
    """Freed memory stays with the process: returning it to the kernel was seen to make a default 7x slower."""
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    except (OSError, AttributeError):
        return


def _say(protocol: IO[str], message: dict[str, Any]) -> None:
    protocol.write(json.dumps(message, allow_nan=False) + "\n")
    protocol.flush()


if __name__ == "__main__":
    main()
