"""Streams the answer of /status: each node as soon as it answers, then the summary and the runtime."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from muster_agent.query import text_layout
from muster_agent.query.node_answer import Ending, NodeAnswer
from muster_agent.query.status_query import StatusQuery
from muster_checks.base.vocabulary import Verdict, shorten, worst

log = logging.getLogger(__name__)

MEDIA_TYPES = {"text": "text/plain; charset=utf-8", "json": "application/json", "jsonl": "application/jsonl"}


async def render_answer(
    nodes: AsyncGenerator[NodeAnswer, None], query: StatusQuery, clock: Callable[[], float]
) -> AsyncGenerator[bytes, None]:
    """The answer in the requested format. An exception before the first node propagates; a later one ends the answer
    with an error message."""
    started = clock()
    write = _text if query.fmt == "text" else _json if query.fmt == "json" else _jsonl
    async with aclosing(nodes):
        first = await anext(nodes, None)
        async for chunk in write(_Answers(first, nodes), query, lambda: clock() - started):
            yield chunk.encode()


class _Answers:
    """The nodes' answers, and their summary once all have been iterated."""

    def __init__(self, first: NodeAnswer | None, rest: AsyncIterator[NodeAnswer]) -> None:
        self._first = first
        self._rest = rest
        self._verdict: Verdict | None = None
        self.summary: dict[str, list[str]] = {}
        self.error = ""

    async def __aiter__(self) -> AsyncIterator[NodeAnswer]:
        if self._first is None:
            return
        yield self._record(self._first)
        try:
            async for node in self._rest:
                yield self._record(node)
        except Exception as error:  # part of the answer is sent already, so its end must say that it is incomplete
            log.exception("answer of /status ends early")
            self.error = shorten(f"the answer is incomplete: {type(error).__name__}: {error}", 1024)

    def _record(self, node: NodeAnswer) -> NodeAnswer:
        self.summary[node.node] = text_layout.node_status(node)
        self._verdict = node.verdict if self._verdict is None else worst([self._verdict, node.verdict])
        return node

    def ending(self, query: StatusQuery, runtime_s: float) -> Ending:
        """The end of the answer. The verdict of no nodes is UNKNOWN."""
        verdict = self._verdict or Verdict.UNKNOWN
        return Ending(
            summary=self.summary, runtime_seconds=runtime_s, verdict=verdict, notes=query.notes, error=self.error
        )


async def _text(answers: _Answers, query: StatusQuery, runtime_s: Callable[[], float]) -> AsyncIterator[str]:
    before = text_layout.heading(query.hosts, query.job, query.nodelabel)
    async for node in answers:
        yield before + text_layout.node_block(node, query.url_query(node.node))
        before = "\n\n"
    summary = text_layout.summary_block(answers.summary)
    ending = text_layout.ending(runtime_s(), query.notes, answers.error)
    yield f"{before if not answers.summary else ''}\n{summary}\n{ending}"


async def _json(answers: _Answers, query: StatusQuery, runtime_s: Callable[[], float]) -> AsyncIterator[str]:
    before = '{"nodes":['
    async for node in answers:
        yield f"{before}\n{_encoded(node)}"
        before = ","
    ending = _encoded(answers.ending(query, runtime_s()))
    yield f"{before if not answers.summary else ''}\n],{ending[1:]}\n"


async def _jsonl(answers: _Answers, query: StatusQuery, runtime_s: Callable[[], float]) -> AsyncIterator[str]:
    async for node in answers:
        yield f"{_encoded(node)}\n"
    yield f"{_encoded(answers.ending(query, runtime_s()))}\n"


def _encoded(value: msgspec.Struct) -> str:
    return msgspec.json.encode(value).decode()


class AnswerStream(Response):
    """Sends ``chunks`` no faster than the client reads them. When the client disconnects, it closes ``chunks``, which
    cancels the work behind them. An exception before the first chunk propagates."""

    def __init__(self, chunks: AsyncGenerator[bytes, None], media_type: str) -> None:
        super().__init__(media_type=media_type)
        del self.headers["content-length"]  # unknown until the end
        self._chunks = chunks

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(send))
        gone = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            await asyncio.wait([sending, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)
        if not sending.cancelled():
            sending.result()

    async def _send(self, send: Send) -> None:
        async with aclosing(self._chunks) as chunks:
            chunk = await anext(chunks)
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            async for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
