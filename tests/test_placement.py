"""Which device runs what: transfers, the pick for one op, plans for graphs, and lookups that choose among devices."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

import autotune
from autotune import Linear, environment, hardware, lookup, registry, settings
from autotune.cli import main
from autotune.devices import simulated
from autotune.errors import InvalidInput
from autotune.hardware import transfer
from autotune.hardware.transfer import ASSUMED, Link, route_ns
from autotune.placement import Cost, Source, Step, chain, moving, pick, place
from autotune.store.sql import open_store
from autotune.types import Config, Measurement, Origin, Placed, Stage, Status, TuningRecord

CPU, SIM = "cpu", "sim:0"
FAST = Config("torch", {"weight": "transposed", "threads": 1}, "sim")

REPETITION = itertools.count()


@pytest.fixture(autouse=True)
def _own_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transfers are kept in the cache folder, which other test processes share."""
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path / "cache"))


# Transfers


def test_a_transfer_is_a_latency_and_bytes_over_a_bandwidth_each_way() -> None:
    link = Link(1000.0, 2.0, 4.0, 500.0, 8.0, 16.0, True)
    assert link.ns(4000, True) == 1000 + 2000
    assert link.ns(4000, False) == 1000 + 1000
    assert link.ns(4000, True, pinned=True) == 500 + 500
    assert link.ns(4000, False, pinned=True) == 500 + 250
    assert link.ns(0, True) == 0
    assert ASSUMED.ns(4000, True, pinned=True) == ASSUMED.ns(4000, True), "pinned memory is not known to be faster"


def test_two_devices_meet_on_the_host() -> None:
    links = {"cuda:0": Link(1.0, 1.0, 2.0), "cuda:1": Link(10.0, 4.0, 5.0)}
    assert route_ns(100, "cuda:0", "cuda:0", links) == 0
    assert route_ns(100, CPU, "cuda:1", links) == 10 + 25
    assert route_ns(100, "cuda:0", CPU, links) == 1 + 50
    assert route_ns(100, "cuda:0", "cuda:1", links) == 1 + 50 + 10 + 25


def test_figures_are_measured_kept_and_found_again() -> None:
    device = simulated.Simulated()
    host, profile = hardware.detect(), simulated.PROFILE
    assert transfer.between(host, profile) == ASSUMED
    found = transfer.measure(host, profile, device.copy_ns)
    assert found.measured
    assert found.to_device_gbs == pytest.approx(simulated.LINK.to_device_gbs, rel=0.01)
    assert found.to_host_gbs == pytest.approx(simulated.LINK.to_host_gbs, rel=0.01)
    assert found.latency_ns == pytest.approx(simulated.LINK.latency_ns, rel=0.01)
    assert transfer.between(host, profile) == found


@pytest.mark.parametrize(
    "text", ["", "[]", '{"version": 0}', '{"version": 1, "latency_ns": "x"}', '{"version": 1, "to_host_gbs": 0}',
             '{"version": 1, "to_host_gbs": NaN}', '{"version": 1, "speed": 3}']
)  # fmt: skip
def test_a_damaged_file_of_figures_is_none(text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path))
    path = Path(transfer._path(hardware.detect(), simulated.PROFILE))
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert transfer.between(hardware.detect(), simulated.PROFILE) == ASSUMED


def test_bytes_that_cross_are_those_of_inputs_and_result() -> None:
    for spec in (
        "linear m=3 n=5 k=7 bias=1", "gemm m=3 n=5 k=7 batch=2", "conv2d n=2 c=3 h=8 w=8 k=4 r=3 s=3 residual=1",
        "attention batch=1 heads=4 kv_heads=2 q_len=3 kv_len=5 head_dim=8",
        "embedding_bag rows=100 dim=8 bags=4 pooling=3", "linear m=2 n=4 k=8 dtype=bf16",
    ):  # fmt: skip
        workload = registry.parse_workload(spec)
        op = registry.op(workload.op)
        inputs, constants = op.inputs(workload, 1), op.constants(workload, 1)
        result = registry.algorithm(op.default(workload).algorithm).build(workload, {}, constants).call(*inputs)
        assert workload.input_bytes == sum(t.numel() * t.element_size() for t in inputs), spec
        assert workload.output_bytes == result.numel() * result.element_size(), spec


# One op


def option(device: str, expected_ns: float | None, transfer_ns: float = 0.0) -> Placed:
    return Placed(device, Config("torch"), Origin.EXACT, "", expected_ns, 1.0, transfer_ns)


