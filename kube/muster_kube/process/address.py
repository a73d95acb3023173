"""The sockets that the parts listen on."""

import socket


def bind_socket(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet, with TCP_NODELAY. Raises OSError, which names host and port."""
    try:
        return _bind(host, port)
    except OSError as error:
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error


def _bind(host: str, port: int) -> socket.socket:
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
    # asyncio sets TCP_NODELAY only on IPPROTO_TCP sockets; without it a response waits 40 ms for a delayed ACK
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.setblocking(False)
    except BaseException:
        bound.close()
        raise
    return bound
