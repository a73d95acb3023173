"""A server in a thread, for a browser to look at."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

GUARD_S = 120.0  # what hangs fails, what is slow does not


@contextmanager
def served(server: uvicorn.Server, listener: socket.socket) -> Iterator[str]:
    """Its address, while a thread runs it."""
    # not serve(), which takes the signals of the process
    thread = threading.Thread(target=lambda: asyncio.run(server._serve([listener])), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(GUARD_S)
        assert not thread.is_alive(), "the server has not ended"
