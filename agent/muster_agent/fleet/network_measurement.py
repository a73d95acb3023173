"""Measures the bandwidth between all nodes: rounds (round_plan.py) of pairs of nodes (pair_measurement.py), judged
together.

A node that does not answer is UNKNOWN and affects no other node. However the measurement ends, also when the client
disconnects, no server remains: servers end with the connections that are open here.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakSet

import msgspec

from muster_agent.fleet import PeerAgent
from muster_agent.fleet.interfaces import NodeInterface
from muster_agent.fleet.iperf_wire import InterfaceList, InterfacesRequest
from muster_agent.fleet.pair_measurement import (
    MEETINGS_AT_ONCE,
    MeetingSettings,
    NodeUnavailable,
    choose_meeting_settings,
    node_unavailable,
    run_meeting,
)
from muster_agent.fleet.peer_client import PeerCallFailed, PeerClient
from muster_agent.fleet.round_plan import (
    FURTHER,
    Meeting,
    Round,
    first_rounds,
    further_round,
    round_of_the_slow,
    rounds_at_most,
    tally_of,
)
from muster_agent.query.status_query import IperfOptions
from muster_checks.base.vocabulary import Finding, Result, Verdict, severity, shorten, worst
from muster_checks.iperf import IPERF, IperfParameters
from muster_checks.iperf.blame import find_culprits
from muster_checks.iperf.judge import find_slow_pairs, judge
from muster_checks.iperf.pair import NicPair

log = logging.getLogger(__name__)

REQUESTS_AT_ONCE = 64
INTERFACES_S = 20.0

Sleep = Callable[[float], Awaitable[object]]

_measuring: WeakSet[PeerClient] = WeakSet()


async def measure_network(
    peers: Sequence[PeerAgent],
    call: PeerClient,
    options: IperfOptions,
    limits: IperfParameters,
    *,
    force: bool = False,
    nodes_at_once: int | None = None,
    rng: random.Random | None = None,
    sleep: Sleep = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
) -> dict[str, Result]:
    """A result for each of ``peers``, by node.

    Only one measurement at a time runs per ``call``, because two would disturb each other.

    force:         also on busy nodes
    nodes_at_once: the parameter ``batch``; at least two nodes measure at the same time
    """
    started, begun = wall(), clock()
    if call in _measuring:
        away = NodeUnavailable("", "Busy", "this agent is running another network measurement; try again later")
        return {peer.node: _missing(away) for peer in peers}
    at_once = max(1, min(MEETINGS_AT_ONCE, (nodes_at_once or 2 * MEETINGS_AT_ONCE) // 2))
    settings = choose_meeting_settings(options, limits, force=force, at_once=at_once)
    measuring = _Measurement(peers, call, settings, limits, rng or random.Random(), sleep)  # noqa: S311 - no secret
    most_s = longest_duration_s(len(peers), settings)
    log.info("check iperf between %d nodes started; it takes at most %.0f s", len(peers), most_s)
    _measuring.add(call)
    try:
        found = await measuring.results()
    finally:
        _measuring.discard(call)
    duration_s = clock() - begun
    log.info("check iperf between %d nodes: measured %d pairs in %.0f s", len(peers), len(measuring.pairs), duration_s)
    return {
        node: msgspec.structs.replace(result, started=started, duration_s=duration_s) for node, result in found.items()
    }


def longest_duration_s(nodes: int, settings: MeetingSettings) -> float:
    """Upper bound of the duration for ``nodes`` nodes, reached if they do not answer."""
    interfaces_s = math.ceil(nodes / REQUESTS_AT_ONCE) * INTERFACES_S
    return interfaces_s + rounds_at_most(nodes) * math.ceil(nodes / 2 / settings.meetings_at_once) * settings.meeting_s


class _Measurement:
    def __init__(
        self,
        peers: Sequence[PeerAgent],
        call: PeerClient,
        settings: MeetingSettings,
        limits: IperfParameters,
        rng: random.Random,
        sleep: Sleep,
    ) -> None:
        self.pairs: list[NicPair] = []
        self._peers = {peer.node: peer for peer in peers}
        self._call = call
        self._settings = settings
        self._limits = limits
        self._free = asyncio.Semaphore(settings.meetings_at_once)
        self._rng = rng
        self._sleep = sleep
        self._interfaces: dict[str, tuple[NodeInterface, ...]] = {}
        self._away: dict[str, NodeUnavailable] = {}
        self._skipped: dict[str, InterfaceList] = {}
        self._met: list[Meeting] = []

    async def results(self) -> dict[str, Result]:
        free = asyncio.Semaphore(REQUESTS_AT_ONCE)
        await _all(self._request_interfaces(peer, free) for peer in self._peers.values())
        for each in first_rounds(self._interfaces, self._rng):
            await self._run(each)
        for number in range(FURTHER):
            await self._run(await asyncio.to_thread(self._plan_further_round, number))
        pages = await asyncio.to_thread(lambda: judge(_settled(self.pairs), self._limits))
        return {node: self._result(node, pages) for node in self._peers}

    async def _request_interfaces(self, peer: PeerAgent, free: asyncio.Semaphore) -> None:
        request = InterfacesRequest(plane=self._settings.plane)
        try:
            async with free:
                answer = await self._call.post_json(peer, "/iperf/interfaces", request, INTERFACES_S)
            found = msgspec.convert(answer, InterfaceList)
        except PeerCallFailed as error:
            self._away[peer.node] = node_unavailable(peer, error)
        except msgspec.MsgspecError as error:
            self._away[peer.node] = NodeUnavailable(
                peer.node, "BadAnswer", f"it did not answer as an agent does: {error}"
            )
        else:
            if found.interfaces:
                self._interfaces[peer.node] = found.interfaces
            else:
                self._skipped[peer.node] = found

    async def _run(self, meetings: Round) -> None:
        await _all(self._run_meeting(meeting) for meeting in meetings if not meeting.nodes & self._away.keys())

    async def _run_meeting(self, meeting: Meeting) -> None:
        async with self._free:
            try:
                found = await run_meeting(
                    meeting,
                    self._peers,
                    self._interfaces,
                    self._call,
                    self._settings,
                    rng=self._rng,
                    sleep=self._sleep,
                )
            except NodeUnavailable as away:
                log.info(
                    "check iperf between %s and %s failed: %s: %s", meeting.client, meeting.server, away.node, away
                )
                self._away.setdefault(away.node, away)
                return
        self.pairs += found
        self._met.append(meeting)

    def _plan_further_round(self, number: int) -> Round:
        bad = {frozenset((pair.sender.node, pair.receiver.node)) for pair in find_slow_pairs(self.pairs, self._limits)}
        tally = {node: of for node, of in tally_of(self._met, bad).items() if node not in self._away}
        met = {meeting.nodes for meeting in self._met}
        choose = round_of_the_slow if number == FURTHER - 1 else further_round
        return choose(tally, met, self._rng)

    def _result(self, node: str, pages: Mapping[str, Sequence[Finding]]) -> Result:
        if (skipped := self._skipped.get(node)) is not None:
            verdict = Verdict.SKIP if skipped.skipped else Verdict.UNKNOWN
            reason, why = (
                skipped.skipped or "BadAnswer",
                skipped.why or "it answered with neither interfaces nor a reason",
            )
            return Result(check=IPERF.name, verdict=verdict, reason=reason, message=shorten(why))
        findings = list(pages.get(node, ()))
        away = self._away.get(node)
        if not findings:
            return _missing(away or self._alone(node))
        if away is not None:
            findings.append(
                Finding(component="host", verdict=Verdict.UNKNOWN, reason=away.reason, message=shorten(away.message))
            )
        findings.sort(key=lambda finding: -severity(finding.verdict))
        first = findings[0] if findings[0].verdict is not Verdict.PASS else None
        return Result(
            check=IPERF.name,
            verdict=worst([finding.verdict for finding in findings]),
            reason=first.reason if first else "",
            message=first.message if first else "",
            findings=tuple(findings),
        )

    def _alone(self, node: str) -> NodeUnavailable:
        if len(self._interfaces) < 2:
            return NodeUnavailable(node, "NoPeers", "no other node takes part in the measurement")
        return NodeUnavailable(node, "NotMeasured", "no measurement with any of its peers succeeded")


def _settled(pairs: Sequence[NicPair]) -> list[NicPair]:
    """Attribute a failed pair to the node that could not be measured with any other, if there is one, so that the other
    node of the pair is not UNKNOWN because of it."""
    lost = {
        culprit.node
        for culprit in find_culprits(pairs, {pair for pair in pairs if pair.trouble})
        if not culprit.direction
    }
    return [
        msgspec.structs.replace(pair, sender=pair.receiver, receiver=pair.sender)
        if pair.trouble and pair.receiver.node in lost and pair.sender.node not in lost
        else pair
        for pair in pairs
    ]


def _missing(away: NodeUnavailable) -> Result:
    return Result(check=IPERF.name, verdict=Verdict.UNKNOWN, reason=away.reason, message=shorten(away.message))


async def _all(jobs: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all concurrently. If one fails or the caller is cancelled, all have ended."""
    async with asyncio.TaskGroup() as group:
        for job in jobs:
            group.create_task(job)
