"""HTTP connections that must get on with it: uvicorn bounds how many there are, but not how long one may say nothing.

Without this, as many idle connections as are allowed (a port scan, a client that hangs) would have /healthz refused,
and the kubelet would kill a healthy agent. An answer may take as long as its checks do, and may be silent meanwhile:
what a client owes is to take what has been sent.
"""

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from muster_agent.http.size_limit import HEAD_LIMIT, RequestSize
from muster_kube.process.slow_clients import GuardedProtocol

REQUEST_S = 10.0  # from connecting, or from the last answer's keep-alive, until a request is there in whole
ANSWER_S = 60.0  # between two looks at whether the client takes its answer
TAKEN_BYTES = 64 << 10  # it has to take so much between two looks, or all there is


class Impatient(GuardedProtocol):
    """Drops a connection whose client takes too long to ask or to take its answer, or asks for too much."""

    head_limit = HEAD_LIMIT
    request_s = REQUEST_S
    answer_s = ANSWER_S

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._size = RequestSize()
        self._refused = False
        self._left = 0  # bytes not taken at the last look
        self._drained = False  # since the last look

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as its base does
        super().connection_made(transport)
        self.arm_timer(self.request_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._size.done()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.cycle is None or self.cycle.response_complete:
            before = self.cycle
            if self._refused:
                return
            if complaint := self._size.take(data):
                self._refuse(complaint)
                return
            super().data_received(data)
            if self.cycle is not before:
                self._size.is_there()
        else:
            super().data_received(data)

    def _refuse(self, complaint: bytes) -> None:
        # not closed: what is still on its way would have the client's system drop the answer unread (RFC 9112, 9.6)
        self._refused = True
        self._size.done()
        self.transport.write(complaint)
        self.transport.write_eof()

    def resume_writing(self) -> None:
        self._drained = True
        super().resume_writing()

    def on_response_complete(self) -> None:
        self._size.done()
        super().on_response_complete()
        if not self.transport.is_closing() or self.transport.get_write_buffer_size():
            self.arm_timer(self.timeout_keep_alive + self.request_s)

    def timer_expired(self) -> None:
        if self._gets_on():
            self.arm_timer(self.answer_s)
        else:
            super().timer_expired()

    def _gets_on(self) -> bool:
        cycle = self.cycle
        if cycle is None:
            return False  # no request came
        if not cycle.response_started:
            return not cycle.more_body  # a check runs, which has a limit of its own; or half a request came
        if cycle.response_complete and not self.transport.get_write_buffer_size():
            return False  # no other request came
        return self._takes()

    def _takes(self) -> bool:
        before, drained = self._left, self._drained
        self._left, self._drained = self.transport.get_write_buffer_size(), False
        return not self._left or not before or drained or before - self._left >= TAKEN_BYTES
