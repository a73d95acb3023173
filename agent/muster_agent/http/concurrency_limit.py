"""Limits concurrent requests, except those of the kubelet's probes.

uvicorn's own limit would also reject /healthz and /readyz: with 256 clients that wait for a check of half an hour, the
kubelet would kill a healthy agent, and Muster would no longer trust its node.
"""

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

AT_ONCE = 256
ALWAYS = frozenset({"/healthz", "/readyz"})


class ConcurrencyLimit:
    """Passes at most ``at_once`` requests at a time to ``app``, not counting those of :data:`ALWAYS`."""

    def __init__(self, app: ASGIApp, at_once: int = AT_ONCE) -> None:
        self._app = app
        self._at_once = at_once
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in ALWAYS:
            await self._app(scope, receive, send)
            return
        if self._under_way >= self._at_once:
            headers = {"retry-after": "10", "connection": "close"}
            refusal = PlainTextResponse(f"{self._at_once} requests are in progress; try again later\n", 503, headers)
            await refusal(scope, receive, send)
            return
        self._under_way += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._under_way -= 1
