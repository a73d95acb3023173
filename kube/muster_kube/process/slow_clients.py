"""HTTP connections under a time limit: uvicorn bounds how many there are, but not how long a client may take.

Each connection has one timer, armed for what its client has to do next: send a request, take the answer, ask again.
How long that may take, and what counts as slow, is the server's to say: an agent's answer may take minutes, the V-IPU
proxy's may not. Import it only where HTTP is served: it loads uvicorn.
"""

import asyncio
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState


class GuardedProtocol(H11Protocol):
    """For uvicorn's ``http``: drops a connection whose timer expires. head_limit: bytes of request line and headers"""

    head_limit = 64 << 10  # a token has some thousand

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = h11.Connection(h11.SERVER, self.head_limit)
        self._timer: asyncio.TimerHandle | None = None

    def arm_timer(self, seconds: float | None) -> None:
        """Replaces the timer that is armed; None: no timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self.timer_expired)

    def timer_expired(self) -> None:
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.arm_timer(None)
        super().connection_lost(exc)
