"""The sockets that the parts listen on."""

import socket

BACKLOG = 4096  # somaxconn of Linux since 5.4; a full queue makes the kernel drop a probe's SYN, sent again after 1 s


def open_listener(host: str, port: int) -> socket.socket:
    """A socket that listens: a client that connects before the server runs waits for it. Otherwise as bind_socket."""
    return _open(host, port, listens=True)


def bind_socket(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet, so that clients are refused, with TCP_NODELAY. Raises OSError, which
    names host and port."""
    return _open(host, port, listens=False)


def _open(host: str, port: int, *, listens: bool) -> socket.socket:
    try:
        return _bind(host, port, listens)
    except OSError as error:
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error


def _bind(host: str, port: int, listens: bool) -> socket.socket:
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
    # asyncio sets TCP_NODELAY only on IPPROTO_TCP sockets; without it a response waits 40 ms for a delayed ACK
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.setblocking(False)
        if listens:
            bound.listen(BACKLOG)
    except BaseException:
        bound.close()
        raise
    return bound