@pytest.mark.parametrize(
    ("cpu_ns", "sim_ns", "move_ns", "inputs_on", "picked"),
    [
        (100.0, 10.0, 50.0, CPU, SIM),
        (100.0, 10.0, 95.0, CPU, CPU),
        (100.0, 50.0, 49.5, CPU, CPU),  # within what a decision takes: not certain
        (None, 10.0, 0.0, CPU, CPU),  # nothing to compare with
        (100.0, None, 0.0, CPU, CPU),
        (100.0, None, 0.0, SIM, SIM),
        (10.0, 100.0, 50.0, SIM, CPU),
    ],
)
def test_work_moves_when_that_is_known_to_be_faster(
    cpu_ns: float | None, sim_ns: float | None, move_ns: float, inputs_on: str, picked: str
) -> None:
    moves = {CPU: 0.0 if inputs_on == CPU else move_ns, SIM: 0.0 if inputs_on == SIM else move_ns}
    options = [option(CPU, cpu_ns, moves[CPU]), option(SIM, sim_ns, moves[SIM])]
    assert pick(options, inputs_on).device == picked


# Graphs


def flat(latency: float, per_byte: float = 0.0) -> Cost:
    return lambda size, source, target: 0.0 if source == target else latency + size * per_byte


def test_a_chain_stays_where_moving_costs_more_than_it_gains() -> None:
    steps = [Step(str(i), {CPU: 10.0, SIM: 4.0}, ("x" if i == 0 else str(i - 1),), 100) for i in range(3)]
    sources = [Source("x", 100, CPU)]
    assert set(place(sources, steps, flat(8.0), CPU).devices.values()) == {SIM}, "18 of work saved for 16 of moving"
    stays = place(sources, steps, flat(10.0), CPU)
    assert (set(stays.devices.values()), stays.total_ns, stays.transfer_ns) == ({CPU}, 30.0, 0.0)
    anywhere = place(sources, steps, flat(10.0))
    assert (anywhere.total_ns, anywhere.transfer_ns) == (22.0, 10.0)


def test_a_tensor_is_moved_once_for_all_that_take_it() -> None:
    work = {CPU: 10.0, SIM: 1.0}
    steps = [Step("a", work, ("x",), 1), Step("b", work, ("x",), 1), Step("c", work, ("a", "b", "x"), 1)]
    plan = place([Source("x", 1, CPU)], steps, flat(5.0))
    assert (plan.total_ns, plan.transfer_ns) == (3 + 5, 5.0)


def by_trying_all(sources: list[Source], steps: list[Step], cost: Cost, results_on: str) -> float:
    taken = {name for step in steps for name in step.inputs}
    best = math.inf
    for devices in itertools.product(*(step.times_ns for step in steps)):
        held = {source.name: {source.on} for source in sources}
        sizes = {source.name: source.size_bytes for source in sources}
        total = 0.0
        for step, device in zip(steps, devices, strict=True):
            for name in dict.fromkeys(step.inputs):
                if device not in held[name]:
                    total += min(cost(sizes[name], holder, device) for holder in held[name])
                    held[name].add(device)
            total += step.times_ns[device]
            held[step.name], sizes[step.name] = {device}, step.output_bytes
            if results_on and step.name not in taken:
                total += cost(step.output_bytes, device, results_on)
        best = min(best, total)
    return best


@pytest.mark.parametrize("seed", range(40))
def test_plans_are_the_cheapest_of_all(seed: int) -> None:
    random = Random(seed)
    names = [CPU, SIM, "cuda:0"][: random.choice((2, 3))]
    latency = {(a, b): random.uniform(1, 30) for a in names for b in names}

    def cost(size: int, a: str, b: str) -> float:
        return 0.0 if a == b else latency[a, b] + size / 10

    sources = [Source(f"x{i}", random.randint(1, 100), random.choice(names)) for i in range(2)]
    steps: list[Step] = []
    for number in range(6):
        there = [s.name for s in sources] + [s.name for s in steps]
        inputs = tuple(random.sample(there, random.randint(1, min(3, len(there)))))
        able = random.sample(names, random.randint(1, len(names)))
        times = {device: random.uniform(1, 40) for device in able}
        steps.append(Step(f"s{number}", times, inputs, random.randint(1, 100)))
    results_on = random.choice(("", *names))
    plan = place(sources, steps, cost, results_on)
    assert plan.total_ns == pytest.approx(by_trying_all(sources, steps, cost, results_on))
    computing = sum(step.times_ns[plan.devices[step.name]] for step in steps)
    assert plan.total_ns == pytest.approx(computing + plan.transfer_ns)


