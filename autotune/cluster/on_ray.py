"""RayExecutor: one worker on each node of a Ray cluster, found again when nodes come and go.

Ray starts workers, carries messages and notices dead processes; what it leaves open is closed here. Every request
has a deadline, because one that went to a frozen or cut-off node is never answered: a node that is silent for
`SILENCE_S` is lost, and so is its job. A worker takes all CPUs of its node, so that two never measure on one
machine, and a name, so that a second sweep finds the node taken. Workers end with the driver; what they had not
handed over is measured again, and what the store has is not.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import time
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from autotune.cluster import Event, Executor, Kind, Node, wire
from autotune.errors import InvalidInput, Unavailable
from autotune.job import JobOrder
from autotune.types import Environment, HardwareProfile

if TYPE_CHECKING:
    from ray.actor import ActorHandle

SILENCE_S = 20.0
"""A node that has not answered for this long is lost."""

START_S = 120.0
"""A worker that is not up by then is given up and started again: other work may hold its node's CPUs."""

SETTLE_S = 15.0
"""How long the start waits for nodes that are taken: a sweep that was killed a moment ago still has its workers."""

REFRESH_S = 2.0
"""How often nodes that came are looked for."""

ASK_S = 2.0
"""How long a worker keeps results to itself while its job runs: what is lost with a node at most."""

WORKER = "autotune.cluster.worker:Worker"
NAMESPACE = "autotune"

