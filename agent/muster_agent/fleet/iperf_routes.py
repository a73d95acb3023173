"""The routes for measuring the network, which another agent calls: POST /iperf/interfaces, servers and client.

Servers live as long as the connection that requested them, at most :data:`HOLD_LIMIT_S`, so they end when the caller
ends or is disconnected. Both nodes occupy their queue of heavy checks meanwhile. Neither waits for another heavy check,
so two nodes cannot wait for each other. http/routes.py authorizes callers, because the routes send traffic to addresses
that the caller chooses.
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
    FIRST_S,
    PORTS,
    REOPEN_S,
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
TURN_S = 10.0  # limit for the check that the node is idle
# errors of a client that connects while an iperf3 server reopens its port after a test
NOT_YET = ("Connection reset", "Connection refused", "busy running a test")
AGAIN_S = 0.5  # pause between two tries
BEAT_S = 5.0  # interval of empty lines, which reveal a dead connection

Done = TypeVar("Done")


class _Gone(Exception):
    """The caller has disconnected."""


def iperf_router(agent: "Agent") -> APIRouter:
    """The routes. The application must admit only agents and users with the same permissions."""
    router = APIRouter(
        prefix="/iperf",
        responses={
            401: described("the caller has no token"),
            403: described("permission denied"),
            409: described("the node is busy"),
            413: described("the body is too long"),
            503: described("the node cannot do it; the text says why"),
        },
    )

    @router.post(
        "/interfaces", responses={200: described("the interfaces", {"application/json": struct(InterfaceList)})}
    )
    async def interfaces(body: InterfacesRequest) -> Response:
        """For agents: lists the interfaces of a plane with their addresses."""
        try:
            found = InterfaceList(tuple(await read_interfaces(agent.local.view, body.plane)))
        except NotHere as error:
            found = InterfaceList(skipped=error.reason, why=error.message)
        except CannotTell as error:
            raise HTTPException(503, error.message) from None
        return StructResponse(found)

    @router.post(
        "/servers",
        response_class=Response,
        responses={
            200: described("lines; empty ones keep the connection alive", {"application/jsonl": struct(IperfServers)})
        },
    )
    async def servers(body: ServersRequest) -> Response:
        """For agents: runs iperf3 servers until the caller disconnects."""
        return _ServersResponse(agent, body)

    @router.post(
        "/client", responses={200: described("the measured bandwidths", {"application/json": struct(IperfOutcomes)})}
    )
    async def client(request: Request, body: ClientRequest) -> Response:
        """For agents: runs iperf3 clients and returns the bandwidths."""
        try:
            work = partial(_run_tests, agent, body)
            return StructResponse(await _run_in_turn(agent, work, request.receive, force=body.force))
        except _Gone:
            return Response(status_code=499)  # the caller has disconnected

    return router


class _ServersResponse(Response):
    """An answer with servers that live as long as it."""

    def __init__(self, agent: "Agent", body: ServersRequest) -> None:
        super().__init__()
        self._agent = agent
        self._request = body
        self._started = False

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        try:
            await _run_in_turn(self._agent, partial(self._serve, send), receive, force=self._request.force)
            error = f"the time limit of {self._request.seconds:g} s is over"
        except _Gone:
            return
        except HTTPException as refused:
            if not self._started:
                raise
            error = refused.detail
        await self._send_line(send, IperfServers(error=error), more=False)

    async def _serve(self, send: Send) -> None:
        """Run the servers until the time limit or until cancelled. Raises HTTPException."""
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
        """Start a server on the first free port. Raises CannotTell."""
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
                    raise  # another reason than the port
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


async def _run_tests(agent: "Agent", body: ClientRequest) -> IperfOutcomes:
    found: list[IperfOutcome] = []
    for reverse in (False, True):
        running = (_run_test(agent, body, number, reverse=reverse) for number in range(len(body.tests)))
        found += await asyncio.gather(*running)
    return IperfOutcomes(tuple(found))


async def _run_test(agent: "Agent", body: ClientRequest, number: int, *, reverse: bool) -> IperfOutcome:
    test: IperfTest = body.tests[number]
    parameters = IperfParameters.model_construct(
        server=test.server,
        port=test.port,
        seconds=body.seconds,
        clients=body.clients,
        omit_seconds=body.omit_seconds,
    )
    bind = f"{test.address}%{test.interface}"
    view = agent.local.view
    loop = asyncio.get_running_loop()
    deadline = loop.time() + (REOPEN_S if reverse else FIRST_S)
    while True:
        try:
            if view.commands.which("iperf3") is None:
                raise ToolMissing("iperf3", "iperf3")
            return IperfOutcome(
                number, reverse, await run_client(view, test.server, parameters, bind=bind, reverse=reverse)
            )
        except CannotTell as error:
            if loop.time() + AGAIN_S > deadline or not any(text in error.message for text in NOT_YET):
                return IperfOutcome(number, reverse, trouble=shorten(error.message))
        await asyncio.sleep(AGAIN_S)


async def _run_in_turn(agent: "Agent", work: Callable[[], Awaitable[Done]], receive: Receive, *, force: bool) -> Done:
    """Run ``work`` as a heavy check while the caller is connected. Raises HTTPException or _Gone, also during the run;
    ``work`` has then ended."""
    if agent.queue.running_heavy:
        raise HTTPException(409, f"busy: check {agent.queue.running_heavy} is running on this node")
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
                409, f"busy: waited {TURN_S:g} s for {agent.queue.running_heavy or 'another heavy check'}"
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
