"""What the leader writes for canaries, and what its metrics say of them."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest
from prometheus_client import generate_latest
from tests.tainter.fake_fleet import FakeFleet

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, Invalid, NotFound
from muster_kube.api.objects import Metadata, Node
from muster_kube.nodehealth import AgentIdentity, CanaryReport, CanaryRequest, NodeHealth, NodeHealthSpec
from muster_tainter.canary.task import CanaryTask
from muster_tainter.fleet.replica import Replica
from muster_tainter.metrics import TainterMetrics
from muster_tainter.policy.file import parse_policy

RULES = "rules: [{name: all, match: {verdict: FAIL}, action: taint}]\n"
CANARIES = RULES + "canary: {nodes: 2, period: 10m}\n"
AT = "2026-01-01T12:00:00.000Z"


class World:
    """Four nodes with agents, the API server's NodeHealths, and the leader's task over both."""

    def __init__(self, policy: str = CANARIES) -> None:
        names = [f"n{number}" for number in range(4)]
        self.nodes = {name: Node(metadata=Metadata(name=name)) for name in names}
        self.healths = {name: NodeHealth(metadata=Metadata(name=name)) for name in names}
        for name in names:
            self.report(name, CanaryReport())
        self.fleet = FakeFleet(parse_policy(policy), self.nodes, self.healths, observe_health=self.observe)
        self.metrics = TainterMetrics()
        self.now = 1000.0
        self.writes: list[tuple[str, Mapping[str, Any]]] = []
        self.fails: list[Exception] = []
        self.requested: dict[str, str] = {}  # requests that no watch has delivered yet, by node
        self.no_room = ""
        self.agents_down: set[str] = set()
        replica = Replica(lambda: True, clock=lambda: self.now, now=lambda: 1_767_268_800.0)
        client = cast("KubeClient", self)
        self.task = CanaryTask(
            client,
            self.fleet,
            replica,
            self.metrics,
            shortage=lambda _: self.no_room,
            has_agent=lambda name: name not in self.agents_down,
            interval_s=0.0,
        )

    async def patch(self, path: str, body: Any, **_: Any) -> NodeHealth:
        """The client's."""
        if self.fails:
            raise self.fails.pop()
        name = path.rsplit("/", 1)[1]
        change = body["spec"]["canary"] if isinstance(body, dict) else self.tested(name, body)
        self.writes.append((name, change))
        before = msgspec.to_builtins(self.healths[name].spec.canary)
        after = {key: value for key, value in {**before, **change}.items() if value is not None}
        spec = NodeHealthSpec(canary=msgspec.convert(after, CanaryRequest))
        return msgspec.structs.replace(self.healths[name], spec=spec)

    async def get(self, path: str, **_: Any) -> NodeHealth:
        name = path.rsplit("/", 1)[1]
        known = self.healths[name]
        if name not in self.requested:
            return known
        spec = msgspec.structs.replace(known.spec, canary=CanaryRequest(id=self.requested[name], by="me"))
        return msgspec.structs.replace(known, spec=spec)

    def tested(self, name: str, operations: list[dict[str, str]]) -> dict[str, str]:
        """What a JSON patch adds."""
        requested = {"/spec/canary/id": self.requested.get(name, self.healths[name].spec.canary.id)}
        if any(requested[each["path"]] != each["value"] for each in operations if each["op"] == "test"):
            raise Invalid(422, "Invalid", "testing path /spec/canary/id value failed", name)
        return {each["path"].rsplit("/", 1)[1]: each["value"] for each in operations if each["op"] == "add"}

    def observe(self, health: NodeHealth) -> None:
        name = health.metadata.name
        old, self.healths[name] = self.healths.get(name), health
        self.task.health_changed(name, old, health)

    def report(self, name: str, canary: CanaryReport, *, agent: str = "p") -> NodeHealth:
        known = self.healths[name]
        status = msgspec.structs.replace(known.status, canary=canary, agent=AgentIdentity(pod_uid=agent))
        self.healths[name] = msgspec.structs.replace(known, status=status)
        return self.healths[name]

    def request(self, name: str, canary_id: str) -> None:
        """A person requests a canary, and the watch delivers it."""
        spec = NodeHealthSpec(canary=CanaryRequest(id=canary_id, by="me"))
        self.observe(msgspec.structs.replace(self.healths[name], spec=spec))

    def send(self, name: str, canary: CanaryReport) -> None:
        """The agent publishes it."""
        old = self.healths[name]
        self.task.health_changed(name, old, self.report(name, canary))

    @asynccontextmanager
    async def leading(self) -> AsyncIterator[None]:
        running = asyncio.create_task(self.task.run())
        try:
            await self.rest()
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def rest(self) -> None:
        """Until a few rounds have passed without a write."""
        number = -1
        while number != len(self.writes):
            number = len(self.writes)
            for _ in range(20):  # turns of the loop; a round takes a few
                await asyncio.sleep(0)

    def states(self) -> dict[str, float]:
        lines = generate_latest(self.metrics.registry).decode().splitlines()
        found = [line.split() for line in lines if line.startswith("muster_tainter_canaries{")]
        return {name.split('"')[1]: float(value) for name, value in found if float(value)}