ENVIRONMENT = {
    # Ray's own defaults notice a cut link after a minute, and hold other tasks back meanwhile.
    "RAY_grpc_client_keepalive_time_ms": "5000",
    "RAY_grpc_client_keepalive_timeout_ms": "5000",
    "RAY_grpc_keepalive_time_ms": "5000",
    "RAY_grpc_keepalive_timeout_ms": "5000",
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""To be set where `ray start` runs; set here for clusters that this process starts."""


@dataclass
class _Place:
    """A node and its worker."""

    name: str
    actor: ActorHandle
    node: Node | None = None  # once it has announced itself
    asked: Any = None  # the pending request's reference
    asked_at: float = 0.0  # when it was sent
    answered_at: float = 0.0
    job: int | None = None
    order: JobOrder | None = None
    confirmed: int = 0  # the last event that was kept
    beginning: str = ""  # the order of a job that the worker has not confirmed to have begun
    kept: dict[int, JobOrder] = field(default_factory=dict)  # orders whose late results may still come


class RayExecutor(Executor):
    """See the module. `worker`: the class, as module:name, that runs on the nodes; `places`: workers per node.

    `address`: auto, host:port, or local:N for N nodes of one CPU each on this machine, to try things out. Raises
    `Unavailable` when the cluster cannot be reached or no node announces itself, `InvalidInput` for another address.
    """

    def __init__(self, address: str = "auto", worker: str = WORKER, places: int = 1) -> None:
        self._worker, self._per_node = worker, places
        self._local = _connect(address)
        self._places: dict[str, _Place] = {}
        self._refreshed = 0.0
        self._wanted = 0  # workers that there are to be, one or more for each node
        self._numbers = itertools.count()
        self._lost: list[Event] = []
        self._why = ""  # of the last worker that was lost
        self._useful_s = 0.0
        try:
            self._wait_for_nodes()
        except BaseException:
            self.close()
            raise

    @property
    def useful_s(self) -> float:
        return self._useful_s

    def nodes(self) -> tuple[Node, ...]:
        found = []
        for place in self._places.values():
            if place.node is not None:
                doing = place.order.workload.spec if place.order is not None else ""
                found.append(Node(place.name, place.node.hardware, place.node.environment, doing))
        return tuple(found)

    def submit(self, job: int, order: JobOrder, kind: Kind) -> bool:
        for place in self._places.values():
            if place.job is None and place.node is not None and place.node.kind == kind:
                place.job, place.order = job, order
                place.kept[job] = order
                place.beginning = wire.order_to_json(order)
                return True
        return False

    def poll(self, seconds: float) -> list[Event]:
        import ray

        deadline = time.monotonic() + seconds
        while True:
            self._refresh()
            events, self._lost = self._lost, []
            for place in list(self._places.values()):
                self._ask(place)
            waiting = {place.asked: place for place in self._places.values() if place.asked is not None}
            pause = max(0.0, deadline - time.monotonic())
            if not waiting:
                time.sleep(pause)
            else:
                ray.wait(list(waiting), num_returns=1, timeout=0 if events else pause)
                answered, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
                for reference in answered:
                    events += self._answer(waiting[reference])
            now = time.monotonic()
            for place in list(self._places.values()):
                limit = SILENCE_S if place.node is not None else START_S
                if place.asked is not None and now - place.asked_at > limit:
                    self._lose(place, f"it was silent for {limit:.0f} s", kill=True)
            events += self._lost
            self._lost = []
            if events or now >= deadline:
                return events

    def close(self) -> None:
        import ray

        for place in self._places.values():
            with contextlib.suppress(Exception):
                ray.kill(place.actor)
        self._places = {}
        with contextlib.suppress(Exception):
            ray.shutdown()
        if self._local is not None:
            with contextlib.suppress(Exception):
                self._local.shutdown()

    # workers

    def _refresh(self) -> None:
        """A worker for every node that has none."""
        import ray

        now = time.monotonic()
        if now - self._refreshed < REFRESH_S:
            return
        self._refreshed = now
        alive = _alive()
        self._wanted = len(alive) * self._per_node
        for found in alive:
            for number in range(self._per_node):
                name = _name(found) + (f"-{number}" if number else "")
                if name in self._places:
                    continue
                cpus = found["Resources"].get("CPU", 0.0) / self._per_node
                with contextlib.suppress(ValueError, ray.exceptions.RayError):  # another sweep has the node, or it went
                    actor = _start(name, found["NodeID"], cpus, self._worker)
                    place = self._places[name] = _Place(name, actor)
                    place.asked, place.asked_at = actor.announce.remote(), now

    def _wait_for_nodes(self) -> None:
        """Until every node has announced itself, or the time is over with at least one: what is to be tuned for is
        settled then."""
        begin = time.monotonic()
        while (waited := time.monotonic() - begin) < START_S:
            self.poll(0.2)
            announced = all(place.node is not None for place in self._places.values())
            if self._places and announced and (len(self._places) >= self._wanted or waited > SETTLE_S):
                return
        if not self.nodes():
            why = f"the last worker that was started ended: {self._why}" if self._why else "other work may hold them"
            raise Unavailable(f"no node of the cluster can measure: none is there, or {why}")

    def _ask(self, place: _Place) -> None:
        """Sends the next request, unless one is under way."""
        now = time.monotonic()
        if place.asked is not None or place.node is None:
            return
        if place.beginning and place.job is not None:
            place.asked = place.actor.begin.remote(place.job, place.beginning)
        elif place.job is not None:
            place.asked = place.actor.collect.remote(place.confirmed, ASK_S)
        elif now - place.answered_at >= SILENCE_S / 4:
            place.asked = place.actor.collect.remote(place.confirmed)
        if place.asked is not None:
            place.asked_at = now

    def _answer(self, place: _Place) -> list[Event]:
        import ray

        reference, place.asked = place.asked, None
        try:
            said = ray.get(reference, timeout=1)
        except (ray.exceptions.RayError, ValueError) as error:
            self._lose(place, _reason(error), kill=False)
            return []
        place.answered_at = time.monotonic()
        if isinstance(said, dict):
            machine = HardwareProfile.from_json(said["hardware"])
            place.node = Node(place.name, machine, Environment.from_json(said["environment"]))
            return []
        if isinstance(said, bool):
            if said:
                place.beginning = ""
            return []
        return [event for number, data in said if (event := self._happened(place, number, data)) is not None]

    def _happened(self, place: _Place, number: int, data: dict[str, Any]) -> Event | None:
        place.confirmed = max(place.confirmed, number)
        job, order = data["job"], place.kept.get(data["job"])
        if order is None or place.node is None:
            return None
        if "batch" in data:
            batch = wire.batch_from_json(data["batch"], order, place.node.hardware, place.node.environment)
            return Event(job, place.name, batch=batch)
        self._useful_s += data["useful_s"]
        del place.kept[job]
        if place.job == job:
            place.job = place.order = None
        return Event(job, place.name, end=wire.end_from_json(data["end"]))

    def _lose(self, place: _Place, why: str, kill: bool) -> None:
        """Gives the place up; a new worker is started when its node is there, as another one with nothing to do."""
        import ray

        self._places.pop(place.name, None)
        self._why = why
        if kill:
            with contextlib.suppress(Exception):
                ray.kill(place.actor)
        if place.job is not None:
            self._lost.append(Event(place.job, place.name, lost=why))


def status(address: str) -> list[dict[str, Any]]:
    """For people: every node of the cluster and what its worker says, or {} where no sweep has one."""
    import ray

    local = _connect(address)
    try:
        found = []
        for node in _alive():
            name = _name(node)
            said: dict[str, Any] = {}
            with contextlib.suppress(ValueError, ray.exceptions.RayError):
                said = ray.get(ray.get_actor(name, namespace=NAMESPACE).status.remote(), timeout=5)
            found.append({"name": name, "cpus": node["Resources"].get("CPU", 0.0), **said})
        return found
    finally:
        ray.shutdown()
        if local is not None:
            local.shutdown()


def _set_environment() -> None:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def _name(node: dict[str, Any]) -> str:
    """Of a node's worker, as Ray's `nodes()` describes the node."""
    return f"{node['NodeManagerHostname']}-{node['NodeID'][:8]}"


def _connect(address: str) -> Any:
    """Joins the cluster; returns the cluster itself when it was started here."""
    import ray

    _set_environment()

    options: dict[str, Any] = {
        "namespace": NAMESPACE,
        "log_to_driver": False,
        "logging_level": "ERROR",
        "configure_logging": False,
    }
    kind, _, rest = address.partition(":")
    if kind == "local":
        count = int(rest) if rest.isdigit() else 0
        if not 1 <= count <= 64:
            raise InvalidInput("a cluster to try things out is local:N with N from 1 to 64")
        cluster = local_cluster(count)
        ray.init(cluster.address, **options)
        return cluster
    if address != "auto":
        _check_port(address)
    try:
        ray.init(address, **options)
    except Exception as error:  # ConnectionError, RuntimeError, ValueError: Ray's choice varies
        raise Unavailable(f"the cluster at {address} cannot be reached: {_reason(error)}") from None
    return None


def local_cluster(count: int, resources: list[dict[str, float]] | None = None, cpus: int = 1) -> Any:
    """A Ray cluster of that many nodes, of `cpus` CPUs each, on this machine, started one after another."""
    import logging

    from ray.cluster_utils import Cluster

    logging.getLogger("ray").setLevel(logging.ERROR)  # it tells on stderr where the cluster is
    _set_environment()
    cluster = Cluster()
    for number in range(count):
        cluster.add_node(
            num_cpus=cpus, include_dashboard=False, object_store_memory=80 << 20,
            resources=(resources or [{}] * count)[number],
        )  # fmt: skip
    return cluster


def _check_port(address: str) -> None:
    """Raises at once where nothing listens: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise InvalidInput(f"a cluster's address is auto, host:port or local:N, not {address!r}")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise Unavailable(f"the cluster at {address} cannot be reached: {error.strerror or error}") from None


def _alive() -> list[dict[str, Any]]:
    import ray

    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]


def _start(name: str, node_id: str, cpus: float, worker: str) -> ActorHandle:
    """A worker on that node. Raises ValueError when a worker of that name is there, another sweep's."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    module, _, attribute = worker.partition(":")
    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    remote = ray.remote(getattr(import_module(module), attribute))
    options = {"name": name, "namespace": NAMESPACE, "num_cpus": cpus, "scheduling_strategy": there}
    return remote.options(max_restarts=0, max_concurrency=4, **options).remote(name, by_engine=True)


def _reason(error: BaseException) -> str:
    """The first line that says something; Ray's messages are pages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
