"""How long a request may be: 10,000 nodes fit into a query, and no stranger fills the memory with them.

Query and headers are in memory in whole before anything is known of them. So a long first line is for a few
connections at a time, from its first bytes to the end of its answer, as it is kept that long; and headers, of which
each line costs a few objects, stay short.
"""

LINE_LIMIT = 1 << 20  # bytes; 10,000 nodes with names of a hundred characters
HEADERS_LIMIT = 64 << 10  # bytes; also of what is a short line
HEAD_LIMIT = LINE_LIMIT + HEADERS_LIMIT
LONG_AT_ONCE = 8

_long: "set[RequestSize]" = set()


class RequestSize:
    """Counts what comes before a request is there."""

    def __init__(self) -> None:
        self._line = 0
        self._line_over = False
        self._headers = 0

    def take(self, data: bytes) -> bytes:
        """What is answered to a request that is too long; empty: nothing, go on."""
        if not self._line_over:
            end = data.find(b"\n")
            self._line_over = end >= 0
            self._line += len(data) if end < 0 else end + 1
            if self._line > HEADERS_LIMIT and self not in _long:
                if len(_long) >= LONG_AT_ONCE:
                    return _refusal(503, "Service Unavailable", f"{LONG_AT_ONCE} long queries are under way already")
                _long.add(self)
            if self._line > LINE_LIMIT:
                return _refusal(414, "URI Too Long", f"a query of more than {LINE_LIMIT} bytes")
            data = b"" if end < 0 else data[end:]
        end = data.find(b"\r\n\r\n")  # a body may follow, whose size is no matter of ours
        self._headers += len(data) if end < 0 else end
        if self._headers > HEADERS_LIMIT:
            return _refusal(431, "Request Header Fields Too Large", f"more than {HEADERS_LIMIT} bytes of headers")
        return b""

    def is_there(self) -> None:
        """The request is; what comes now is another one."""
        self._line = self._headers = 0
        self._line_over = False

    def done(self) -> None:
        """The request is answered, or will never be there."""
        self.is_there()
        _long.discard(self)


def _refusal(status: int, phrase: str, message: str) -> bytes:
    body = f"{message}\n"
    head = f"HTTP/1.1 {status} {phrase}\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n{body}".encode()
