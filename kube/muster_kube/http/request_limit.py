"""Limits concurrent requests, except those of the kubelet's probes.

uvicorn's own limit would also reject /healthz and /readyz: with 256 clients that wait for a check of half an hour, the
kubelet would kill a healthy agent, and Muster would no longer trust its node.
"""

from collections import Counter

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from muster_kube.http.connection_guard import ConnectionLimits

ALWAYS = frozenset({"/healthz", "/readyz", "/health"})  # /health: the V-IPU proxy's, as in the original


class RequestLimit:
    """Passes the requests that ``limits`` allows at a time to ``app``, not counting those of :data:`ALWAYS`."""

    def __init__(self, app: ASGIApp, limits: ConnectionLimits) -> None:
        self._app = app
        self._limits = limits
        self._under_way: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in ALWAYS:
            await self._app(scope, receive, send)
            return
        address = scope["client"][0] if scope["client"] else ""
        if limit := self._reached(address):
            headers = {"retry-after": "10", "connection": "close"}
            refusal = PlainTextResponse(f"{limit} are in progress; try again later\n", 503, headers)
            await refusal(scope, receive, send)
            return
        self._under_way[address] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._under_way[address] -= 1
            if not self._under_way[address]:
                del self._under_way[address]

    def _reached(self, address: str) -> str:
        if self._under_way[address] >= self._limits.requests_per_address:
            return f"{self._limits.requests_per_address} requests from this address"
        if self._under_way.total() >= self._limits.requests:
            return f"{self._limits.requests} requests"
        return ""
