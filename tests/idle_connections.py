"""Connections that ask nothing, held by a process of their own: as many as a pod of a stranger may open.

``python idle_connections.py HOST PORT COUNT [tls] [again]`` prints ``open`` once all are, or no more can be opened,
and holds them until its input ends.
"""

import contextlib
import resource
import select
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PAUSE_S = 0.1  # between two looks at what the server has closed
AT_ONCE = 2  # opened again after a look: a flood of new ones would be another attack
STRANGER = "127.0.0.2"
_BIND_ADDRESS_NO_PORT = 24  # linux/in.h: connect() chooses the port, which is then free for other destinations


@contextmanager
def idle_connections(host: str, port: int, count: int, *, tls: bool = False, again: bool = False) -> Iterator[None]:
    """``count`` connections from STRANGER have been opened. tls: after a handshake. again: what the server closes or
    refuses is tried again, so a place that it frees is soon taken."""
    words = [sys.executable, str(Path(__file__)), host, str(port), str(count)]
    words += [name for name, wanted in (("tls", tls), ("again", again)) if wanted]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        yield
        holder.stdin.close()  # it ends


def main(host: str, port: int, count: int, *, tls: bool, again: bool) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    context = unverified() if tls else None
    held: dict[int, socket.socket] = {}
    with contextlib.suppress(TimeoutError):  # the server accepts no more: the stranger has what it wants
        for _ in range(count):
            if (one := _opened(host, port, context)) is not None:
                held[one.fileno()] = one
    print("open", flush=True)
    poll = select.poll()
    ended = sys.stdin.fileno()
    for descriptor in (ended, *(held if again else ())):
        poll.register(descriptor, select.POLLIN)
    while ended not in (ready := [descriptor for descriptor, _ in poll.poll(0 if again else None)]):
        for descriptor in ready:
            if _closed(held[descriptor]):
                poll.unregister(descriptor)
                held.pop(descriptor).close()
        for _ in range(min(AT_ONCE, count - len(held))):
            with contextlib.suppress(TimeoutError):
                if (one := _opened(host, port, context)) is not None:
                    held[one.fileno()] = one
                    poll.register(one, select.POLLIN)
        time.sleep(PAUSE_S)


def _opened(host: str, port: int, context: ssl.SSLContext | None) -> socket.socket | None:
    """None: the server has closed it at once. Raises TimeoutError if it accepts no more."""
    one = socket.socket()
    one.settimeout(5)
    one.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)
    one.bind((STRANGER, 0))
    try:
        one.connect((host, port))
        return one if context is None else context.wrap_socket(one)
    except OSError as error:
        one.close()
        if isinstance(error, TimeoutError):
            raise
        return None


def _closed(one: socket.socket) -> bool:
    """Nothing was asked, so what can be read is the end, or a session ticket of TLS."""
    one.setblocking(False)
    try:
        return not one.recv(4096)
    except (ssl.SSLWantReadError, BlockingIOError):
        return False
    except OSError:
        return True


def unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), tls="tls" in sys.argv, again="again" in sys.argv)
