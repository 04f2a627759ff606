"""One task's operands, reference and default, and the measuring of its candidates in this process.

Used by the worker process; candidates that crash take that process with them and nothing else.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from autotune import devices, registry
from autotune.errors import Unavailable
from autotune.kernels import Built, NotApplicable
from autotune.measure import Effort, Task
from autotune.measure.check import Case, Verdict, check
from autotune.measure.pairs import time_pairs
from autotune.types import Config, Measurement, Stage, Status

if TYPE_CHECKING:
    import torch

    from autotune.ops import Kernel

CHECK_CASES = 2


class Bench:
    """Everything the candidates of one task share. `phase` is told before each phase begins."""

    def __init__(self, task: Task, phase: Callable[[str], None] = lambda _: None) -> None:
        """Raises `Unavailable` when the device cannot be used, or is recording a graph."""
        self.task = task
        self.effort = Effort()
        self.spent = False
        """Whether a candidate did what this process cannot use the device after."""
        self._phase = phase
        self.device = devices.opened(task.device)
        if self.device.capturing():
            raise Unavailable(f"{task.device} is recording a graph: nothing can be timed now")
        self._default = registry.op(task.workload.op).default(task.workload).on(task.hardware.placement)
        self._sample = self.device.sampler(task.spec)
        self._make_operands()  # its time is counted by the runner, which waits for it

    def _make_operands(self) -> None:
        """Operands and references are made on the host, so that they are the same for all devices."""
        workload, seed = self.task.workload, self.task.seed
        op = registry.op(workload.op)
        constants = op.constants(workload, seed)
        self._cases = []
        self._sets = []
        for index in range(CHECK_CASES):
            inputs = op.inputs(workload, seed + 1 + index)
            reference = op.reference(workload, constants, inputs)
            magnitude, dtype = op.magnitude(workload, constants, inputs), op.result_dtype(workload, inputs)
            self._sets += [inputs] if index == 0 else []
            self._cases.append(Case(self._moved(inputs), self.device.put(reference), magnitude, dtype))
        more = range(1, op.input_sets(workload))
        self._sets += [op.inputs(workload, seed + CHECK_CASES + n) for n in more]
        if self.task.spec.operands_on == "device":
            self._sets = [self._cases[0].inputs, *map(self._moved, self._sets[1:])]
        self.constants = devices.on_device(self.device, constants)
        self._baseline = self._build(self._default).call

    def _moved(self, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(map(self.device.put, inputs))

    def measure(self, config: Config, stage: Stage) -> Measurement:
        """Build, check, time; exceptions of the candidate become a status."""
        found = self._measure(config, stage)
        if found.status is not Status.OK and not self.spent:
            try:
                self.device.settle()
            except Exception as error:
                self._note(error)
        return found

    def _note(self, error: BaseException) -> str:
        self.spent = self.spent or self.device.fatal(error)
        return _told(error)

    def _measure(self, config: Config, stage: Stage) -> Measurement:
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
            return Measurement(Status.BUILD_FAILED, self._note(error), build_ns=time.perf_counter_ns() - begin)
        ready = time.perf_counter_ns()
        self.effort.build_s += (ready - begin) / 1e9
        cost: dict[str, Any] = {
            "build_ns": compiled - begin,
            "prepare_ns": ready - compiled,
            "workspace_bytes": built.workspace_bytes,
        }

        self._phase("check")
        try:
            verdict = check(self._awaited(built.call), self._cases, algorithm.error_bound(workload), self._problem)
        except NotApplicable as error:  # of the first launch: what the driver alone could tell
            verdict = Verdict(Status.NOT_APPLICABLE, str(error), None)
        except Exception as error:
            verdict = Verdict(Status.RUN_FAILED, self._note(error), None)
        if verdict.status is not Status.OK and not self.spent:
            self._restore()
        self.effort.check_s += (time.perf_counter_ns() - ready) / 1e9
        if verdict.status is not Status.OK:
            return Measurement(verdict.status, verdict.message, max_error=verdict.max_error, **cost)

        self._phase("time")
        begin = time.perf_counter_ns()
        try:
            measured = self._time(built.call, stage)
        except Exception as error:
            return Measurement(Status.RUN_FAILED, self._note(error), max_error=verdict.max_error, **cost)
        finally:
            self.effort.time_s += (time.perf_counter_ns() - begin) / 1e9
        times, baseline, contended, note = measured
        return Measurement(
            Status.OK,
            note,
            times_ns=times,
            baseline_ns=baseline,
            max_error=verdict.max_error,
            contended=contended,
            **cost,
        )

    def _problem(self, result: torch.Tensor) -> str:
        workload = self.task.workload
        return registry.op(workload.op).result_problem(workload, result)

    def _restore(self) -> None:
        """The next candidate is to find the operands as they were."""
        try:
            if self._spoilt():
                self._make_operands()
        except Exception as error:  # on a device, what a candidate did may show only now
            self._note(error)
            if not self.spent:
                raise

    def _spoilt(self) -> bool:
        """Whether even the default is wrong now: a candidate wrote into operands."""
        bound = registry.algorithm(self._default.algorithm).error_bound(self.task.workload)
        return check(self._awaited(self._baseline), self._cases, bound).status is not Status.OK

    def _build(self, config: Config) -> Built:
        workload = self.task.workload
        built = registry.algorithm(config.algorithm).build(workload, config.params, self.constants)
        return Built(self.device.kernel(built.call, workload, config), built.workspace_bytes)

    def _awaited(self, kernel: Kernel) -> Kernel:
        """The kernel with its result ready to be read when it returns."""
        if self.task.device == "cpu":
            return kernel

        def call(*inputs: torch.Tensor) -> torch.Tensor:
            result = kernel(*inputs)
            self.device.synchronize()
            return result

        return call

    def _time(self, kernel: Kernel, stage: Stage) -> tuple[tuple[int, ...], tuple[int, ...], bool, str]:
        import torch

        spec = self.task.spec
        with torch.inference_mode():
            candidate = self.device.prepared(self._in_turn(self._crossing(kernel), 0), spec)
            middle = len(self._sets) // 2
            baseline = self.device.prepared(self._in_turn(self._crossing(self._baseline), middle), spec)
            watch = self.device.watch()
            pairs = time_pairs(candidate, baseline, spec, stage, self.task.seed, self._sample)
            return pairs.candidate, pairs.baseline, watch.contended(spec.tolerated_contention), watch.note()

    def _crossing(self, kernel: Kernel) -> Kernel:
        """The kernel for operands on the host, where the protocol has them there."""
        if self.task.spec.operands_on == "device":
            return kernel
        return lambda *inputs: self.device.fetch(kernel(*self._moved(inputs)))

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
