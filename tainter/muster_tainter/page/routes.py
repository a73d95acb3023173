"""The fleet page over HTTP: its files, the snapshot, the stream, one node, and clearing."""

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Annotated

from fastapi import Header, Query, Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from muster_kube.http.responses import StructResponse, described, struct
from muster_kube.http.service import Service
from muster_tainter.fleet.interface import Fleet
from muster_tainter.http.responses import JSON_STATUS, BearerToken
from muster_tainter.http.volume_trials import HttpRefusal
from muster_tainter.page.clear import ClearAnswer, ClearHandler, ClearRequest
from muster_tainter.page.detail import NodeDetail, describe_node
from muster_tainter.page.feed import LISTENERS, FleetFeed, FleetSnapshot
from muster_tainter.page.static_files import FILES, NEVER_STORED, SAFE, TEXT_SCHEMA, TYPES, answer_file, text_content

_PIECE = 64 << 10  # bytes


class EventStream(Response):
    """Ends when the client disconnects or the events end. Raises HttpRefusal if there are too many streams."""

    def __init__(self, feed: FleetFeed, events: AsyncIterator[bytes]) -> None:
        super().__init__(media_type="text/event-stream", headers={**SAFE, **NEVER_STORED, "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._feed = feed
        self._events = events

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        # counted in the same step as it is compared, because many may begin in one turn of the event loop
        if self._feed.listeners >= LISTENERS:
            reason = f"{LISTENERS} pages are open, which is the limit: this page polls every few seconds instead"
            raise HttpRefusal(503, "ServiceUnavailable", reason, {"Retry-After": "10"})
        with self._feed.listening():
            await self._stream(receive, send)

    async def _stream(self, receive: Receive, send: Send) -> None:
        writing = asyncio.create_task(self._write(send))
        gone = asyncio.create_task(_hung_up(receive))
        try:
            await asyncio.wait([writing, gone], return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
        finally:
            for task in (writing, gone):
                task.cancel()
            await asyncio.gather(writing, gone, return_exceptions=True)

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for event in self._events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def add_page(
    service: Service,
    fleet: Fleet,
    feed: FleetFeed,
    clear_handler: ClearHandler,
    *,
    now: Callable[[], float] = time.time,
) -> None:
    """Add the page's routes to the tainter's service."""
    service.structs += [FleetSnapshot, NodeDetail, ClearAnswer]

    @service.get("/", response_class=Response, responses={200: described("the page", text_content("text/html"))})
    async def page(request: Request) -> Response:
        """The fleet page."""
        return answer_file(request, "index.html")

    @service.get(
        "/page/{name}",
        response_class=Response,
        responses={
            200: described("the file", dict.fromkeys(TYPES.values(), TEXT_SCHEMA)),
            404: described("no such file", JSON_STATUS),
        },
    )
    async def file(request: Request, name: str) -> Response:
        """A file of the page."""
        if name not in FILES:
            raise HttpRefusal(404, "NotFound", f"{name[:40]!r}: expected {', '.join(sorted(FILES))}")
        return answer_file(request, name)

    @service.get(
        "/api/fleet", responses={200: described("the fleet and its mark", {"application/json": struct(FleetSnapshot)})}
    )
    async def whole_fleet(request: Request) -> Response:
        """All nodes by pool and domain, and the state of budgets, incidents and the pause, as the page shows them."""
        packed = await feed.fleet()
        headers = {**NEVER_STORED, "Vary": "Accept-Encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(packed, headers={**headers, "Content-Encoding": "gzip"}, media_type="application/json")
        return StreamingResponse(_unpacked(packed), headers=headers, media_type="application/json")

    @service.get(
        "/api/stream",
        response_class=Response,
        responses={
            200: described("an endless stream of rows, state, beat and resync", text_content("text/event-stream")),
            503: described("too many pages are open", JSON_STATUS),
        },
    )
    async def stream(
        after: Annotated[str, Query(description="the mark after which changes are sent")] = "",
        last_event_id: Annotated[str, Header(description="the same, sent by a browser that reconnects")] = "",
    ) -> Response:
        """Server-sent events: changes after ?after=MARK, where MARK is the `mark` of /api/fleet."""
        return EventStream(feed, feed.events(last_event_id or after))

    @service.get(
        "/api/nodes/{name}",
        responses={
            200: described("the node", {"application/json": struct(NodeDetail)}),
            404: described("no such node", JSON_STATUS),
        },
    )
    async def node(name: str) -> Response:
        """The details of one node, as shown in the page's panel."""
        known = fleet.node(name)
        if known is None:
            raise HttpRefusal(404, "NotFound", f"no node {name[:80]!r}")
        common, devices = feed.common_taints(name), feed.devices(name)
        detail = describe_node(known, fleet.health_of(name), fleet.policy(), now(), common, devices)
        return StructResponse(detail, headers=NEVER_STORED)

    @service.post(
        "/api/clear",
        responses={
            200: described("what was cleared", {"application/json": struct(ClearAnswer)}),
            401: described("no token, or an invalid one", JSON_STATUS),
            403: described("the token's user has no permission to patch the NodeHealth", JSON_STATUS),
            404: described("no such node", JSON_STATUS),
            409: described("the object keeps changing; try again", JSON_STATUS),
            503: described("the API server is unreachable", JSON_STATUS),
        },
    )
    async def clear(token: BearerToken, request: ClearRequest) -> Response:
        """Clear findings as `muster clear` does, in the name of the token's user."""
        return StructResponse(await clear_handler.clear(token, request), headers=NEVER_STORED)


async def _unpacked(packed: bytes) -> AsyncIterator[bytes]:
    """Piece by piece: a client that reads slowly costs no memory."""
    unpacking = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)  # of gzip
    while not unpacking.eof:
        yield unpacking.decompress(packed, _PIECE)
        packed = unpacking.unconsumed_tail
