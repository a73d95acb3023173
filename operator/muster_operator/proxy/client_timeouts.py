"""HTTP connections with time limits, which uvicorn does not provide.

The server must receive a whole request within the read time and send its response within the write time; the next
request must begin within the idle time. A slower client is disconnected. It delays no other client, because each
connection is handled separately.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from muster_kube.http.slow_clients import GuardedProtocol


@dataclass(frozen=True)
class Limits:
    """Time limits in seconds; see the module."""

    read_s: float
    write_s: float
    idle_s: float


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

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as its base does
        super().connection_made(transport)
        self.arm_timer(self.limits_.read_s)

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
