"""Measures between two nodes: servers on one, clients on the other, and pairs of interfaces as the result.

The connection to the servers stays open while the clients run. Closing it, in all cases, ends the servers.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import msgspec
from pydantic import ValidationError

from muster_agent.fleet import PeerAgent
from muster_agent.fleet.interfaces import InterfacePair, NodeInterface, pair_interfaces, servers_per_interface
from muster_agent.fleet.iperf_wire import (
    FIRST_S,
    PORTS,
    REOPEN_S,
    ClientRequest,
    IperfOutcome,
    IperfOutcomes,
    IperfServers,
    IperfTest,
    ListenAddress,
    ServersRequest,
)
from muster_agent.fleet.peer_client import PeerCallFailed, PeerClient
from muster_agent.fleet.round_plan import Meeting
from muster_agent.query.status_query import IperfOptions, Plane
from muster_checks.iperf import IperfParameters
from muster_checks.iperf.judge import read_pairs
from muster_checks.iperf.pair import NicPair, NicSide
from muster_checks.iperf.probe import BEYOND_S, CONNECT_S

# each takes two of the connections that all requests of an agent share (peer_client.AT_ONCE)
MEETINGS_AT_ONCE = 64
START_S = 30.0  # limit until servers listen, including the check that the node is idle
CALL_S = 20.0  # added to the duration of the tests: the check that the node is idle, and the network
TRIES = 3  # with a node that takes part in another measurement
PAUSE_S = 2.0  # longest pause between two tries


class NodeUnavailable(Exception):
    """``node`` cannot take part: no answer, busy, or no servers. reason, message: for its result."""

    def __init__(self, node: str, reason: str, message: str) -> None:
        super().__init__(message)
        self.node = node
        self.reason = reason
        self.message = message


class MeetingSettings(msgspec.Struct, frozen=True):
    """Settings of all meetings of a measurement.

    servers:          ``serverspernode``; None: not given
    clients:          streams to each server
    force:            also on busy nodes
    meetings_at_once: concurrent meetings of all nodes
    """

    plane: Plane
    servers: int | None
    clients: int
    seconds: int
    omit_seconds: int
    link_gbit_per_s: float | None = None
    force: bool = False
    meetings_at_once: int = MEETINGS_AT_ONCE

    @property
    def tests_s(self) -> float:
        """Longest duration of the tests, both directions together."""
        return FIRST_S + REOPEN_S + 2 * (self.seconds + self.omit_seconds + CONNECT_S + BEYOND_S)

    @property
    def meeting_s(self) -> float:
        """Longest duration of a meeting."""
        return TRIES * (START_S + PAUSE_S) + self.tests_s + CALL_S


def choose_meeting_settings(
    options: IperfOptions, limits: IperfParameters, *, force: bool = False, at_once: int = MEETINGS_AT_ONCE
) -> MeetingSettings:
    """The settings. On the management plane there is always one server and one client per node."""
    mgmt = options.plane == "mgmt"
    return MeetingSettings(
        plane=options.plane,
        servers=None if mgmt else options.servers_per_node,
        clients=1 if mgmt else options.clients_per_iface or limits.clients,
        seconds=limits.seconds,
        omit_seconds=limits.omit_seconds,
        link_gbit_per_s=limits.link_gbit_per_s,
        force=force,
        meetings_at_once=at_once,
    )


async def run_meeting(
    meeting: Meeting,
    peers: Mapping[str, PeerAgent],
    interfaces: Mapping[str, tuple[NodeInterface, ...]],
    call: PeerClient,
    settings: MeetingSettings,
    *,
    rng: random.Random,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> list[NicPair]:
    """The pairs of all interfaces, in both directions. Raises NodeUnavailable."""
    between = pair_interfaces(interfaces[meeting.client], interfaces[meeting.server], settings.plane)
    if not between:
        return _both_ways(meeting, "the nodes have neither a network nor the name of an interface in common")
    each = servers_per_interface(settings.servers, len(interfaces[meeting.server]))
    wanted = [lane for lane in between for _ in range(each)][: len(PORTS)]
    for attempt in range(TRIES):
        try:
            async with asyncio.timeout(START_S + settings.tests_s + CALL_S):
                return _pairs(meeting, wanted, await _measure(meeting, peers, wanted, call, settings), settings)
        except TimeoutError:
            raise NodeUnavailable(
                meeting.server, "NoAnswer", "the node did not answer the request for servers"
            ) from None
        except NodeUnavailable as away:
            if away.reason != "Busy" or attempt == TRIES - 1:
                raise
        # a random pause, so that two measurements that collide do not collide again
        await sleep(rng.uniform(0.25, 1.0) * PAUSE_S)
    raise AssertionError("unreachable: the last try raises")  # pragma: no cover


async def _measure(
    meeting: Meeting,
    peers: Mapping[str, PeerAgent],
    wanted: list[InterfacePair],
    call: PeerClient,
    settings: MeetingSettings,
) -> tuple[IperfOutcome, ...]:
    client, server = peers[meeting.client], peers[meeting.server]
    request = ServersRequest(
        servers=[ListenAddress(interface=lane.server.name, address=lane.server_address) for lane in wanted],
        seconds=settings.tests_s + CALL_S,
        force=settings.force,
    )
    try:
        async with call.stream(server, "/iperf/servers", request) as lines:
            async with asyncio.timeout(START_S):
                started = await _first(lines)
            if len(started.servers) != len(wanted):
                raise NodeUnavailable(
                    server.node, "NotMeasured", started.error or "it started another number of servers than requested"
                )
            tests = [
                IperfTest(
                    interface=lane.client.name,
                    address=lane.client_address,
                    server=lane.server_address,
                    port=listening.port,
                )
                for lane, listening in zip(wanted, started.servers, strict=True)
            ]
            return await _run_client(client, tests, call, settings)
    except PeerCallFailed as error:
        raise node_unavailable(server, error) from error
    except (msgspec.MsgspecError, ValidationError) as error:
        raise NodeUnavailable(server.node, "BadAnswer", f"it did not answer as an agent does: {error}") from error
    except TimeoutError as error:
        raise NodeUnavailable(server.node, "NoAnswer", f"no server started within {START_S:g} s") from error


async def _run_client(
    client: PeerAgent, tests: list[IperfTest], call: PeerClient, settings: MeetingSettings
) -> tuple[IperfOutcome, ...]:
    request = ClientRequest(
        tests=tests,
        clients=settings.clients,
        seconds=settings.seconds,
        omit_seconds=settings.omit_seconds,
        force=settings.force,
    )
    try:
        answer = await call.post_json(client, "/iperf/client", request, settings.tests_s + CALL_S / 2)
        found = msgspec.convert(answer, IperfOutcomes).outcomes
    except PeerCallFailed as error:
        raise node_unavailable(client, error) from error
    except msgspec.MsgspecError as error:
        raise NodeUnavailable(client.node, "BadAnswer", f"it did not answer as an agent does: {error}") from error
    expected = {(number, reverse) for number in range(len(tests)) for reverse in (False, True)}
    if {(outcome.test, outcome.reverse) for outcome in found} != expected or len(found) != len(expected):
        raise NodeUnavailable(client.node, "BadAnswer", "it answered for other tests than requested")
    if any(flow.gbit_per_s < 0 for outcome in found if outcome.report for flow in outcome.report.flows):
        raise NodeUnavailable(client.node, "BadAnswer", "it answered with a negative bandwidth")
    return found


async def _first(lines: AsyncIterator[bytes]) -> IperfServers:
    async for line in lines:
        if line.strip():
            return msgspec.json.decode(line, type=IperfServers)
    return IperfServers(error="the answer ended without a result")


def node_unavailable(peer: PeerAgent, error: PeerCallFailed) -> NodeUnavailable:
    """Agents answer 409 if their node is busy."""
    if error.status == 409:
        return NodeUnavailable(peer.node, "Busy", error.message)
    return NodeUnavailable(peer.node, error.reason, error.message)


def _pairs(
    meeting: Meeting, wanted: list[InterfacePair], outcomes: tuple[IperfOutcome, ...], settings: MeetingSettings
) -> list[NicPair]:
    """One pair for each pair of interfaces and direction. Its servers share a link, so their bandwidths are added."""
    parts: dict[tuple[str, bool], list[NicPair]] = defaultdict(list)
    for outcome in outcomes:
        lane = wanted[outcome.test]
        client = NicSide(meeting.client, lane.client.nic, settings.link_gbit_per_s or lane.client.gbit_per_s)
        server = NicSide(meeting.server, lane.server.nic, settings.link_gbit_per_s or lane.server.gbit_per_s)
        ends = (server, client) if outcome.reverse else (client, server)
        if outcome.report is None or len(outcome.report.flows) != 1:
            pair = NicPair(*ends, trouble=outcome.trouble or "iperf3 reported nothing")
        else:
            pair = read_pairs(outcome.report, client, server)[0]
        parts[lane.client.name, outcome.reverse].append(pair)
    return [_together(each) for each in parts.values()]


def _together(parts: list[NicPair]) -> NicPair:
    troubles = [pair for pair in parts if pair.trouble]
    if troubles or len(parts) == 1:
        return troubles[0] if troubles else parts[0]
    total = sum(pair.gbit_per_s for pair in parts)
    counted = [pair for pair in parts if pair.retransmits_per_gb is not None]
    resent = sum((pair.retransmits_per_gb or 0) * pair.gbit_per_s for pair in counted)
    return msgspec.structs.replace(
        parts[0],
        gbit_per_s=total,
        retransmits_per_gb=resent / total if counted and total else None,
        limited=any(pair.limited for pair in parts),
        cpu_bound=any(pair.cpu_bound for pair in parts),
    )


def _both_ways(meeting: Meeting, trouble: str) -> list[NicPair]:
    client, server = NicSide(meeting.client), NicSide(meeting.server)
    return [NicPair(client, server, trouble=trouble), NicPair(server, client, trouble=trouble)]
