"""HTTP connections with time limits, which uvicorn does not provide.

The server must receive a whole request within the read time and send its response within the write time; the next
request must begin within the idle time. A slower client is disconnected. It delays no other client, because each
connection is handled separately. If there are too many connections, the one that has been idle longest is closed.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from muster_kube.process.slow_clients import GuardedProtocol


@dataclass(frozen=True)
class Limits:
    """Time limits in seconds, and the maximum number of connections; see the module."""

    read_s: float
    write_s: float
    idle_s: float
    connections: int = 1024


def timed(limits: Limits) -> type[GuardedProtocol]:
    """The protocol class for uvicorn's ``http`` option."""

    class Timed(_Timed):
        limits_ = limits

    return Timed


class _Timed(GuardedProtocol):
    limits_: Limits

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._is_idle = False
        self._last_at = 0.0  # time on the loop's clock of the connection or of its last complete response

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as its base does
        super().connection_made(transport)
        self._last_at = self.loop.time()
        self.arm_timer(self.limits_.read_s)
        if len(self.connections) > self.limits_.connections:
            silent = [each for each in self.connections if isinstance(each, _Timed) and each.asks_nothing]
            min(silent, key=lambda each: each._last_at).drop()

    @property
    def asks_nothing(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def drop(self) -> None:
        self.connections.discard(self)  # stop counting it now, because connection_lost is called later
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_idle:
            self._is_idle = False
            self.arm_timer(self.limits_.read_s)
        before = self.cycle
        read = before is not None and not before.more_body
        super().data_received(data)
        self._if_read(before_was_read=read and self.cycle is before)

    def on_response_complete(self) -> None:
        self._is_idle = True
        self._last_at = self.loop.time()
        # time to send the rest, and to begin the next request
        self.arm_timer(self.limits_.write_s if self.transport.is_closing() else self.limits_.idle_s)
        before = self.cycle
        super().on_response_complete()
        if self.cycle is not before:  # a pipelined request is already there
            self._is_idle = False
            self.arm_timer(self.limits_.read_s)
            self._if_read(before_was_read=False)

    def _if_read(self, *, before_was_read: bool) -> None:
        cycle = self.cycle
        if not before_was_read and cycle is not None and not cycle.more_body and not cycle.response_complete:
            self.arm_timer(self.limits_.write_s)
