"""HTTP connections that must get on with it; uvicorn bounds none of this by itself.

A request has to be here in whole within the read time, its answer written and taken within the write time, the next
request begun within the idle time. A client that is slower is dropped; meanwhile it holds up nobody, as each
connection is read and written on its own. Where there are too many connections, the one that has asked nothing for the
longest time makes room for a new one.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from muster_kube.process.slow_clients import GuardedProtocol


@dataclass(frozen=True)
class Limits:
    """Seconds, and how many connections there may be at once; see the module."""

    read_s: float
    write_s: float
    idle_s: float
    connections: int = 1024


def timed(limits: Limits) -> type[GuardedProtocol]:
    """The protocol for uvicorn's ``http``."""

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
        self._last_at = 0.0  # on the loop's clock, when it was made or its last answer was complete

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
        self.connections.discard(self)  # it counts no more, though its end is told later
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
        # what is still to be sent, and the next request to begin
        self.arm_timer(self.limits_.write_s if self.transport.is_closing() else self.limits_.idle_s)
        before = self.cycle
        super().on_response_complete()
        if self.cycle is not before:  # it was there already
            self._is_idle = False
            self.arm_timer(self.limits_.read_s)
            self._if_read(before_was_read=False)

    def _if_read(self, *, before_was_read: bool) -> None:
        cycle = self.cycle
        if not before_was_read and cycle is not None and not cycle.more_body and not cycle.response_complete:
            self.arm_timer(self.limits_.write_s)
