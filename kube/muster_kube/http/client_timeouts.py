"""Closes HTTP connections of slow clients; uvicorn limits the number of connections but not their idle time.

Otherwise idle connections (a port scan, a client that hangs) could exhaust the limit, and the kubelet would kill a
healthy agent. An answer may take as long as its checks, and be silent meanwhile; a client must read what has been sent.
"""

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from muster_kube.http.size_limit import HEAD_LIMIT, RequestSize
from muster_kube.http.slow_clients import GuardedProtocol

REQUEST_S = 10.0  # limit for a complete request, from the connection or from the end of the keep-alive time
ANSWER_S = 60.0  # interval at which the client's progress in reading is checked
TAKEN_BYTES = 64 << 10  # minimum that it must read per interval, unless it has read everything


class Impatient(GuardedProtocol):
    """Closes a connection whose client is too slow to send its request or to read the answer, or sends too much."""

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
        self._left = 0  # bytes not read at the last check
        self._drained = False  # since the last check

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
            if answer := self._size.take(data):
                self._refuse(answer)
                return
            super().data_received(data)
            if self.cycle is not before:
                self._size.end_request()
        else:
            super().data_received(data)

    def _refuse(self, answer: bytes) -> None:
        # not closed: data still in flight would make the client's system discard the answer (RFC 9112, 9.6)
        self._refused = True
        self._size.done()
        self.transport.write(answer)
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
        if self._makes_progress():
            self.arm_timer(self.answer_s)
        else:
            super().timer_expired()

    def _makes_progress(self) -> bool:
        cycle = self.cycle
        if cycle is None:
            return False  # no request has arrived
        if not cycle.response_started:
            return not cycle.more_body  # a check runs, which has its own time limit; or the request is incomplete
        if cycle.response_complete and not self.transport.get_write_buffer_size():
            return False  # no further request has arrived
        return self._reads()

    def _reads(self) -> bool:
        before, drained = self._left, self._drained
        self._left, self._drained = self.transport.get_write_buffer_size(), False
        return not self._left or not before or drained or before - self._left >= TAKEN_BYTES
