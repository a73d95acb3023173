"""The sockets on which components listen."""

import socket


def bind_socket(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet, with TCP_NODELAY for its connections. Raises OSError."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
    # IPPROTO_TCP explicitly: asyncio sets TCP_NODELAY only then; without it a response waits 40 ms for a delayed ACK
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.setblocking(False)
    except BaseException:
        bound.close()
        raise
    return bound
