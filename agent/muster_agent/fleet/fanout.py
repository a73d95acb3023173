"""One question to many nodes: so many at a time, each answer as it comes, and an answer for every node.

A window, not batches in lock step: when one node has answered the next is asked, so the slowest of a batch holds up
nobody. What a node does, or fails to do, is an answer of that node and never the end of the whole.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Protocol, TypeVar

import msgspec

from muster_agent.fleet import FleetLimits, PeerAgent
from muster_agent.fleet.peer_client import PeerCallFailed, PeerClient, peer_endpoint
from muster_agent.query.node_answer import CheckAnswer, NodeAnswer, no_answer
from muster_agent.query.status_query import IperfOptions, StatusQuery
from muster_checks.base.declaration import Check, Cost
from muster_checks.base.vocabulary import Result, Verdict, shorten, worst
from muster_checks.iperf import IperfParameters

log = logging.getLogger(__name__)

MARGIN_S = 10.0  # beyond the checks' own limits: the call, the wait for a turn, the end of tools
NETWORK = "iperf"
LIGHT_AT_ONCE = 4  # an agent's default; more than that wait for each other there

T = TypeVar("T")
AnswerLocally = Callable[[StatusQuery], Awaitable[NodeAnswer]]


class MeasureNetwork(Protocol):
    """As network_measurement.measure_network."""

    async def __call__(
        self,
        peers: Sequence[PeerAgent],
        call: PeerClient,
        options: IperfOptions,
        limits: IperfParameters,
        *,
        force: bool,
        nodes_at_once: int | None,
    ) -> Mapping[str, Result]: ...


class LivenessProbe(msgspec.Struct, frozen=True):
    """Of an agent whose answer takes its time. A check may take an hour; an agent that hangs is found out in seconds.

    first_interval_s, longest_interval_s: how long until /healthz is asked first, and how long at most from one time to
                                          the next
    timeout_s, failure_threshold: the agent is given up when that was not answered within timeout_s, so many times in
                                  a row
    """

    first_interval_s: float = 2.0
    longest_interval_s: float = 30.0
    timeout_s: float = 3.0
    failure_threshold: int = 3


class FanOut:
    """``node``: the own one, which is not asked by a call. measure: makes iperf over many nodes, measure_network of
    network_measurement.py by default."""

    def __init__(
        self,
        node: str,
        peers: PeerClient,
        limits: FleetLimits,
        *,
        probe: LivenessProbe | None = None,
        measure: MeasureNetwork | None = None,
    ) -> None:
        self._node = node
        self._peers = peers
        self._fleet_at_once = limits.fleet_at_once
        self._heavy = asyncio.Semaphore(limits.heavy_at_once)
        self._probe = probe or LivenessProbe()
        self._measure = measure

    async def ask(
        self, peers: Sequence[PeerAgent], query: StatusQuery, own: AnswerLocally
    ) -> AsyncGenerator[NodeAnswer, None]:
        """One answer for each of ``peers``, as they come. Close it (contextlib.aclosing), and all calls are off.

        own: the own node's answer to a query. iperf without a server is no question to each node, as all of them make
        it together; it goes first and alone, as it would measure the traffic of the others.
        """
        alone, measured = query, None
        for running, parameters in query.checks:
            if running.name == NETWORK and isinstance(parameters, IperfParameters) and parameters.server is None:
                alone = msgspec.structs.replace(query, checks=[each for each in query.checks if each[0] is not running])
                measured = await self._measured(peers, query, parameters)
        round_ = _QueryRun(self, alone, own)
        waiting = iter(peers)
        answers: asyncio.Queue[NodeAnswer] = asyncio.Queue(1)  # for who does not read, nobody is asked any more
        at_once = min(query.batch or self._fleet_at_once, self._fleet_at_once, len(peers))
        workers = [asyncio.create_task(round_.work(waiting, answers)) for _ in range(at_once)]
        try:
            for _ in peers:
                answer = await answers.get()
                yield answer if measured is None else _with_network(answer, measured, query.check_names)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _measured(
        self, peers: Sequence[PeerAgent], query: StatusQuery, limits: IperfParameters
    ) -> Mapping[str, Result]:
        there = [peer for peer in peers if peer.address]
        try:
            if self._measure is None:
                from muster_agent.fleet.network_measurement import measure_network

                self._measure = measure_network
            return await self._measure(
                there, self._peers, query.iperf, limits, force=query.force, nodes_at_once=query.batch
            )
        except Exception as error:  # the other checks are answered all the same
            log.exception("check %s over %d nodes", NETWORK, len(there))
            message = shorten(f"{type(error).__name__}: {error}")
            failed = Result(check=NETWORK, verdict=Verdict.UNKNOWN, reason="Error", message=message)
            return {peer.node: failed for peer in there}

    # --- what a round needs of it

    def turn(self, *, heavy: bool) -> "asyncio.Semaphore | nullcontext[None]":
        return self._heavy if heavy else nullcontext()

    def is_own(self, peer: PeerAgent) -> bool:
        return peer.node == self._node

    async def checks_of(self, peer: PeerAgent) -> set[str]:
        found = await self._peers.get_json(peer, "/checks", {}, self._probe.timeout_s)
        return {check.name for check in _read(found, _Checks, peer).checks}

    async def answer_of(self, peer: PeerAgent, query: Mapping[str, str], timeout_s: float) -> NodeAnswer:
        """What it answers to /status, held against who it is. Raises PeerCallFailed."""
        params = {**query, "host": peer.node, "format": "json"}
        call = asyncio.ensure_future(self._peers.get_json(peer, "/status", params, timeout_s))
        try:
            await self._watch(peer, call)
            found = call.result()
        finally:
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        nodes = _read(found, _Document, peer).nodes
        if len(nodes) != 1:
            raise PeerCallFailed(
                "BadAnswer", f"{peer_endpoint(peer)} answers for {len(nodes)} nodes, expected {peer.node} alone"
            )
        if nodes[0].node != peer.node:
            answered = shorten(nodes[0].node, 64)
            raise PeerCallFailed(
                "WrongNode", f"{peer_endpoint(peer)} answers for node {answered!r}, expected {peer.node!r}"
            )
        return nodes[0]

    async def _watch(self, peer: PeerAgent, call: "asyncio.Future[Any]") -> None:
        """Until ``call`` is done."""
        probe = self._probe
        wait_s, silent = probe.first_interval_s, 0
        while not (await asyncio.wait([call], timeout=wait_s))[0]:
            if await self._peers.alive(peer, probe.timeout_s):
                wait_s, silent = min(2 * wait_s, probe.longest_interval_s), 0
                continue
            wait_s, silent = 0.0, silent + 1
            if silent >= probe.failure_threshold and not call.done():
                tried = f"{silent} times in a row, {probe.timeout_s:g} s each"
                raise PeerCallFailed("NoAnswer", f"{peer_endpoint(peer)} takes connections and says nothing ({tried})")


class _QueryRun:
    """One question on its way through the fleet."""

    def __init__(self, fan: FanOut, query: StatusQuery, own: AnswerLocally) -> None:
        checks = [running.check for running, _ in query.checks]
        self._fan = fan
        self._query = query
        self._names = query.check_names
        self._own = own
        self._heavy = query.named and any(check.cost is Cost.HEAVY for check in checks)
        self._timeout_s = timeout_s(checks, heavy=self._heavy)

    async def work(self, waiting: Iterator[PeerAgent], answers: "asyncio.Queue[NodeAnswer]") -> None:
        for peer in waiting:
            try:
                answer = await self._answer(peer)
            except PeerCallFailed as error:
                answer = no_answer(peer.node, peer_endpoint(peer), self._names, error.reason, error.message)
            except Exception as error:  # a fault of ours with one node must not cost the others' answers
                log.exception("node %s cannot be asked", peer.node)
                message = shorten(f"{type(error).__name__}: {error}")
                answer = no_answer(peer.node, peer_endpoint(peer), self._names, "Error", message)
            await answers.put(answer)

    async def _answer(self, peer: PeerAgent) -> NodeAnswer:
        own = self._fan.is_own(peer)
        if not own and not peer.address:
            raise PeerCallFailed(
                "NoAgent", f"no agent runs on node {peer.node}: the agents' Service has no endpoint there"
            )
        if not self._names:
            return NodeAnswer(node=peer.node, endpoint=peer_endpoint(peer), verdict=Verdict.UNKNOWN)
        async with self._fan.turn(heavy=self._heavy):
            answer = await self._own(self._query) if own else await self._call(peer)
        return msgspec.structs.replace(answer, endpoint=peer_endpoint(peer) or answer.endpoint)

    async def _call(self, peer: PeerAgent) -> NodeAnswer:
        try:
            answer = await self._fan.answer_of(peer, self._query.for_peer(peer.node), self._timeout_s)
        except PeerCallFailed as error:
            if error.status != 400 or not self._query.named:
                raise
            answer = await self._call_for_what_it_has(peer, error)
        by_name = {result.check: result for result in answer.results}
        if self._query.named:
            return _judged(answer, [by_name.get(name) or _lacking(name, peer) for name in self._names])
        if not by_name:
            raise PeerCallFailed("BadAnswer", f"{peer_endpoint(peer)} answers without any result")
        return _judged(answer, answer.results)

    async def _call_for_what_it_has(self, peer: PeerAgent, refusal: PeerCallFailed) -> NodeAnswer:
        """Plug-ins differ from node to node, and versions do in a rollout: what a node lacks costs no other check."""
        has = await self._fan.checks_of(peer)
        common = tuple(name for name in self._names if name in has)
        if not common:
            return NodeAnswer(node=peer.node, verdict=Verdict.UNKNOWN)
        if len(common) == len(self._names):
            raise refusal
        return await self._fan.answer_of(peer, self._query.for_peer(peer.node, common), self._timeout_s)


def timeout_s(checks: Sequence[Check], *, heavy: bool) -> float:
    """How long a node may take: light checks run side by side, a few at a time; heavy ones one after another, and
    after the one that may be under way. Without ``heavy`` those answer at once, with their last result."""
    light = [check.timeout_s for check in checks if check.cost is Cost.LIGHT]
    slow = [check.timeout_s for check in checks if check.cost is Cost.HEAVY] if heavy else []
    return max([*light, sum(light) / LIGHT_AT_ONCE]) + sum(slow) + max(slow, default=0.0) + MARGIN_S


class _Document(msgspec.Struct):
    """Of a peer's answer, what is read."""

    nodes: tuple[NodeAnswer, ...]


