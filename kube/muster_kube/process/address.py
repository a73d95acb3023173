"""Where the parts listen."""

import socket


def bind_socket(host: str, port: int) -> socket.socket:
    """A socket that is not listening yet; connections of it send at once. Raises OSError."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
    # named, as asyncio sets TCP_NODELAY on nothing else; without it an answer waits 40 ms for a delayed ACK
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.setblocking(False)
    except BaseException:
        bound.close()
        raise
    return bound
