"""Sends one query to many nodes: a bounded number at a time, and exactly one answer for every node.

As soon as one node has answered, the next is queried, so that a slow node does not delay the others. A node's failure
is the answer of that node and never ends the query.
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
from muster_agent.query.status_query import NETWORK_CHECK, IperfOptions, StatusQuery
from muster_checks.base.declaration import Check, Cost
from muster_checks.base.vocabulary import Result, Verdict, shorten, worst
from muster_checks.iperf import IperfParameters

log = logging.getLogger(__name__)

MARGIN_S = 10.0  # added to the checks' timeouts: for the request, the queue, and the end of tools
LIGHT_AT_ONCE = 4  # default of an agent's setting light_at_once

T = TypeVar("T")
AnswerLocally = Callable[[StatusQuery], Awaitable[NodeAnswer]]


class MeasureNetwork(Protocol):
    """Signature of network_measurement.measure_network."""

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
    """Detects within seconds that an agent hangs while a request to it is pending, although a check may take an hour.

    first_interval_s, longest_interval_s: the first and the longest interval between two requests of /healthz
    timeout_s, failure_threshold:         the agent hangs if this many successive requests get no answer in timeout_s
    """

    first_interval_s: float = 2.0
    longest_interval_s: float = 30.0
    timeout_s: float = 3.0
    failure_threshold: int = 3


class FanOut:
    """Sends queries to peers.

    node:    the agent's own node, which is queried without a request
    measure: measures the network between nodes; default: measure_network of network_measurement.py
    """

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
        """One answer for each of ``peers``, in the order in which they answer. Closing it (contextlib.aclosing) cancels
        all requests.

        own: answers a query for the own node. All nodes run iperf without a server together, so it is not part of the
        query to each node; it runs before the other checks, whose traffic would disturb it.
        """
        alone, measured = query, None
        for running, parameters in query.checks:
            if running.name == NETWORK_CHECK and isinstance(parameters, IperfParameters) and parameters.server is None:
                alone = msgspec.structs.replace(query, checks=[each for each in query.checks if each[0] is not running])
                measured = await self._measured(peers, query, parameters)
        round_ = _QueryRun(self, alone, own)
        waiting = iter(peers)
        answers: asyncio.Queue[NodeAnswer] = asyncio.Queue(1)  # if the client stops reading, no more nodes are queried
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
        except Exception as error:  # the other checks must still be answered
            log.exception("check %s between %d nodes failed", NETWORK_CHECK, len(there))
            message = shorten(f"{type(error).__name__}: {error}")
            failed = Result(check=NETWORK_CHECK, verdict=Verdict.UNKNOWN, reason="Error", message=message)
            return {peer.node: failed for peer in there}

    # --- for _QueryRun

    def turn(self, *, heavy: bool) -> "asyncio.Semaphore | nullcontext[None]":
        return self._heavy if heavy else nullcontext()

    def is_own(self, peer: PeerAgent) -> bool:
        return peer.node == self._node

    async def checks_of(self, peer: PeerAgent) -> set[str]:
        found = await self._peers.get_json(peer, "/checks", {}, self._probe.timeout_s)
        return {check.name for check in _read(found, _Checks, peer).checks}

    async def answer_of(self, peer: PeerAgent, query: Mapping[str, str], timeout_s: float) -> NodeAnswer:
        """The peer's answer to /status, which must be for its own node. Raises PeerCallFailed."""
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
                "BadAnswer", f"{peer_endpoint(peer)} answered for {len(nodes)} nodes; expected only {peer.node}"
            )
        if nodes[0].node != peer.node:
            answered = shorten(nodes[0].node, 64)
            raise PeerCallFailed(
                "WrongNode", f"{peer_endpoint(peer)} answered for node {answered!r}; expected {peer.node!r}"
            )
        return nodes[0]

    async def _watch(self, peer: PeerAgent, call: "asyncio.Future[Any]") -> None:
        """Return when ``call`` is done. Raises PeerCallFailed if the agent hangs."""
        probe, now = self._probe, asyncio.get_running_loop().time
        wait_s, silent = probe.first_interval_s, 0
        while not (await asyncio.wait([call], timeout=wait_s))[0]:
            asked_at = now()
            if await self._peers.alive(peer, probe.timeout_s):
                wait_s, silent = min(2 * wait_s, probe.longest_interval_s), 0
                continue
            # one that refuses connections, as an agent does that ends, gets as long to answer as one that is silent
            wait_s, silent = max(0.0, asked_at + probe.timeout_s - now()), silent + 1
            if silent >= probe.failure_threshold and not call.done():
                tried = f"{silent} requests of /healthz without an answer within {probe.timeout_s:g} s each"
                raise PeerCallFailed("NoAnswer", f"{peer_endpoint(peer)} hangs or is gone: {tried}")


