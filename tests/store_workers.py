"""What the processes in the store's tests run. Imports little: dozens of them start at once."""

from __future__ import annotations

from autotune.store.sql import open_store
from tests import store_samples as sample


def add_batches(path: str, worker: int, batches: int, per_batch: int) -> int:
    """Adds the worker's own records, and in each batch one that all workers add; returns how many were new."""
    added = 0
    with open_store(path) as store:
        for batch in range(batches):
            own = [
                sample.record(job=f"worker-{worker}", repetition=batch * per_batch + n, config=sample.config(n))
                for n in range(per_batch)
            ]
            added += store.add([*own, sample.record(job="shared", repetition=batch)])
    return added


def add_until_killed(path: str, written: str) -> None:
    """Adds records for ever; notes in the file `written` how many `add` has returned for."""
    with open_store(path) as store, open(written, "w") as note:
        number = 0
        while True:
            store.add([sample.record(repetition=number)])
            number += 1
            note.seek(0)
            note.write(str(number))
            note.flush()
