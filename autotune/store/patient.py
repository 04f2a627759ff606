"""A store that waits while the database is away, for sweeps that outlive a restart of the server."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from autotune.errors import Unavailable
from autotune.store import JobKey, JobReport, Store, StoreStats, Wish
from autotune.types import Choice, Environment, HardwareProfile, TuningRecord, Workload

T = TypeVar("T")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0


class PatientStore(Store):
    """Opens a store and, when it becomes unavailable, opens it anew until it answers or `patience_s` has passed.

    Trying again is harmless because every method of a store is: records have their own identity. Opening the first
    time is not waited for, so that a wrong address is said at once. `say` is told once per outage.
    """

    def __init__(
        self, opener: Callable[[], Store], patience_s: float = 300.0, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._opener, self._patience_s, self._say = opener, patience_s, say
        self._store: Store | None = opener()

    def add(self, records: Iterable[TuningRecord]) -> int:
        batch = list(records)
        return self._try(lambda store: store.add(batch))

    def records(
        self,
        workload_key: str | None = None,
        hardware_key: str | None = None,
        environment_key: str | None = None,
    ) -> Iterator[TuningRecord]:
        return iter(self._try(lambda store: list(store.records(workload_key, hardware_key, environment_key))))

    def choices(self, workload_key: str, hardware_key: str, environment_key: str) -> tuple[Choice, ...]:
        return self._try(lambda store: store.choices(workload_key, hardware_key, environment_key))

    def workloads(self) -> tuple[Workload, ...]:
        return self._try(lambda store: store.workloads())

    def hardware(self) -> tuple[HardwareProfile, ...]:
        return self._try(lambda store: store.hardware())

    def environments(self) -> tuple[Environment, ...]:
        return self._try(lambda store: store.environments())

    def gains(self, hardware_key: str) -> dict[str, float]:
        return self._try(lambda store: store.gains(hardware_key))

    def finish_job(self, job: JobKey, trials: int) -> None:
        self._try(lambda store: store.finish_job(job, trials))

    def finished_jobs(self, workload_key: str, hardware_key: str, environment_key: str) -> dict[str, JobReport]:
        return self._try(lambda store: store.finished_jobs(workload_key, hardware_key, environment_key))

    def wish(self, wishes: Iterable[Wish]) -> None:
        batch = list(wishes)
        self._try(lambda store: store.wish(batch))

    def wishes(self, hardware_key: str | None = None) -> tuple[Wish, ...]:
        return self._try(lambda store: store.wishes(hardware_key))

    def take(self, wish: Wish, by: str, seconds: float) -> bool:
        return self._try(lambda store: store.take(wish, by, seconds))

    def grant(self, wish: Wish) -> None:
        self._try(lambda store: store.grant(wish))

    def stats(self) -> StoreStats:
        return self._try(lambda store: store.stats())

    def close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _try(self, what: Callable[[Store], T]) -> T:
        deadline, pause = time.monotonic() + self._patience_s, FIRST_PAUSE_S
        while True:
            try:
                if self._store is None:
                    self._store = self._opener()
                return what(self._store)
            except Unavailable as error:
                with contextlib.suppress(Unavailable):
                    self.close()
                if time.monotonic() + pause > deadline:
                    raise
                if pause == FIRST_PAUSE_S:
                    self._say(f"{error}; waiting up to {self._patience_s:.0f} s for it")
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