class _QueryRun:
    """One query on its way through the fleet."""

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
            except Exception as error:  # a bug that affects one node must not cost the answers of the others
                log.exception("cannot query node %s", peer.node)
                message = shorten(f"{type(error).__name__}: {error}")
                answer = no_answer(peer.node, peer_endpoint(peer), self._names, "Error", message)
            await answers.put(answer)

    async def _answer(self, peer: PeerAgent) -> NodeAnswer:
        own = self._fan.is_own(peer)
        if not own and not peer.address:
            raise PeerCallFailed(
                "NoAgent", f"no agent runs on node {peer.node}: the agents' Service has no endpoint on it"
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
            answer = await self._call_common_checks(peer, error)
        by_name = {result.check: result for result in answer.results}
        if self._query.named:
            return _judged(answer, [by_name.get(name) or _lacking(name, peer) for name in self._names])
        if not by_name:
            raise PeerCallFailed("BadAnswer", f"{peer_endpoint(peer)} answered without results")
        return _judged(answer, answer.results)

    async def _call_common_checks(self, peer: PeerAgent, refusal: PeerCallFailed) -> NodeAnswer:
        """Query only the checks that the node has. Plug-ins may differ between nodes, and versions do during a rollout.
        A check that a node lacks must not cost the results of the others."""
        has = await self._fan.checks_of(peer)
        common = tuple(name for name in self._names if name in has)
        if not common:
            return NodeAnswer(node=peer.node, verdict=Verdict.UNKNOWN)
        if len(common) == len(self._names):
            raise refusal
        return await self._fan.answer_of(peer, self._query.for_peer(peer.node, common), self._timeout_s)


def timeout_s(checks: Sequence[Check], *, heavy: bool) -> float:
    """How long a node may take. Light checks run concurrently, LIGHT_AT_ONCE at a time. Heavy checks run one after
    another, possibly after one that is already running; without ``heavy`` they report their last result at once."""
    light = [check.timeout_s for check in checks if check.cost is Cost.LIGHT]
    slow = [check.timeout_s for check in checks if check.cost is Cost.HEAVY] if heavy else []
    return max([*light, sum(light) / LIGHT_AT_ONCE]) + sum(slow) + max(slow, default=0.0) + MARGIN_S


class _Document(msgspec.Struct):
    """The part of a peer's answer that is read."""

    nodes: tuple[NodeAnswer, ...]


class _Declared(msgspec.Struct):
    name: str


class _Checks(msgspec.Struct):
    checks: tuple[_Declared, ...]


def _read(found: Any, kind: type[T], peer: PeerAgent) -> T:
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise PeerCallFailed("BadAnswer", f"{peer_endpoint(peer)} did not answer as an agent does: {error}") from error


def _with_network(answer: NodeAnswer, measured: Mapping[str, Result], order: Sequence[str]) -> NodeAnswer:
    message = answer.error or "the network of this node was not measured"
    missing = Result(check=NETWORK_CHECK, verdict=Verdict.UNKNOWN, reason="NotMeasured", message=message)
    result = measured.get(answer.node, missing)
    added = CheckAnswer(**{name: getattr(result, name) for name in Result.__struct_fields__})
    place_of = {name: place for place, name in enumerate(order)}
    return _judged(answer, sorted([*answer.results, added], key=lambda each: place_of.get(each.check, len(order))))


def _judged(answer: NodeAnswer, results: Sequence[CheckAnswer]) -> NodeAnswer:
    verdict = worst([result.verdict for result in results], Verdict.UNKNOWN)
    return msgspec.structs.replace(answer, results=tuple(results), verdict=verdict)


def _lacking(check: str, peer: PeerAgent) -> CheckAnswer:
    message = f"node {peer.node} has no check {check}: it is disabled there, or its agent has another version"
    return CheckAnswer(check=check, verdict=Verdict.UNKNOWN, reason="NoSuchCheck", message=message)
