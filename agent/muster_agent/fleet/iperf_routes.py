"""One node's part in measuring the network, for the agent that measures: POST /iperf/interfaces, servers, client.

Servers live as long as the connection that asked for them, so nothing has to be told to stop them: when the caller
hangs up, dies or is cut off they are gone; and no longer than :data:`HOLD_LIMIT_S` in any case. Both ends hold their
node's turn of heavy checks meanwhile. Neither waits for it while another heavy check runs, so two nodes can not wait
for each other. Who may ask is decided before (http/routes.py): it sends traffic where it is told to.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec
from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from muster_agent.checks.run_admission import NodeBusy
from muster_agent.fleet.interfaces import read_interfaces
from muster_agent.fleet.iperf_wire import (
    PORTS,
    ClientRequest,
    InterfaceList,
    InterfacesRequest,
    IperfOutcome,
    IperfOutcomes,
    IperfServer,
    IperfServers,
    IperfTest,
    ListenAddress,
    ServersRequest,
)
from muster_checks.base.execution import CannotTell, NotHere, ToolMissing
from muster_checks.base.vocabulary import Result, Verdict, shorten
from muster_checks.iperf import IperfParameters
from muster_checks.iperf.probe import run_client
from muster_checks.iperf.server import is_listening, run_server
from muster_kube.http.responses import StructResponse, described, struct

if TYPE_CHECKING:
    from muster_agent.node_agent import Agent

NAME = "iperf"
IPERF_STRUCTS = (InterfaceList, IperfServers, IperfOutcomes)
TURN_S = 10.0  # to find out whether the node is idle; nobody's heavy check is waited for
# between two tests iperf3's server ends the first one and opens its port anew: who comes in that moment is sent away
NOT_YET = ("Connection reset", "Connection refused", "busy running a test")
TRIES = 3
AGAIN_S = 0.5
BEAT_S = 5.0  # a line now and then: a caller that has vanished is noticed by what it does not acknowledge

Done = TypeVar("Done")


class _Gone(Exception):
    """The caller has hung up."""


def iperf_router(agent: "Agent") -> APIRouter:
    """The application that includes this router must admit only agents and users with the same rights."""
    router = APIRouter(
        prefix="/iperf",
        responses={
            401: described("the caller has no token"),
            403: described("the caller may not do this"),
            409: described("the node is busy"),
            413: described("the body is too long"),
            503: described("what keeps this node from it"),
        },
    )

    @router.post("/interfaces", responses={200: described("as asked for", {"application/json": struct(InterfaceList)})})
    async def interfaces(asked: InterfacesRequest) -> Response:
        """For agents: interfaces of a plane, with their addresses."""
        try:
            found = InterfaceList(tuple(await read_interfaces(agent.local.view, asked.plane)))
        except NotHere as error:
            found = InterfaceList(skipped=error.reason, why=error.message)
        except CannotTell as error:
            raise HTTPException(503, error.message) from None
        return StructResponse(found)

    @router.post(
        "/servers",
        response_class=Response,
        responses={200: described("lines, and empty ones meanwhile", {"application/jsonl": struct(IperfServers)})},
    )
    async def servers(asked: ServersRequest) -> Response:
        """For agents: iperf3 servers, as long as the answer is read."""
        return _ServersResponse(agent, asked)

    @router.post("/client", responses={200: described("as measured", {"application/json": struct(IperfOutcomes)})})
    async def client(request: Request, asked: ClientRequest) -> Response:
        """For agents: iperf3 clients against those; tells the rates."""
        try:
            work = partial(_run_tests, agent, asked)
            return StructResponse(await _run_in_turn(agent, work, request.receive, force=asked.force))
        except _Gone:
            return Response(status_code=499)  # nobody reads it

    return router


class _ServersResponse(Response):
    """Servers that live as long as this answer."""

    def __init__(self, agent: "Agent", asked: ServersRequest) -> None:
        super().__init__()
        self._agent = agent
        self._request = asked
        self._started = False

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        try:
            await _run_in_turn(self._agent, partial(self._serve, send), receive, force=self._request.force)
            error = f"over after {self._request.seconds:g} s"
        except _Gone:
            return
        except HTTPException as refused:
            if not self._started:
                raise
            error = refused.detail
        await self._send_line(send, IperfServers(error=error), more=False)

    async def _serve(self, send: Send) -> None:
        """Until the time is over or this is cancelled. Raises HTTPException."""
        async with AsyncExitStack() as running:
            try:
                found = [await self._start(running, place) for place in self._request.servers]
            except CannotTell as error:
                raise HTTPException(503, error.message) from None
            await self._send_line(send, IperfServers(tuple(found)))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._request.seconds):
                    while True:
                        await asyncio.sleep(BEAT_S)
                        await self._send_line(send, None)

    async def _start(self, running: AsyncExitStack, place: ListenAddress) -> IperfServer:
        """On the first port that is free. Raises CannotTell."""
        node = self._agent.local.view
        trouble = CannotTell(f"none of the ports {PORTS.start} to {PORTS.stop - 1} is free", "PortTaken")
        for port in PORTS:
            if is_listening(node, port):
                continue
            try:
                where = f"{place.address}%{place.interface}"
                await running.enter_async_context(
                    run_server(node, where, port, limit_s=self._request.seconds, once=False)
                )
            except ToolMissing:
                raise
            except CannotTell as error:
                if not is_listening(node, port):
                    raise  # it was not the port
                trouble = error
                continue
            return IperfServer(place.interface, place.address, port)
        raise trouble

    async def _send_line(self, send: Send, line: IperfServers | None, *, more: bool = True) -> None:
        if not self._started:
            self._started = True
            headers = [(b"content-type", b"application/jsonl")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        body = (msgspec.json.encode(line) if line is not None else b"") + b"\n"
        await send({"type": "http.response.body", "body": body, "more_body": more})


async def _run_tests(agent: "Agent", asked: ClientRequest) -> IperfOutcomes:
    found: list[IperfOutcome] = []
    for reverse in (False, True):
        running = (_run_test(agent, asked, number, reverse=reverse) for number in range(len(asked.tests)))
        found += await asyncio.gather(*running)
    return IperfOutcomes(tuple(found))


async def _run_test(agent: "Agent", asked: ClientRequest, number: int, *, reverse: bool) -> IperfOutcome:
    test: IperfTest = asked.tests[number]
    parameters = IperfParameters.model_construct(
        server=test.server,
        port=test.port,
        seconds=asked.seconds,
        clients=asked.clients,
        omit_seconds=asked.omit_seconds,
    )
    bind = f"{test.address}%{test.interface}"
    view = agent.local.view
    for attempt in range(TRIES):
        try:
            if view.commands.which("iperf3") is None:
                raise ToolMissing("iperf3", "iperf3")
            report = await run_client(view, test.server, parameters, bind=bind, reverse=reverse)
        except CannotTell as error:
            trouble = error.message
            if attempt + 1 == TRIES or not any(said in trouble for said in NOT_YET):
                break
            await asyncio.sleep(AGAIN_S)
        else:
            return IperfOutcome(number, reverse, report)
    return IperfOutcome(number, reverse, trouble=shorten(trouble))


async def _run_in_turn(agent: "Agent", work: Callable[[], Awaitable[Done]], receive: Receive, *, force: bool) -> Done:
    """``work`` while this node's turn is ours and the caller is there. Raises HTTPException or _Gone, also in the
    middle; ``work`` has then ended."""
    if agent.queue.running_heavy:
        raise HTTPException(409, f"busy: the check {agent.queue.running_heavy} runs here")
    begun = asyncio.Event()
    done: list[Done] = []

    async def turn() -> Result:
        begun.set()
        done.append(await work())
        return Result(check=NAME, verdict=Verdict.PASS)

    running = asyncio.create_task(agent.queue.run_heavy(NAME, turn, force=force))
    gone = asyncio.create_task(_wait_for_disconnect(receive))
    beginning = asyncio.create_task(begun.wait())
    try:
        await asyncio.wait([running, gone, beginning], timeout=TURN_S, return_when=asyncio.FIRST_COMPLETED)
        if not (begun.is_set() or running.done() or gone.done()):
            raise HTTPException(
                409, f"busy: no turn within {TURN_S:g} s ({agent.queue.running_heavy or 'another heavy check'})"
            )
        await asyncio.wait([running, gone], return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            raise _Gone
        try:
            running.result()
        except NodeBusy as busy:
            raise HTTPException(409, f"busy: {busy}") from None
        return done[0]
    finally:
        for task in (running, gone, beginning):
            task.cancel()
        await asyncio.gather(running, gone, beginning, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