@pytest.mark.parametrize(
    ("sources", "steps", "told"),
    [
        ([], [Step("a", {CPU: 1.0}, ("x",), 1)], "takes 'x'"),
        ([Source("x", 1, CPU)] * 2, [], "two sources"),
        ([Source("x", 1, CPU)], [Step("x", {CPU: 1.0}, ("x",), 1)], "are called 'x'"),
        ([Source("x", 1, CPU)], [Step("a", {}, ("x",), 1)], "no device runs step 'a'"),
    ],
)
def test_a_graph_that_is_none_is_refused(sources: list[Source], steps: list[Step], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        place(sources, steps, flat(1.0))


def test_an_empty_graph_takes_no_time() -> None:
    assert place([], [], flat(1.0)).total_ns == 0
    assert chain([], CPU, flat(1.0)).devices == {}


# Lookups


@pytest.fixture
def sim() -> Iterator[simulated.SimulatedBackend]:
    with simulated.registered() as backend:
        transfer._save(hardware.detect(), simulated.PROFILE, {"latency_ns": 1e4, "to_device_gbs": 10, "to_host_gbs": 8})
        autotune.refresh()
        yield backend


def decided(workload: Any, cpu_ns: float, sim_ns: float) -> None:
    """Both devices' defaults measured, and a config on the device twice as fast as its default."""
    rows = []
    for profile, config, ns, base in (
        (hardware.detect(), Config("torch"), cpu_ns, cpu_ns),
        (simulated.PROFILE, Config("torch", {}, "sim"), 2 * sim_ns, 2 * sim_ns),
        (simulated.PROFILE, FAST, sim_ns, 2 * sim_ns),
    ):
        spec = autotune.types.BenchmarkSpec().for_kind(profile.kind)
        measured = Measurement(Status.OK, "", (ns,) * 20, (base,) * 20, max_error=1e-7)
        revision = registry.algorithm("torch").revision()
        software = environment.current(profile.kind)
        rows.append(
            TuningRecord(
                workload, config, profile, software, spec, measured, revision, Stage.FINAL, repetition=next(REPETITION)
            )
        )
    with open_store(settings.database()) as store:
        store.add(rows)
    autotune.refresh()


WORKLOAD = Linear(m=64, n=32, k=16)
MOVE_NS = 2e4 + WORKLOAD.input_bytes / 10 + WORKLOAD.output_bytes / 8


def test_the_best_of_each_device_and_a_pick(sim: simulated.SimulatedBackend) -> None:
    decided(WORKLOAD, cpu_ns=100_000, sim_ns=5_000)
    plain = lookup(WORKLOAD)
    assert (plain.device, plain.config, plain.placements) == (CPU, Config("torch"), ())
    answer = lookup(WORKLOAD, inputs_on="cpu")
    assert (answer.device, answer.config, answer.origin) == (SIM, FAST, Origin.EXACT)
    assert lookup(WORKLOAD, inputs_on="cpu") is answer, "memoised"
    assert [one.device for one in answer.placements] == [SIM, CPU]
    there, here = answer.placements
    assert (there.expected_ns, there.transfer_ns, there.speedup) == (5_000, pytest.approx(MOVE_NS), 2.0)
    assert (here.expected_ns, here.transfer_ns, here.measured) == (100_000, 0, True)
    on_device = lookup(WORKLOAD, inputs_on="sim")
    assert on_device.device == SIM
    assert on_device.placements[0].transfer_ns == 0
    decided(WORKLOAD, cpu_ns=MOVE_NS, sim_ns=5_000)
    assert lookup(WORKLOAD, inputs_on="cpu").device == CPU
    assert lookup(WORKLOAD, inputs_on="sim:0").device == SIM


def test_what_was_never_measured_stays_where_its_inputs_are(sim: simulated.SimulatedBackend) -> None:
    for inputs_on, device in (("cpu", CPU), ("sim", SIM)):
        answer = lookup("gemm m=2 n=2 k=2", inputs_on=inputs_on)
        assert (answer.device, answer.origin) == (device, Origin.DEFAULT)
        assert answer.config == Config("torch", {}, device.partition(":")[0])
    assert lookup("gemm m=0 n=2 k=2", inputs_on="sim").reason == "there is nothing to compute"


def test_a_device_that_is_not_there_gives_the_default_and_says_so() -> None:
    answer = lookup(WORKLOAD, inputs_on="cuda:7")
    assert (answer.origin, answer.config) == (Origin.DEFAULT, Config("torch", {}, "cuda"))
    assert answer.reason == "this process sees no device cuda:7"
    weight, x = torch.randn(32, 16), torch.randn(64, 16)
    with pytest.warns(RuntimeWarning, match="set aside"):
        linear = answer.build(weight)
    assert torch.equal(linear(x), torch.nn.functional.linear(x, weight))


@pytest.mark.parametrize("inputs_on", ["banana", "", 3, "cud:0"])
def test_what_is_no_device_is_refused(inputs_on: Any) -> None:
    with pytest.raises(InvalidInput, match="inputs_on is one of cpu, cuda"):
        lookup(WORKLOAD, inputs_on=inputs_on)
    with pytest.raises(InvalidInput, match="give one of them"):
        lookup(WORKLOAD, hardware.detect(), inputs_on="cpu")


def test_what_is_built_moves_inputs_and_result(sim: simulated.SimulatedBackend) -> None:
    decided(WORKLOAD, cpu_ns=1_000_000, sim_ns=5_000)
    weight, x = torch.randn(32, 16), torch.randn(64, 16)
    linear = lookup(WORKLOAD, inputs_on="cpu").build(weight)
    expected = torch.nn.functional.linear(x, weight)
    torch.testing.assert_close(linear(x), expected)
    assert not linear(x).isnan().any(), "it is fetched when it is done"
    double = torch.randn(64, 16, dtype=torch.float64)
    with pytest.raises(RuntimeError):  # as F.linear of these does
        linear(double)
    graded = x.clone().requires_grad_()
    linear(graded).sum().backward()
    assert graded.grad is not None, "autograd goes to the framework"


def test_a_pick_of_the_cpu_builds_too(sim: simulated.SimulatedBackend) -> None:
    decided(WORKLOAD, cpu_ns=1_000, sim_ns=5_000)
    weight, x = torch.randn(32, 16), torch.randn(64, 16)
    answer = lookup(WORKLOAD, inputs_on="cpu")
    assert answer.device == CPU
    torch.testing.assert_close(answer.build(weight)(x), torch.nn.functional.linear(x, weight))


def test_a_chain_of_lookups_is_placed(sim: simulated.SimulatedBackend) -> None:
    layers = [Linear(m=64, n=16, k=16), Linear(m=64, n=16, k=16, bias=True), Linear(m=64, n=16, k=16, dtype="bf16")]
    for layer in layers[:2]:
        decided(layer, cpu_ns=20_000, sim_ns=1_000)
    decided(layers[2], cpu_ns=1_000, sim_ns=40_000)
    answers = [lookup(layer, inputs_on="cpu") for layer in layers]
    assert [answer.device for answer in answers] == [CPU] * 3, "each alone is not worth the way"
    plan = chain(answers, CPU, moving(), CPU)
    assert list(plan.devices.values()) == [SIM, SIM, CPU], "two are"
    with pytest.raises(InvalidInput, match="with inputs_on"):
        chain([lookup(layers[0])], CPU, moving())


def test_a_lookup_among_devices_does_not_load_torch() -> None:
    program = (
        "import sys, autotune\n"
        "answer = autotune.lookup(autotune.Linear(m=64, n=32, k=16), inputs_on='cpu')\n"
        "print(answer.device, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["cpu", "False"]


def test_the_command_line_shows_devices(sim: simulated.SimulatedBackend, capsys: pytest.CaptureFixture[str]) -> None:
    decided(WORKLOAD, cpu_ns=100_000, sim_ns=5_000)
    assert main(["lookup", WORKLOAD.spec, "--inputs-on", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert "device    sim:0: 5 µs there, 21.4 µs to move, EXACT torch threads=1 weight=transposed on sim" in shown
    assert main(["lookup", WORKLOAD.spec, "--inputs-on", "cpu", "--json"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert [one["device"] for one in read["placements"]] == [SIM, CPU]
    assert main(["lookup", WORKLOAD.spec, "--inputs-on", "toaster"]) == 2
    assert "inputs_on is one of" in capsys.readouterr().err


def test_hw_probes_transfers(sim: simulated.SimulatedBackend, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hw", "--no-probe", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["transfers"][SIM]["to_device_gbs"] == 10
    assert main(["hw", "--no-probe", "--probe", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["transfers"][SIM]["measured"] is True
    sim.gone = True
    assert main(["hw", "--no-probe", "--probe", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["transfers"] == {}
