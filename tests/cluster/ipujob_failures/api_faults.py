"""What may go wrong between Muster and its API server, for as long as it lasts; and what it looks like to a client."""

import asyncio
import json
import math
from collections.abc import AsyncIterator

import httpx2
from tests.cluster.ipujob_failures.embedded_operator import ProcessFate, Send

READS = ("GET", "HEAD")
# 409 and a lost answer are about writes; everything else meets reads as well
FAULTS = ("409", "429", "500", "hangs", "breaks", "loses answers", "ends watches")


class _Watch(httpx2.AsyncByteStream):
    """An answer that breaks off when the faults say so."""

    def __init__(self, inner: httpx2.AsyncByteStream, ends: asyncio.Event) -> None:
        self._inner = inner
        self._ends = ends

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks = self._inner.__aiter__()
        while True:
            coming = asyncio.ensure_future(chunks.__anext__())
            ended = asyncio.create_task(self._ends.wait())
            try:
                await asyncio.wait([coming, ended], return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    raise httpx2.ReadError("the watch is lost")
                try:
                    chunk = coming.result()
                except StopAsyncIteration:
                    return
            finally:
                for task in (coming, ended):
                    task.cancel()
                await asyncio.gather(coming, ended, return_exceptions=True)
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


class ApiFaults:
    """storm: one of STORMS, or empty. share: of the requests that it meets, 0 to 1. left: so many more, then it is
    over. met: how many it has met."""

    def __init__(self, storm: str = "", left: float = math.inf) -> None:
        self.storm = storm
        self.share = 1.0
        self.left = left
        self.met = 0
        self._turn = 0.0
        self._cut = asyncio.Event()

    def end_watches(self) -> None:
        ended, self._cut = self._cut, asyncio.Event()
        ended.set()

    async def meet(self, request: httpx2.Request, send: Send) -> httpx2.Response:
        reads = request.method in READS
        if not self._hits(reads=reads):
            response = await send(request)
            if request.url.params.get("watch") and response.status_code == 200:
                assert isinstance(response.stream, httpx2.AsyncByteStream)
                response.stream = _Watch(response.stream, self._cut)
            return response
        self.met += 1
        self.left -= 1
        match self.storm:
            case "409":
                return _answer(409, "Conflict", "the object has been modified")
            case "429":
                return _answer(429, "TooManyRequests", "too many requests", retry_after_s=1)
            case "500":
                return _answer(500, "InternalError", "etcdserver: leader changed")
            case "loses answers":
                await (await send(request)).aclose()
            case "hangs":
                await asyncio.Event().wait()
        raise httpx2.ReadError("connection reset by peer")

    def _hits(self, *, reads: bool) -> bool:
        """Evenly: of ten requests a share of 0.3 meets three."""
        if (
            not self.storm
            or self.left <= 0
            or self.storm == "ends watches"
            or (reads and self.storm in ("409", "loses answers"))
        ):
            return False
        self._turn += self.share
        hit = self._turn >= 1.0
        self._turn -= hit
        return hit


class ExposedProcess(ProcessFate):
    """A process whose calls meet these faults."""

    def __init__(self, faults: ApiFaults) -> None:
        super().__init__()
        self._faults = faults

    async def pass_on(self, request: httpx2.Request, send: Send) -> httpx2.Response:
        async def reach(asked: httpx2.Request) -> httpx2.Response:
            return await self._faults.meet(asked, send)

        return await super().pass_on(request, reach)


def _answer(status: int, reason: str, message: str, *, retry_after_s: int | None = None) -> httpx2.Response:
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": status,
            "reason": reason, "message": message}  # fmt: skip
    headers = {"content-type": "application/json"}
    if retry_after_s is not None:
        headers["retry-after"] = str(retry_after_s)
    return httpx2.Response(status, headers=headers, content=json.dumps(body).encode())
