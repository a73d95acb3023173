"""A measurement over many nodes, with agents that answer out of a simulated network."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from muster_agent.fleet import PeerAgent
from muster_agent.fleet.interfaces import NodeInterface, pair_interfaces
from muster_agent.fleet.iperf_wire import (
    ClientRequest,
    InterfaceList,
    IperfOutcome,
    IperfOutcomes,
    IperfServer,
    IperfServers,
    ServersRequest,
)
from muster_agent.fleet.network_measurement import longest_duration_s, measure_network
from muster_agent.fleet.pair_measurement import choose_meeting_settings
from muster_agent.fleet.peer_client import PeerCallFailed
from muster_agent.query.status_query import IperfOptions
from muster_checks.base.vocabulary import Result, Verdict
from muster_checks.iperf import IperfParameters
from muster_checks.iperf.parse import Flow, IperfReport

LIMITS = IperfParameters()


class Agents:
    """All agents, asked by call: node-N has the NICs named, at 100 Gbit/s each. ``slow``: (node, NIC) that do 20."""

    def __init__(self, number: int, nics: tuple[str, ...] = ("net1",), slow: frozenset[tuple[str, str]] = frozenset()):
        self.names = [f"node-{n}" for n in range(number)]
        self.nics = nics
        self.slow = slow
        self.open: Counter[str] = Counter()
        self.most_open = 0
        self.clients: list[ClientRequest] = []
        self.calls: Counter[tuple[str, str]] = Counter()
        self.fails: dict[tuple[str, str], Callable[[], Exception | object]] = {}
        self.hold: asyncio.Event | None = None
        self.reached = asyncio.Event()

    @property
    def peers(self) -> list[PeerAgent]:
        return [PeerAgent(name, f"192.0.2.{n % 250 + 1}") for n, name in enumerate(self.names)]

    def where(self, address: str) -> tuple[str, str]:
        _, nic, high, low = map(int, address.split("."))
        return f"node-{256 * high + low - 1}", self.nics[nic]

    def address(self, node: str, nic: int) -> str:
        number = int(node.removeprefix("node-")) + 1
        return f"10.{nic}.{number // 256}.{number % 256}"

    def _trouble(self, peer: PeerAgent, path: str) -> object:
        self.calls[peer.node, path] += 1
        found = self.fails[peer.node, path]() if (peer.node, path) in self.fails else None
        if isinstance(found, Exception):
            raise found
        return found

    async def get_json(self, *_: object) -> Any:
        raise AssertionError

    async def alive(self, *_: object) -> bool:
        raise AssertionError

    async def post_json(self, peer: PeerAgent, path: str, body: object, timeout_s: float) -> Any:
        assert timeout_s > 0
        if (instead := self._trouble(peer, path)) is not None:
            return instead
        if path == "/iperf/interfaces":
            found = tuple(
                NodeInterface(nic, nic, 100.0, (f"{self.address(peer.node, number)}/16",))
                for number, nic in enumerate(self.nics)
            )
            return msgspec.to_builtins(InterfaceList(found))
        assert isinstance(body, ClientRequest)
        self.reached.set()
        await asyncio.sleep(0)  # as a call over the network does: others get on meanwhile
        if self.hold is not None:
            await self.hold.wait()
        self.clients.append(body)
        outcomes = []
        sharing = Counter(test.interface for test in body.tests)
        for number, test in enumerate(body.tests):
            ends = {self.where(test.address), self.where(test.server)}
            rate = (20.0 if ends & self.slow else 95.0) / sharing[test.interface]
            for reverse in (False, True):
                flow = Flow(not reverse, rate, 0.0)
                outcomes.append(IperfOutcome(number, reverse, IperfReport((flow,), test.server, "TCP", False, False)))
        return msgspec.to_builtins(IperfOutcomes(tuple(outcomes)))

    @asynccontextmanager
    async def stream(self, peer: PeerAgent, path: str, body: object) -> AsyncIterator[AsyncIterator[bytes]]:
        assert isinstance(body, ServersRequest)
        instead = self._trouble(peer, path)
        self.open[peer.node] += 1
        self.most_open = max(self.most_open, self.open.total())
        try:
            listening = (IperfServer(s.interface, s.address, 5201 + n) for n, s in enumerate(body.servers))
            yield _lines(instead if isinstance(instead, bytes) else msgspec.json.encode(IperfServers(tuple(listening))))
        finally:
            self.open[peer.node] -= 1

    async def measure(self, options: IperfOptions | None = None, **more: Any) -> dict[str, Result]:
        async def no_time(_: float) -> None:
            await asyncio.sleep(0)

        limits = more.pop("limits", LIMITS)
        return await measure_network(
            self.peers, self, options or IperfOptions(), limits, rng=random.Random(1), sleep=no_time, **more
        )


async def _lines(line: bytes) -> AsyncIterator[bytes]:
    yield b""
    yield line


def failing(reason: str, status: int = 0) -> Callable[[], Exception]:
    return lambda: PeerCallFailed(reason, f"says {reason}", status)


def verdicts(found: Mapping[str, Result]) -> Counter[str]:
    return Counter(result.verdict.value for result in found.values())


async def test_the_slow_nic_of_a_fleet_is_named_and_no_server_is_left():
    agents = Agents(60, ("net1", "net2"), frozenset({("node-7", "net2")}))
    found = await agents.measure()
    assert verdicts(found) == {"PASS": 59, "FAIL": 1}
    bad = [finding for finding in found["node-7"].findings if finding.verdict is Verdict.FAIL]
    assert [(finding.component, finding.reason) for finding in bad] == [("nic/net2", "SlowNetwork")]
    assert agents.open.total() == 0


async def test_no_more_meet_at_once_than_asked_for():
    agents = Agents(40)
    await agents.measure(nodes_at_once=8)
    assert agents.most_open == 4


async def test_servers_of_one_link_add_up_and_streams_are_as_asked_for():
    agents = Agents(4, ("net1", "net2"))
    found = await agents.measure(IperfOptions(6, 3, "data"))
    assert verdicts(found) == {"PASS": 4}
    assert {len(asked.tests) for asked in agents.clients} == {6}
    assert {asked.clients for asked in agents.clients} == {3}
    assert found["node-0"].findings[0].measurements[0].value == pytest.approx(95.0)


async def test_the_management_plane_has_one_server_and_one_client_whatever_is_asked_for():
    agents = Agents(4, ("eth0",))
    await agents.measure(IperfOptions(8, 8, "mgmt"))
    assert {(len(asked.tests), asked.clients) for asked in agents.clients} == {(1, 1)}


@pytest.mark.parametrize("path", ["/iperf/interfaces", "/iperf/servers", "/iperf/client"])
@pytest.mark.parametrize(("reason", "status"), [("Unreachable", 0), ("NoAnswer", 0), ("BadAnswer", 200)])
async def test_a_node_that_does_not_answer_is_unknown_for_itself_alone(path: str, reason: str, status: int):
    agents = Agents(9)
    agents.fails["node-3", path] = failing(reason, status)
    if path != "/iperf/interfaces":
        agents.fails["node-3", "/iperf/client"] = agents.fails["node-3", "/iperf/servers"] = failing(reason, status)
    found = await agents.measure()
    assert (found["node-3"].verdict, found["node-3"].reason) == (Verdict.UNKNOWN, reason)
    assert verdicts(found) == {"PASS": 8, "UNKNOWN": 1}
    assert agents.open.total() == 0


NEGATIVE = msgspec.to_builtins(IperfReport((Flow(True, -1.0),), "", "TCP", False, False))
GARBAGE: list[object] = [
    {},
    [],
    3,
    {"interfaces": [{"name": 3}]},
    {"interfaces": [{"name": "net1", "addresses": ["everywhere"]}]},
    {"interfaces": [{"name": "net1/../eth0", "addresses": ["10.0.0.4/16"]}]},
    {"interfaces": [{"name": "n" * 16, "addresses": ["10.0.0.4/16"]}]},
    {"outcomes": [{"test": 99}]},
    {"outcomes": [{"test": 0, "reverse": reverse, "report": NEGATIVE} for reverse in (False, True)]},
]


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_a_node_that_answers_garbage_is_unknown_for_itself_alone(garbage: object):
    agents = Agents(5)
    if not (isinstance(garbage, dict) and "outcomes" in garbage):
        agents.fails["node-3", "/iperf/interfaces"] = lambda: garbage
    agents.fails["node-3", "/iperf/client"] = lambda: garbage
    agents.fails["node-3", "/iperf/servers"] = lambda: b'{"servers": 3}'
    found = await agents.measure()
    assert found["node-3"].verdict is Verdict.UNKNOWN
    assert verdicts(found) == {"PASS": 4, "UNKNOWN": 1}


async def test_a_node_whose_servers_are_on_no_port_of_ours_is_unknown_for_itself_alone():
    agents = Agents(5)
    agents.fails["node-3", "/iperf/client"] = agents.fails["node-3", "/iperf/interfaces"] = lambda: None
    agents.fails["node-3", "/iperf/servers"] = lambda: msgspec.json.encode(
        IperfServers((IperfServer("net1", "10.0.0.4", 22),))
    )
    found = await agents.measure()
    assert {result.reason for node, result in found.items() if result.verdict is Verdict.UNKNOWN} <= {"BadAnswer"}
    assert found["node-3"].verdict is Verdict.UNKNOWN
    assert verdicts(found) == {"PASS": 4, "UNKNOWN": 1}


async def test_a_busy_node_is_tried_again_and_then_left_alone():
    agents = Agents(4)
    agents.fails["node-1", "/iperf/servers"] = agents.fails["node-1", "/iperf/client"] = failing("Refused", 409)
    found = await agents.measure()
    assert (found["node-1"].verdict, found["node-1"].reason) == (Verdict.UNKNOWN, "Busy")
    assert sum(number for (node, path), number in agents.calls.items() if node == "node-1" and "faces" not in path) == 3


async def test_a_node_that_was_busy_for_a_moment_is_measured():
    agents = Agents(4)
    busy = iter([PeerCallFailed("Refused", "busy", 409)])
    agents.fails["node-1", "/iperf/servers"] = lambda: next(busy, None)
    assert verdicts(await agents.measure()) == {"PASS": 4}


async def test_a_node_without_such_interfaces_is_skipped_with_the_reason():
    agents = Agents(4)
    why = {"interfaces": [], "skipped": "NoSecondaryInterface", "why": "no interface but eth0 has an address"}
    agents.fails["node-1", "/iperf/interfaces"] = lambda: why
    found = await agents.measure()
    assert (found["node-1"].verdict, found["node-1"].reason) == (Verdict.SKIP, "NoSecondaryInterface")
    assert verdicts(found) == {"PASS": 3, "SKIP": 1}


async def test_one_node_alone_has_nobody_to_measure_with():
    found = await Agents(1).measure()
    assert (found["node-0"].verdict, found["node-0"].reason) == (Verdict.UNKNOWN, "NoPeers")


async def test_nobody_at_all_is_no_result():
    assert await Agents(0).measure() == {}


async def test_when_the_caller_goes_all_servers_are_closed():
    agents = Agents(8)
    agents.hold = asyncio.Event()
    measuring = asyncio.create_task(agents.measure())
    await agents.reached.wait()
    assert agents.open.total() > 0
    measuring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await measuring
    assert agents.open.total() == 0
    agents.hold = None
    assert verdicts(await agents.measure()) == {"PASS": 8}  # and the next one may begin


async def test_two_measurements_at_once_would_measure_each_other():
    agents = Agents(4)
    agents.hold = asyncio.Event()
    first = asyncio.create_task(agents.measure())
    await agents.reached.wait()
    second = await agents.measure()
    assert {(result.verdict, result.reason) for result in second.values()} == {(Verdict.UNKNOWN, "Busy")}
    agents.hold.set()
    assert verdicts(await first) == {"PASS": 4}


async def test_nodes_in_networks_that_do_not_meet_say_so():
    agents = Agents(2)
    other = InterfaceList((NodeInterface("ib0", "mlx5_0", 200.0, ("172.16.0.1/24",)),))
    agents.fails["node-1", "/iperf/interfaces"] = lambda: msgspec.to_builtins(other)
    found = await agents.measure()
    assert {result.verdict for result in found.values()} == {Verdict.UNKNOWN}
    assert {finding.reason for finding in found["node-0"].findings} == {"NotMeasured"}


def test_how_long_it_takes_at_most_is_known_before():
    manner = choose_meeting_settings(IperfOptions(), LIMITS)
    assert longest_duration_s(2, manner) < longest_duration_s(1_000, manner) < 100 * longest_duration_s(2, manner)


def interface(name: str, *addresses: str) -> NodeInterface:
    return NodeInterface(name, addresses=addresses)


def test_interfaces_of_one_network_meet_whatever_they_are_called():
    ours = [interface("net1", "10.1.0.1/24"), interface("net2", "10.2.0.1/24")]
    theirs = [interface("net1", "10.2.0.2/24"), interface("net2", "10.1.0.2/24")]
    found = [
        (lane.client.name, lane.server.name, lane.server_address) for lane in pair_interfaces(ours, theirs, "data")
    ]
    assert found == [("net1", "net2", "10.1.0.2"), ("net2", "net1", "10.2.0.2")]


def test_interfaces_of_one_name_meet_where_each_has_a_network_of_its_own():
    ours = [interface("net1", "10.1.0.0/31"), interface("net2", "10.2.0.0/31")]
    theirs = [interface("net1", "10.1.0.2/31"), interface("net2", "fd00::1/127")]
    assert [(lane.client.name, lane.server_address) for lane in pair_interfaces(ours, theirs, "data")] == [
        ("net1", "10.1.0.2")
    ]


def test_two_interfaces_in_one_network_meet_one_each():
    ours = [interface("net1", "10.1.0.1/24"), interface("net2", "10.1.0.2/24")]
    theirs = [interface("net1", "10.1.0.3/24"), interface("net2", "10.1.0.4/24")]
    assert [(lane.client.name, lane.server.name) for lane in pair_interfaces(ours, theirs, "data")] == [
        ("net1", "net1"),
        ("net2", "net2"),
    ]


def test_one_address_on_both_nodes_is_no_way_between_them():
    assert (
        pair_interfaces([interface("virbr0", "192.168.122.1/24")], [interface("virbr0", "192.168.122.1/24")], "data")
        == []
    )


def test_the_management_interfaces_meet_whatever_their_name_and_network():
    found = pair_interfaces([interface("eth0", "10.1.0.1/24")], [interface("eno1", "10.9.0.1/24")], "mgmt")
    assert [(lane.client_address, lane.server_address) for lane in found] == [("10.1.0.1", "10.9.0.1")]