class _Declared(msgspec.Struct):
    name: str


class _Checks(msgspec.Struct):
    checks: tuple[_Declared, ...]


def _read(found: Any, kind: type[T], peer: PeerAgent) -> T:
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise PeerCallFailed("BadAnswer", f"{peer_endpoint(peer)} answers otherwise than an agent: {error}") from error


def _with_network(answer: NodeAnswer, measured: Mapping[str, Result], order: Sequence[str]) -> NodeAnswer:
    message = answer.error or "was not measured"
    missing = Result(check=NETWORK, verdict=Verdict.UNKNOWN, reason="NotMeasured", message=message)
    result = measured.get(answer.node, missing)
    added = CheckAnswer(**{name: getattr(result, name) for name in Result.__struct_fields__})
    place_of = {name: place for place, name in enumerate(order)}
    return _judged(answer, sorted([*answer.results, added], key=lambda each: place_of.get(each.check, len(order))))


def _judged(answer: NodeAnswer, results: Sequence[CheckAnswer]) -> NodeAnswer:
    verdict = worst([result.verdict for result in results], Verdict.UNKNOWN)
    return msgspec.structs.replace(answer, results=tuple(results), verdict=verdict)


def _lacking(check: str, peer: PeerAgent) -> CheckAnswer:
    message = f"node {peer.node} has no check {check}: it is turned off there, or its agent is another version"
    return CheckAnswer(check=check, verdict=Verdict.UNKNOWN, reason="NoSuchCheck", message=message)
