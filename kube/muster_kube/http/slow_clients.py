"""An HTTP connection with one timer, for the client's next step: send a request, receive the response, send the next
request. uvicorn limits only the time between two requests.

The server sets the limits: an agent's response may take minutes, the V-IPU proxy's may not. Import this only to serve
HTTP: it loads uvicorn.
"""

import asyncio
from typing import Any, Protocol

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState


class ConnectionRecord(Protocol):
    """What the server keeps of a connection (connection_guard)."""

    def renew(self) -> None:
        """A response is complete: the connection has been idle since now."""

    def forget(self) -> None:
        """The connection is lost."""


class GuardedProtocol(H11Protocol):
    """For uvicorn's ``http``: drops a connection whose timer expires. head_limit: bytes of request line and headers."""

    head_limit = 64 << 10  # a token has a few thousand

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = h11.Connection(h11.SERVER, self.head_limit)
        self.record: ConnectionRecord | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """No request is complete and unanswered, so closing it costs the client nothing but a new connection."""
        return self.cycle is None or self.cycle.response_complete

    def arm_timer(self, seconds: float | None) -> None:
        """Replace the current timer; None: no timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self.timer_expired)

    def timer_expired(self) -> None:
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """The client has sent something that is not HTTP. If a request of it is still being answered, uvicorn would
        fail to send the rest; if an answer has begun or ended before its request, uvicorn would fail to send this one.
        It would log an error of 3 KB for each such request."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        super().send_400_response(msg)

    def on_response_complete(self) -> None:
        if self.record is not None:
            self.record.renew()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self.arm_timer(None)
        if self.record is not None:
            self.record.forget()
        super().connection_lost(exc)
