"""Strategies: one contract class for all of them, then what is theirs alone."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune import Gemm, Linear, hardware
from autotune.search import Candidates, Outcome, Strategy, candidates_for
from autotune.search.exhaustive import Exhaustive
from autotune.search.guided import guided
from autotune.search.portfolio import Portfolio
from autotune.search.surrogate import Surrogate
from autotune.search.tpe import Tpe
from autotune.space import SearchSpace
from autotune.types import Config

DEFAULT = Config("torch")


def candidates(**spaces: SearchSpace) -> Candidates:
    return Candidates(spaces, {}, dict.fromkeys(spaces, "1"), DEFAULT)


BIG = candidates(
    torch=SearchSpace({"threads": (1, 2)}),
    tiled=SearchSpace(
        {"tile": tuple((i, j) for i in range(1, 7) for j in (16, 32)), "unroll": (1, 2, 4), "kc": (0, 64, 128)},
        constraints=(lambda p: p["tile"][0] * p["unroll"] <= 12,),
        seeds=({"tile": (4, 16), "unroll": 2, "kc": 0},),
    ),
    packed=SearchSpace({"threads": tuple(range(1, 30))}),
)


def quality(config: Config) -> float | None:
    """An invented landscape with failures: the tiled kernel is best with tile (3, 32), unroll 4, kc 64."""
    if config.algorithm != "tiled":
        return 1.1
    (mr, nr), unroll, kc = config.params["tile"], config.params["unroll"], config.params["kc"]
    if mr == 5:
        return None
    return 2.0 - 0.2 * abs(mr - 3) - 0.2 * (nr == 16) - 0.1 * abs(unroll - 4) / 2 - 0.1 * (kc != 64)


def search(strategy: Strategy, trials: int, batch: int = 3) -> list[tuple[Config, float | None]]:
    found: list[tuple[Config, float | None]] = []
    while len(found) < trials:
        asked = strategy.ask(batch)
        if not asked:
            break
        for config in asked:
            found.append((config, quality(config)))
            strategy.tell(Outcome(config, quality(config)))
    return found


class StrategyContract:
    def make(self, candidates: Candidates) -> Strategy:
        raise AssertionError("each implementation makes its strategy")

    def test_nothing_is_asked_twice_and_all_is_valid(self) -> None:
        configs = [config for config, _ in search(self.make(BIG), 60)]
        assert len(set(configs)) == len(configs)
        assert all(BIG.contains(config) for config in configs)

    def test_the_default_is_never_asked(self) -> None:
        assert DEFAULT not in [config for config, _ in search(self.make(BIG), 60)]

    def test_what_was_told_is_not_asked(self) -> None:
        strategy = self.make(BIG)
        known = [Config("tiled", p) for p in BIG.spaces["tiled"]][:50]
        for config in known:
            strategy.tell(Outcome(config, quality(config)))
        assert not set(known) & {config for config, _ in search(strategy, 40)}

    def test_seeds_come_first(self) -> None:
        assert self.make(BIG).ask(1) == [Config("tiled", {"tile": (4, 16), "unroll": 2, "kc": 0})]

    def test_same_seed_same_search(self) -> None:
        assert search(self.make(BIG), 40) == search(self.make(BIG), 40)

    @pytest.mark.parametrize(
        "space",
        [
            SearchSpace({}),
            SearchSpace({"only": (1,)}),
            SearchSpace({"a": (1, 2), "b": (1, 2)}, constraints=(lambda p: False,)),
            SearchSpace({"flag": (True, False), "pair": ((1, 2), (2, 1))}),
        ],
    )
    def test_tiny_and_contradictory_spaces_end(self, space: SearchSpace) -> None:
        found = {config for config, _ in search(self.make(candidates(tiled_like=space)), 100)}
        assert {tuple(sorted(c.params.items())) for c in found} == {tuple(sorted(p.items())) for p in space}

    def test_all_failing_ends_without_an_exception(self) -> None:
        strategy = self.make(BIG)
        asked = 0
        while asked < 80 and (batch := strategy.ask(4)):
            asked += len(batch)
            for config in batch:
                strategy.tell(Outcome(config, None))
        assert asked >= 80

    def test_no_candidates_at_all(self) -> None:
        assert self.make(candidates()).ask(5) == []


class TestExhaustive(StrategyContract):
    def make(self, candidates: Candidates) -> Strategy:
        return Exhaustive(candidates)

    def test_it_walks_everything(self) -> None:
        found = [config for config, _ in search(self.make(BIG), 10_000)]
        assert len(found) == sum(1 for space in BIG.spaces.values() for _ in space)


class TestTpe(StrategyContract):
    def make(self, candidates: Candidates) -> Strategy:
        return Tpe(candidates, seed=3)

    def test_it_finds_a_good_config_in_few_trials(self) -> None:
        best = max(value for _, value in search(self.make(BIG), 45) if value is not None)
        assert best >= 1.85

    def test_small_algorithms_are_walked_whole(self) -> None:
        found = {config for config, _ in search(self.make(BIG), 20)}
        assert {Config("torch", {"threads": 1}), Config("torch", {"threads": 2})} <= found

    def test_winners_of_neighbours_are_tried_first_when_they_fit(self) -> None:
        fits, foreign = Config("packed", {"threads": 7}), Config("packed", {"threads": 99})
        first = Tpe(BIG, [foreign, fits]).ask(2)
        assert first[0] == fits
        assert foreign not in first

    @settings(max_examples=15, deadline=None, derandomize=True)
    @given(data=st.data())
    def test_random_tiny_spaces(self, data: st.DataObject) -> None:
        values = st.lists(
            st.one_of(st.integers(-3, 3), st.booleans(), st.text("ab", max_size=2), st.tuples(st.integers(0, 2))),
            min_size=1, max_size=4, unique_by=repr,
        )  # fmt: skip
        names = data.draw(st.lists(st.sampled_from("pqr"), unique=True))
        space = SearchSpace({name: tuple(data.draw(values)) for name in names})
        found = [config for config, _ in search(self.make(candidates(odd=space)), 80)]
        assert len(found) == len(set(found)) <= space.size


class TestSurrogate(StrategyContract):
    def make(self, candidates: Candidates) -> Strategy:
        return Surrogate(candidates, seed=3)

    def test_it_finds_a_good_config_in_few_trials(self) -> None:
        best = max(value for _, value in search(self.make(BIG), 45) if value is not None)
        assert best >= 1.95

    def test_winners_of_neighbours_are_tried_first_when_they_fit(self) -> None:
        fits, foreign = Config("packed", {"threads": 7}), Config("packed", {"threads": 99})
        first = Surrogate(BIG, [foreign, fits]).ask(2)
        assert first[0] == fits
        assert foreign not in first

    def test_a_source_that_agrees_shortens_the_search_and_one_that_disagrees_is_dropped(self) -> None:
        tiled = candidates(tiled=SearchSpace(BIG.spaces["tiled"].parameters, BIG.spaces["tiled"].constraints))
        known = [Config("tiled", params) for params in tiled.spaces["tiled"]]
        agrees = [Outcome(c, quality(c)) for c in known]
        opposite = [Outcome(c, None if (q := quality(c)) is None else 4 - 2 * q + 0.5) for c in known]
        warm = search(Surrogate(tiled, seed=3, sources=[agrees]), 4)
        assert max(value or 0 for _, value in warm) >= 1.95
        misled = search(Surrogate(tiled, seed=3, sources=[opposite]), 40)
        assert max(value or 0 for _, value in misled) >= 1.9

    def test_speedups_that_are_none_are_failures(self) -> None:
        strategy = self.make(BIG)
        for value in (float("nan"), float("inf"), 0.0, -1.0, None) * 4:
            for config in strategy.ask(1):
                strategy.tell(Outcome(config, value))
        assert strategy.ask(3)


def test_without_xgboost_tpe_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(guided(BIG), Surrogate)
    monkeypatch.setattr("autotune.search.guided.find_spec", lambda name: None)
    assert isinstance(guided(BIG), Tpe)


class TestPortfolio(StrategyContract):
    def make(self, candidates: Candidates) -> Strategy:
        return Portfolio([Surrogate(candidates, seed=3), Tpe(candidates, seed=3)])

    def test_the_member_that_finds_something_gets_most_trials(self) -> None:
        class Poor(Exhaustive):
            asked = 0

            def ask(self, count: int) -> list[Config]:
                batch = super().ask(count)
                Poor.asked += len(batch)
                return batch

        poor = Poor(candidates(packed=SearchSpace({"threads": tuple(range(1, 200))})))
        found = search(Portfolio([poor, Surrogate(BIG, seed=3)]), 60)
        assert max(value or 0 for _, value in found) >= 1.95
        assert Poor.asked < 30

    def test_without_members_there_is_nothing_to_ask(self) -> None:
        assert Portfolio([]).ask(3) == []
        assert Portfolio([]).planned() == 0


def test_candidates_of_this_machine_say_what_applies_and_why_not() -> None:
    found = candidates_for(Linear(4, 64, 32, dtype="bf16"), hardware.detect())
    assert "tiled" in found.refusals
    assert "bf16" in found.refusals["tiled"]
    assert "torch" in found.spaces
    assert set(found.spaces).isdisjoint(found.refusals)


def test_the_fallback_kernel_is_a_candidate_only_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    from autotune.kernels.tiled import Tiled

    workload = Linear(4, 64, 32)
    monkeypatch.setattr(Tiled, "refusal", lambda *_: "")
    assert "tiled" in candidates_for(workload, hardware.detect()).refusals["numba_tiled"]
    monkeypatch.setattr(Tiled, "refusal", lambda *_: "no C++ compiler was found")
    found = candidates_for(workload, hardware.detect())
    assert "numba_tiled" in found.spaces
    assert found.refusals["tiled"] == "no C++ compiler was found"


def test_the_candidates_key_changes_with_values_and_revisions_only() -> None:
    one = candidates(a=SearchSpace({"x": (1, 2)}))
    more = candidates(a=SearchSpace({"x": (1, 2, 3)}))
    newer = Candidates(one.spaces, {}, {"a": "2"}, DEFAULT)
    assert one.key == candidates(a=SearchSpace({"x": (1, 2)})).key
    assert len({one.key, more.key, newer.key}) == 3


@pytest.mark.parametrize("workload", [Linear(1, 4096, 1024), Gemm(64, 64, 64, batch=4)], ids=str)
def test_real_spaces_can_be_searched(workload: Linear | Gemm) -> None:
    found = candidates_for(workload, hardware.detect())
    strategy = Tpe(found, seed=1)
    random = Random(0)
    for _ in range(8):
        for config in strategy.ask(4):
            assert found.contains(config)
            strategy.tell(Outcome(config, random.random() + 0.5))
