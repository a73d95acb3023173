"""HTTP connections that must get on with it: uvicorn bounds how many there are, but not how long one may say nothing.

Without this, as many idle connections as are allowed (a port scan, a client that hangs) would have /healthz refused,
and the kubelet would kill a healthy agent.
"""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 10.0  # from connecting, or from the last answer's keep-alive, until a request is there in whole
ANSWER_S = 60.0  # for the answer, once it has begun, which a client may refuse to take


class Impatient(H11Protocol):
    """Drops a connection whose client takes too long to ask, or to take its answer."""

    request_s = REQUEST_S
    answer_s = ANSWER_S

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as its base does
        super().connection_made(transport)
        self._patience: asyncio.TimerHandle | None = None
        self._overdue: object = None
        self._wait(self.request_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait(None)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() or self.transport.get_write_buffer_size():
            self._wait(self.timeout_keep_alive + self.request_s)

    def _wait(self, seconds: float | None) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._patience = None if seconds is None else self.loop.call_later(seconds, self._lose_patience)

    def _lose_patience(self) -> None:
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering and self._overdue is not self.cycle:
            if self.cycle.response_started:  # before that a check runs, which has a limit of its own
                self._overdue = self.cycle
            self._wait(self.answer_s)
        else:
            self.transport.abort()
