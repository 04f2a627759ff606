"""What every `Store` does. An implementation's test class inherits `StoreContract` and gives the fixture `open_store`:
a callable that opens the same, at first empty, database each time it is called.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import pytest

from autotune.decide import ranked
from autotune.errors import InvalidInput
from autotune.ops.gemm import Gemm
from autotune.ops.linear import Linear
from autotune.store import JobKey, Store, Wish
from autotune.types import Config, Environment, HardwareProfile, Measurement, Stage, Status, TuningRecord, Workload
from tests import store_samples as sample

OpenStore = Callable[[], Store]
FLOATS: Any = (1.5, 1e-7, 1e22, 0.1 + 0.2)  # whole ns are the rule; fractions survive as well


@dataclass(frozen=True, eq=False)
class Unheard(Workload):
    """A workload of an op that is not installed."""

    op = "unheard_of"

    n: int

    @property
    def flops(self) -> int:
        return self.n

    @property
    def bytes(self) -> int:
        return self.n


def uids(records: Iterator[TuningRecord]) -> list[str]:
    return [record.uid for record in records]


class StoreContract:
    @pytest.fixture
    def open_store(self) -> OpenStore:
        raise NotImplementedError("an implementation's test class overrides this")

    @pytest.fixture
    def store(self, open_store: OpenStore) -> Iterator[Store]:
        with open_store() as store:
            yield store

    # Records

    def test_a_record_comes_back_as_it_was(self, open_store: OpenStore) -> None:
        records = [
            sample.record(),
            sample.record(sample.ok((1, 2, 3), contended=True, prepare_ns=4, build_ns=5, workspace_bytes=1 << 40)),
            sample.record(workload=Gemm(2, 3, 4, batch=5, a_layout="transposed"), stage=Stage.SCREEN),
            sample.record(sample.ok((5,), max_error=None), hardware=sample.OTHER_HARDWARE),
            sample.record(sample.ok((True, 2, 3)), environment=sample.OTHER_ENVIRONMENT, source="imported"),
            sample.record(Measurement(Status.OK, times_ns=FLOATS, baseline_ns=FLOATS), job="floats"),
            sample.record(spec=replace(sample.SPEC, screen_pairs=3)),
        ]
        records = [replace(record, repetition=number) for number, record in enumerate(records)]
        with open_store() as store:
            assert store.add(records) == len(records)
        with open_store() as store:
            found = {record.uid: record for record in store.records()}
        assert found == {record.uid: record for record in records}
        assert all(record.measured_at.utcoffset() is not None for record in found.values())

    def test_tuples_stay_tuples(self, open_store: OpenStore) -> None:
        params: dict[str, Any] = {
            "tile": (64, (8, 6)),
            "order": ("m", "n"),
            "empty": (),
            "f": 0.1,
            "flag": True,
            "one": 1,
            "s": "é",
        }
        with open_store() as store:
            store.add([sample.record(config=Config("tiled", params))])
        with open_store() as store:
            (found,) = store.records()
            (choice,) = store.choices(*sample.IDENTITY)
        for config in (found.config, choice.config):
            assert dict(config.params) == params
            assert config.params["flag"] is True
            assert config.key == Config("tiled", params).key

    @pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
    def test_failures_are_records(self, store: Store, status: Status) -> None:
        record = sample.record(sample.failed(status, "why:\nline two"))
        store.add([record])
        assert list(store.records()) == [record]
        assert store.choices(*sample.IDENTITY) == ()

    def test_a_record_is_stored_once(self, open_store: OpenStore) -> None:
        record = sample.record(kernel_revision="", job="", source="")  # optional parts of the key unset
        again = replace(record, measurement=sample.ok(ratio=9.0), measured_at=sample.at(60))
        with open_store() as store, open_store() as other:
            assert store.add([record, record]) == 1
            assert store.add([again]) == 0
            assert other.add([record, sample.record()]) == 1
            assert [r for r in store.records() if not r.job] == [record]
            assert len(uids(other.records())) == 2

    def test_adding_nothing(self, store: Store) -> None:
        assert store.add([]) == 0
        assert list(store.records()) == []

    def test_records_are_filtered_and_oldest_first(self, store: Store) -> None:
        other = Linear(2, 3, 4)
        records = [
            sample.record(measured_at=sample.at(3)),
            sample.record(measured_at=sample.at(1), hardware=sample.OTHER_HARDWARE),
            sample.record(measured_at=sample.at(2), environment=sample.OTHER_ENVIRONMENT),
            sample.record(measured_at=sample.at(0.000001), workload=other),
            sample.record(measured_at=sample.at(0), workload=other, stage=Stage.SCREEN),
        ]
        store.add(records)
        by_age = sorted(records, key=lambda record: record.measured_at)
        assert list(store.records()) == by_age
        assert list(store.records(sample.WORKLOAD.key)) == [r for r in by_age if r.workload == sample.WORKLOAD]
        assert list(store.records(*sample.IDENTITY)) == [records[0]]
        assert list(store.records(hardware_key=sample.OTHER_HARDWARE.key)) == [records[1]]
        assert list(store.records(environment_key=sample.OTHER_ENVIRONMENT.key)) == [records[2]]
        assert list(store.records("0" * 32)) == []

    def test_records_may_be_added_while_others_are_read(self, store: Store) -> None:
        store.add([sample.record(repetition=n, measured_at=sample.at(n)) for n in range(3)])
        for record in store.records():
            if record.repetition < 3:
                store.add([replace(record, job="copy", measured_at=sample.at(-1))])
        assert store.stats().measurements == 6

    def test_ops_that_are_not_installed_are_passed_over(self, store: Store) -> None:
        store.add([sample.record(), sample.record(workload=Unheard(3))])
        assert list(store.records()) == [sample.record()]
        assert store.workloads() == (sample.WORKLOAD,)
        assert store.stats().by_op == {"linear": 1, "unheard_of": 1}

    def test_nothing_of_a_batch_is_stored_when_one_record_is_refused(self, store: Store) -> None:
        bad = replace(sample.HARDWARE, model="other", bandwidth_gbs=math.nan)

        def interrupted() -> Iterator[TuningRecord]:
            yield sample.record()
            raise KeyboardInterrupt

        with pytest.raises(InvalidInput, match="hardware profile"):
            store.add([sample.record(), sample.record(hardware=bad)])
        with pytest.raises(KeyboardInterrupt):
            store.add(interrupted())
        assert list(store.records()) == []
        assert store.add([sample.record()]) == 1
        assert list(store.records()) == [sample.record()]

    def test_any_text_can_be_a_message(self, store: Store) -> None:
        store.add([sample.record(sample.failed(message="caf\udce9 \0 é"))])
        (found,) = store.records()
        assert found.measurement.message == "caf\\udce9 \\x00 é"

    # Figures

    @pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan, 0, -1, 0.0, -1.5])
    @pytest.mark.parametrize("where", ["times_ns", "baseline_ns"])
    def test_a_time_that_is_none_is_a_failed_run(self, store: Store, bad: float, where: str) -> None:
        times: dict[str, Any] = {"times_ns": (100, 100, 100), "baseline_ns": (200, 200, 200), where: (100, bad, 100)}
        record = sample.record(Measurement(Status.OK, max_error=0.0, **times))
        store.add([record])
        (found,) = store.records()
        assert found == record
        assert found.measurement.status is Status.RUN_FAILED
        assert found.measurement.times_ns == ()
        assert store.choices(*sample.IDENTITY) == ()

    @pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
    def test_an_error_that_is_no_number_is_not_known(self, store: Store, bad: float) -> None:
        store.add([sample.record(sample.ok(max_error=bad))])
        (found,) = store.records()
        (choice,) = store.choices(*sample.IDENTITY)
        assert found.measurement.max_error is None
        assert choice.max_error == math.inf  # in no budget

    def test_a_ratio_beyond_floating_point_decides_nothing(self, store: Store) -> None:
        times: dict[str, Any] = {"times_ns": (1e-300,), "baseline_ns": (1e300,)}
        record = sample.record(Measurement(Status.OK, **times))
        store.add([record])
        assert list(store.records()) == [record]
        assert store.choices(*sample.IDENTITY) == ()

    def test_sizes_are_64_bit(self, store: Store) -> None:
        large = Gemm(320, 2560, 3072, batch=320)  # batch offsets, flops and bytes pass 2**31
        giant = Linear(1 << 40, 1 << 40, 1 << 40)  # flops and bytes pass 2**63
        measured = sample.ok(prepare_ns=1 << 62, build_ns=1 << 62, workspace_bytes=(1 << 63) - 1)
        machine = replace(sample.HARDWARE, memory_bytes=1 << 50)
        store.add([sample.record(measured, workload=w, hardware=machine, repetition=1 << 40) for w in (large, giant)])
        found = {record.workload: record for record in store.records()}
        assert set(found) == {large, giant}
        for workload, record in found.items():
            assert record.measurement == measured
            assert record.hardware == machine
            assert record.repetition == 1 << 40
            assert (record.workload.flops, record.workload.bytes) == (workload.flops, workload.bytes)
            assert record.workload.flops > 0

    # Decided entries

    def test_a_final_success_is_decided(self, store: Store) -> None:
        record = sample.record(sample.ok(contended=True, max_error=1e-6))
        store.add([record])
        (choice,) = store.choices(*sample.IDENTITY)
        assert choice.config == record.config
        assert choice.kernel_revision == "r1"
        assert choice.expected_ns == record.measurement.median_ns
        assert choice.baseline_ns == record.measurement.baseline_median_ns
        assert choice.speedup == record.measurement.speedup
        assert choice.interval == record.measurement.interval
        assert choice.max_error == 1e-6
        assert choice.contended

    def test_screening_decides_nothing(self, store: Store) -> None:
        store.add([sample.record(stage=Stage.SCREEN), sample.record(sample.failed(), stage=Stage.SCREEN)])
        assert store.choices(*sample.IDENTITY) == ()
        store.add([sample.record()])
        store.add([sample.record(sample.failed(), stage=Stage.SCREEN, job="later", measured_at=sample.at(9))])
        assert len(store.choices(*sample.IDENTITY)) == 1

    def test_identities_do_not_mix(self, store: Store) -> None:
        store.add(
            [
                sample.record(),
                sample.record(workload=Linear(2, 4096, 1024)),
                sample.record(hardware=sample.OTHER_HARDWARE),
                sample.record(environment=sample.OTHER_ENVIRONMENT),
            ]
        )
        assert len(store.choices(*sample.IDENTITY)) == 1
        assert len(store.choices(sample.WORKLOAD.key, sample.OTHER_HARDWARE.key, sample.ENVIRONMENT.key)) == 1
        assert store.choices(sample.WORKLOAD.key, sample.OTHER_HARDWARE.key, sample.OTHER_ENVIRONMENT.key) == ()

    def test_how_operands_lie_in_memory_is_part_of_the_identity(self, store: Store) -> None:
        layouts = ("contiguous", "transposed", "strided", "expanded")
        workloads = [Linear(1, 2, 3, weight_layout=layout) for layout in layouts]
        store.add([sample.record(sample.ok(ratio=2.0 + n), workload=w) for n, w in enumerate(workloads)])
        found = [store.choices(workload.key, *sample.IDENTITY[1:]) for workload in workloads]
        assert [[choice.speedup for choice in choices] for choices in found] == [[2.0], [3.0], [4.0], [5.0]]
        assert set(store.workloads()) == set(workloads)

    def test_the_fastest_choice_comes_first(self, store: Store) -> None:
        ratios = {1: 1.5, 2: 3.0, 3: 0.5, 4: 2.99}
        store.add([sample.record(sample.ok(ratio=r), config=sample.config(n, threads=n)) for n, r in ratios.items()])
        choices = store.choices(*sample.IDENTITY)
        assert choices == ranked(reversed(choices))
        assert [choice.config.params["mr"] for choice in choices] == [2, 4, 1, 3]

    def test_all_fail_then_one_survives(self, store: Store) -> None:
        store.add([sample.record(sample.failed(), config=sample.config(n)) for n in range(5)])
        assert store.choices(*sample.IDENTITY) == ()
        store.add([sample.record(config=sample.config(3), job="job-2", measured_at=sample.at(1))])
        (choice,) = store.choices(*sample.IDENTITY)
        assert choice.config == sample.config(3)

    def test_the_last_measured_wins(self, store: Store) -> None:
        store.add([sample.record(sample.ok(ratio=2.0), job="b", measured_at=sample.at(2), kernel_revision="r2")])
        store.add([sample.record(sample.ok(ratio=9.0), job="a", measured_at=sample.at(1))])
        (choice,) = store.choices(*sample.IDENTITY)
        assert (choice.speedup, choice.kernel_revision) == (2.0, "r2")
        store.add([sample.record(sample.ok(ratio=1.5), job="c", measured_at=sample.at(3))])
        (choice,) = store.choices(*sample.IDENTITY)
        assert (choice.speedup, choice.kernel_revision) == (1.5, "r1")

    def test_a_success_older_than_a_failure_stays_undecided(self, store: Store) -> None:
        store.add([sample.record(sample.failed(), job="b", measured_at=sample.at(2))])
        store.add([sample.record(job="a", measured_at=sample.at(1))])
        assert store.choices(*sample.IDENTITY) == ()
        store.add([sample.record(job="c", measured_at=sample.at(3))])
        assert len(store.choices(*sample.IDENTITY)) == 1

    @pytest.mark.parametrize("together", [False, True])
    def test_any_order_of_arrival_decides_the_same(self, store: Store, together: bool) -> None:
        outcomes = (sample.ok(ratio=2.0), sample.failed(), sample.ok(ratio=3.0), sample.failed(Status.TIMEOUT))
        for last in range(1, 5):  # the newest is a success or a failure; the last two are equally old
            when = [sample.at(min(n, 2)) for n in range(last)]
            reference: object = None
            for number, order in enumerate(permutations(range(last))):
                workload = Linear(last, 2, number + 1)
                records = [
                    sample.record(outcomes[n], workload=workload, job=f"job-{n}", measured_at=when[n]) for n in order
                ]
                newest = max(records, key=lambda r: (r.measured_at, r.uid))
                expected = [newest.measurement.speedup] if newest.measurement.status is Status.OK else []
                for batch in [records] if together else [[record] for record in records]:
                    store.add(batch)
                choices = store.choices(workload.key, *sample.IDENTITY[1:])
                assert [choice.speedup for choice in choices] == expected
                reference = reference or choices

    def test_a_repeated_record_takes_no_part_in_the_decision(self, store: Store) -> None:
        record = sample.record(sample.ok(ratio=2.0))
        store.add([record])
        store.add([replace(record, measurement=sample.ok(ratio=9.0), measured_at=sample.at(9))])
        store.add([replace(record, measurement=sample.failed(), measured_at=sample.at(9))])
        (choice,) = store.choices(*sample.IDENTITY)
        assert choice.speedup == 2.0

    # Nouns, jobs, counts

    def test_nouns_are_listed(self, store: Store) -> None:
        store.add([sample.record(), sample.record(workload=Gemm(1, 2, 3), hardware=sample.OTHER_HARDWARE)])
        assert set(store.workloads()) == {sample.WORKLOAD, Gemm(1, 2, 3)}
        assert set(store.hardware()) == {sample.HARDWARE, sample.OTHER_HARDWARE}
        assert store.environments() == (sample.ENVIRONMENT,)

    @pytest.mark.parametrize("probed_first", [False, True])
    def test_a_probed_profile_takes_the_place_of_a_bare_one(self, open_store: OpenStore, probed_first: bool) -> None:
        probed = replace(sample.HARDWARE, name="Sample CPU", peak_gflops={"f32": 123.5}, bandwidth_gbs=20.25)
        assert probed.key == sample.HARDWARE.key
        with open_store() as store:
            list(store.records())
            for profile in (probed, sample.HARDWARE) if probed_first else (sample.HARDWARE, probed):
                store.add([sample.record(hardware=profile, repetition=len(profile.peak_gflops))])
                list(store.records())
            assert store.hardware() == (probed,)
            assert {record.hardware.bandwidth_gbs for record in store.records()} == {20.25}
        with open_store() as store:
            store.add([sample.record(hardware=sample.HARDWARE, repetition=7)])
            assert store.hardware() == (probed,)

    def test_empty_optional_parts(self, store: Store) -> None:
        machine = HardwareProfile("cpu", "", "", "", "")
        record = sample.record(hardware=machine, environment=Environment(""), kernel_revision="", job="", source="")
        store.add([record])
        assert list(store.records()) == [record]

    def test_a_finished_job_is_remembered(self, open_store: OpenStore) -> None:
        job = JobKey(*sample.IDENTITY, space_key="s1")
        with open_store() as store:
            assert store.finished_jobs(*sample.IDENTITY) == {}
            store.finish_job(job, 10)
            store.finish_job(job, 12)
        with open_store() as store:
            assert set(store.finished_jobs(*sample.IDENTITY)) == {"s1"}
            report = store.finished_jobs(*sample.IDENTITY)["s1"]
            assert report.trials == 12
            assert report.finished_at.utcoffset() is not None
            store.finish_job(replace(job, space_key=""), 1)
            assert set(store.finished_jobs(*sample.IDENTITY)) == {"s1", ""}
            assert store.finished_jobs("other", *sample.IDENTITY[1:]) == {}

    # Wishes

    def test_wishes_are_counted_and_the_most_wanted_come_first(self, open_store: OpenStore) -> None:
        one, two = Linear(1, 2, 3), Linear(4, 5, 6)
        with open_store() as store:
            store.wish([Wish(one, "h1", weight=2.0), Wish(two)])
            store.wish([Wish(two, asked=4, weight=0.5), Wish(Linear(0, 2, 3), "h1")])
        with open_store() as store:
            assert store.wishes() == (Wish(two, "", 5, 1.0), Wish(one, "h1", 1, 2.0))
            assert store.wishes("h1") == store.wishes()
            assert store.wishes("h2") == (Wish(two, "", 5, 1.0),)

    def test_a_wish_is_taken_by_one_and_open_again_when_the_lease_ends(self, open_store: OpenStore) -> None:
        wish = Wish(Linear(1, 2, 3))
        with open_store() as store, open_store() as other:
            store.wish([wish])
            assert store.take(wish, "one", 3600)
            assert not other.take(wish, "two", 3600)
            assert other.wishes() == ()
            store.wish([wish])  # asked meanwhile: it stays taken
            assert not other.take(wish, "two", 3600)
            two = Wish(Linear(2, 2, 3))
            store.wish([two])
            assert store.take(two, "dies", -1)
            assert other.take(two, "two", 3600)
            assert not store.take(Wish(Linear(9, 9, 9)), "one", 3600)  # nobody wished for it

    def test_a_granted_wish_is_gone_until_it_is_asked_again(self, store: Store) -> None:
        wish = Wish(Linear(1, 2, 3))
        store.wish([wish])
        assert store.take(wish, "one", 3600)
        store.grant(wish)
        assert store.wishes() == ()
        assert not store.take(wish, "two", 3600)
        store.wish([wish])
        assert [found.workload for found in store.wishes()] == [wish.workload]

    def test_wishes_for_ops_that_are_not_installed_are_passed_over(self, store: Store) -> None:
        store.wish([Wish(Unheard(3)), Wish(Linear(1, 2, 3))])
        assert [found.workload for found in store.wishes()] == [Linear(1, 2, 3)]

    def test_gains_are_what_lookups_are_served(self, store: Store) -> None:
        assert store.gains(sample.HARDWARE.key) == {}
        store.add(
            [
                sample.record(sample.ok(ratio=4.0)),
                sample.record(sample.ok(ratio=0.5), workload=Linear(2, 3, 4)),  # the default stays: 1.0
                sample.record(sample.ok(ratio=9.0), hardware=sample.OTHER_HARDWARE),
            ]
        )
        assert store.gains(sample.HARDWARE.key) == {"linear": pytest.approx(2.0)}

    def test_counts(self, store: Store) -> None:
        store.add([sample.record(config=sample.config(n)) for n in range(3)])
        store.add([sample.record(sample.failed(), workload=Gemm(1, 2, 3), config=Config("torch"))])
        stats = store.stats()
        assert (stats.measurements, stats.workloads, stats.configs, stats.hardware, stats.environments) == (
            4,
            2,
            4,
            1,
            1,
        )
        assert stats.by_status == {"OK": 3, "RUN_FAILED": 1}
        assert stats.by_op == {"gemm": 1, "linear": 3}
        assert stats.by_algorithm == {"tiled": 3, "torch": 1}
        assert stats.schema_revision
        assert stats.size_bytes > 0
