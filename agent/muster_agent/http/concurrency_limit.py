"""So many requests at a time, and always an answer for the kubelet.

uvicorn's own limit refuses whoever comes next: with 256 callers who wait for a check that takes half an hour, /healthz
and /readyz would be refused, too, and a healthy agent be killed and its node no longer be believed.
"""

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

AT_ONCE = 256
ALWAYS = frozenset({"/healthz", "/readyz"})


class ConcurrencyLimit:
    """``app`` for at most ``at_once`` requests at a time; those of :data:`ALWAYS` are not counted."""

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
            refusal = PlainTextResponse(f"{self._at_once} requests are being answered already\n", 503, headers)
            await refusal(scope, receive, send)
            return
        self._under_way += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._under_way -= 1