async def test_as_many_nodes_as_wanted_get_the_period_in_one_write_each() -> None:
    world = World()
    async with world.leading():
        assert [body for _, body in world.writes] == [{"periodSeconds": 600}] * 2
        chosen = {name for name, _ in world.writes}
        world.task.look_at_all()
        await world.rest()
        assert len(world.writes) == 2
        world.fleet.current = parse_policy(RULES)
        world.task.look_at_all()
        await world.rest()
        assert {name for name, body in world.writes[2:] if body == {"periodSeconds": None}} == chosen
        assert world.states() == {}


async def test_without_the_section_nothing_is_written() -> None:
    world = World(RULES)
    async with world.leading():
        for name in world.nodes:
            world.task.decide(name)
    assert (world.writes, world.states()) == ([], {})


async def test_a_failed_write_is_made_again() -> None:
    world = World()
    world.fails = [ApiError(500, "ServerError", "no", "/")]
    async with world.leading():
        assert len({name for name, _ in world.writes}) == 2


async def test_a_health_that_goes_is_left() -> None:
    world = World()
    world.fails = [NotFound(404, "NotFound", "gone", "/")]
    async with world.leading():
        assert len(world.writes) == 1


async def test_each_broken_hop_has_its_state() -> None:
    world = World(RULES + "canary: {nodes: 4, period: 10m}\n")
    async with world.leading():
        assert world.states() == {"waiting": 4}
        world.now += 900.0
        for name in world.nodes:
            world.send(name, CanaryReport(at=AT))
        for name in ("n0", "n1", "n2"):
            assert world.task.is_pending(name)
            world.task.decide(name)
        assert world.states() == {"arrived": 3, "waiting": 1}
        world.now += 901.0
        world.report("n1", CanaryReport(at=AT), agent="")
        world.send("n2", CanaryReport(at="2026-01-01T12:30:00.000Z"))
        world.task.decide("n2")
        assert world.states() == {"report": 1, "agent": 1, "arrived": 1, "decision": 1}


async def test_a_line_of_the_kernel_log_that_was_not_read_is_a_state_at_once_and_until_the_next_canary() -> None:
    world = World()
    unread = CanaryReport(at=AT, unread="2026-01-01T12:10:00.000Z")
    async with world.leading():
        for name in world.nodes:
            world.send(name, CanaryReport(at=AT))
            world.task.decide(name)
        chosen = sorted(world.task._journeys.expected)
        world.send(chosen[0], unread)
        world.report(chosen[1], unread, agent="")
        assert world.states() == {"kernel-log": 1, "arrived": 1}, "without an agent nobody writes lines"
        world.send(chosen[0], CanaryReport(at="2026-01-01T12:20:00.000Z"))
        world.task.decide(chosen[0])
        assert world.states() == {"arrived": 2}


@pytest.mark.parametrize(
    ("setting", "state"), [("paused", "paused"), ("budget", "budget"), ("rule", "rule"), ("unmanaged", "unmanaged")]
)
async def test_what_people_have_set_is_a_state_of_its_own(setting: str, state: str) -> None:
    world = World()
    async with world.leading():
        name = world.writes[0][0]
        if setting == "paused":
            world.fleet.withheld = lambda: "paused by a person"
        elif setting == "budget":
            world.no_room = "budget: none left"
        elif setting == "rule":
            world.fleet.current = parse_policy("rules: []\ncanary: {nodes: 2, period: 10m}\n")
        else:
            world.nodes[name] = Node(metadata=Metadata(name=name, labels={"muster.dev/managed": "false"}))
        world.send(name, CanaryReport(at=AT))
        world.task.decide(name)
        assert world.states() == {state: 1, "waiting": 1}


async def test_a_person_s_canary_is_answered_once_beside_the_request() -> None:
    world = World(RULES)
    async with world.leading():
        world.request("n3", "x")
        world.send("n3", CanaryReport(id="x", at=AT))
        world.task.decide("n3")
        await world.rest()
        assert [(name, body["result"]) for name, body in world.writes] == [("n3", "arrived")]
        world.task.decide("n3")
        world.task.look_at_all()
        await world.rest()
        assert len(world.writes) == 1


async def test_the_result_of_a_request_is_not_written_beside_the_next_one() -> None:
    world = World(RULES)
    async with world.leading():
        world.request("n3", "x")
        world.send("n3", CanaryReport(id="x", at=AT))
        world.requested["n3"] = "y"
        world.task.decide("n3")
        await world.rest()
        assert world.writes == []
        world.send("n3", CanaryReport(id="y", at="2026-01-01T12:00:01.000Z"))
        world.task.decide("n3")
        await world.rest()
    assert [(name, body["result"]) for name, body in world.writes] == [("n3", "arrived")]


async def test_a_result_that_is_refused_for_another_reason_is_written_again() -> None:
    world = World(RULES)
    async with world.leading():
        world.request("n3", "x")
        world.send("n3", CanaryReport(id="x", at=AT))
        world.fails = [Invalid(422, "Invalid", "a rule of the cluster", "n3")]
        world.task.decide("n3")
        await world.rest()
        assert not world.fails
    assert [(name, body["result"]) for name, body in world.writes] == [("n3", "arrived")]


async def test_a_canary_that_nobody_has_requested_is_not_answered() -> None:
    world = World(RULES)
    async with world.leading():
        world.send("n3", CanaryReport(id="forged", at=AT))
        world.task.decide("n3")
        await world.rest()
    assert world.writes == []


async def test_a_follower_counts_nothing() -> None:
    world = World()
    world.send("n0", CanaryReport(at=AT))
    world.task.decide("n0")
    assert not world.task.is_pending("n0")
    assert world.states() == {}
