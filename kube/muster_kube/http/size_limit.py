"""Limits the size of requests: a query may name 10,000 nodes, but clients must not exhaust the memory.

The request line and the headers are in memory before anything else is known of a request. So long request lines are
allowed on only a few connections at a time, from the first bytes to the end of the answer. Headers stay short, because
each costs several objects.
"""

LINE_LIMIT = 1 << 20  # bytes; 10,000 nodes with names of a hundred characters
HEADERS_LIMIT = 64 << 10  # bytes; also the limit of a short request line
HEAD_LIMIT = LINE_LIMIT + HEADERS_LIMIT
LONG_AT_ONCE = 8

_long: "set[RequestSize]" = set()


class RequestSize:
    """Counts the bytes before the body of a request."""

    def __init__(self) -> None:
        self._line = 0
        self._line_over = False
        self._headers = 0

    def take(self, data: bytes) -> bytes:
        """Count ``data``. Returns the answer to a request that is too long, otherwise nothing."""
        if not self._line_over:
            end = data.find(b"\n")
            self._line_over = end >= 0
            self._line += len(data) if end < 0 else end + 1
            if self._line > HEADERS_LIMIT and self not in _long:
                if len(_long) >= LONG_AT_ONCE:
                    return _refusal(
                        503, "Service Unavailable", f"{LONG_AT_ONCE} long queries are in progress; try again later"
                    )
                _long.add(self)
            if self._line > LINE_LIMIT:
                return _refusal(414, "URI Too Long", f"the query has more than {LINE_LIMIT} bytes")
            data = b"" if end < 0 else data[end:]
        end = data.find(b"\r\n\r\n")  # a body may follow, which has its own limit
        self._headers += len(data) if end < 0 else end
        if self._headers > HEADERS_LIMIT:
            return _refusal(431, "Request Header Fields Too Large", f"the headers have more than {HEADERS_LIMIT} bytes")
        return b""

    def end_request(self) -> None:
        """The request is complete; the next bytes belong to another one."""
        self._line = self._headers = 0
        self._line_over = False

    def done(self) -> None:
        """The request is answered or aborted."""
        self.end_request()
        _long.discard(self)


def _refusal(status: int, phrase: str, message: str) -> bytes:
    body = f"{message}\n"
    head = f"HTTP/1.1 {status} {phrase}\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n{body}".encode()
