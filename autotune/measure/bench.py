"""One task's operands, reference and default, and the measuring of its candidates in this process.

Used by the worker process; candidates that crash take that process with them and nothing else.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from autotune import registry
from autotune.kernels import NotApplicable
from autotune.measure import Effort, Task
from autotune.measure.check import Case, Verdict, check
from autotune.measure.contention import ContentionWatch
from autotune.measure.pairs import time_pairs
from autotune.types import Config, Measurement, Stage, Status

if TYPE_CHECKING:
    import torch

    from autotune.ops import Kernel

CHECK_CASES = 2


class Bench:
    """Everything the candidates of one task share. `phase` is told before each phase begins."""

    def __init__(self, task: Task, phase: Callable[[str], None] = lambda _: None) -> None:
        self.task = task
        self.effort = Effort()
        self._phase = phase
        self._make_operands()  # its time is counted by the runner, which waits for it

    def _make_operands(self) -> None:
        workload, seed = self.task.workload, self.task.seed
        op = registry.op(workload.op)
        self.constants = op.constants(workload, seed)
        self._cases = []
        for index in range(CHECK_CASES):
            inputs = op.inputs(workload, seed + 1 + index)
            reference = op.reference(workload, self.constants, inputs)
            magnitude, dtype = op.magnitude(workload, self.constants, inputs), op.result_dtype(workload, inputs)
            self._cases.append(Case(inputs, reference, magnitude, dtype))
        more = range(1, op.input_sets(workload))
        self._sets = [self._cases[0].inputs, *(op.inputs(workload, seed + CHECK_CASES + n) for n in more)]
        self._baseline = self._build(op.default(workload)).call

    def measure(self, config: Config, stage: Stage) -> Measurement:
        """Build, check, time; exceptions of the candidate become a status."""
        workload = self.task.workload
        try:
            algorithm = registry.algorithm(config.algorithm)
            if workload.op not in algorithm.ops:
                return Measurement(Status.NOT_APPLICABLE, f"{config.algorithm} does not compute {workload.op}")
            refusal = algorithm.refusal(workload, self.task.hardware)
        except Exception as error:
            return Measurement(Status.BUILD_FAILED, _told(error))
        if refusal:
            return Measurement(Status.NOT_APPLICABLE, refusal)

        self._phase("build")
        begin = time.perf_counter_ns()
        try:
            algorithm.compile(workload, config.params)
            compiled = time.perf_counter_ns()
            built = self._build(config)
        except NotApplicable as error:
            return Measurement(Status.NOT_APPLICABLE, str(error))
        except Exception as error:
            self.effort.build_s += (time.perf_counter_ns() - begin) / 1e9
            return Measurement(Status.BUILD_FAILED, _told(error), build_ns=time.perf_counter_ns() - begin)
        ready = time.perf_counter_ns()
        self.effort.build_s += (ready - begin) / 1e9
        cost: dict[str, Any] = {
            "build_ns": compiled - begin,
            "prepare_ns": ready - compiled,
            "workspace_bytes": built.workspace_bytes,
        }

        self._phase("check")
        try:
            verdict = check(built.call, self._cases, algorithm.error_bound(workload), self._problem)
        except NotApplicable as error:  # of the first launch: what the driver alone could tell
            verdict = Verdict(Status.NOT_APPLICABLE, str(error), None)
        except Exception as error:
            verdict = Verdict(Status.RUN_FAILED, _told(error), None)
        if verdict.status is not Status.OK and self._spoilt():
            self._make_operands()  # the next candidate is to find the operands as they were
        self.effort.check_s += (time.perf_counter_ns() - ready) / 1e9
        if verdict.status is not Status.OK:
            return Measurement(verdict.status, verdict.message, max_error=verdict.max_error, **cost)

        self._phase("time")
        begin = time.perf_counter_ns()
        try:
            measured = self._time(built.call, stage)
        except Exception as error:
            return Measurement(Status.RUN_FAILED, _told(error), max_error=verdict.max_error, **cost)
        finally:
            self.effort.time_s += (time.perf_counter_ns() - begin) / 1e9
        times, baseline, contended = measured
        return Measurement(
            Status.OK,
            times_ns=times,
            baseline_ns=baseline,
            max_error=verdict.max_error,
            contended=contended,
            **cost,
        )

    def _problem(self, result: torch.Tensor) -> str:
        workload = self.task.workload
        return registry.op(workload.op).result_problem(workload, result)

    def _spoilt(self) -> bool:
        """Whether even the default is wrong now: a candidate wrote into operands."""
        workload = self.task.workload
        default = registry.op(workload.op).default(workload)
        bound = registry.algorithm(default.algorithm).error_bound(workload)
        return check(self._baseline, self._cases, bound).status is not Status.OK

    def _build(self, config: Config) -> Any:
        return registry.algorithm(config.algorithm).build(self.task.workload, config.params, self.constants)

    def _time(self, kernel: Kernel, stage: Stage) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
        import torch

        with torch.inference_mode():
            watch = ContentionWatch()
            pairs = time_pairs(
                self._in_turn(kernel, 0), self._in_turn(self._baseline, len(self._sets) // 2), self.task.spec, stage,
                self.task.seed,
            )  # fmt: skip
            return pairs.candidate, pairs.baseline, watch.contended(self.task.spec.tolerated_contention)

    def _in_turn(self, kernel: Kernel, first: int) -> Callable[[], torch.Tensor]:
        """Calls the kernel with one set of inputs after the other.

        Candidate and default begin at opposite ends, so that neither finds in the caches what the other read just now.
        """
        if len(self._sets) == 1:
            (inputs,) = self._sets
            return lambda: kernel(*inputs)
        turn = itertools.cycle((*self._sets[first:], *self._sets[:first])).__next__
        return lambda: kernel(*turn())


def _told(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:500]}" if text else type(error).__name__
