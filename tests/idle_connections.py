"""Connections that ask nothing, held by a process of their own: as many as a pod of a stranger may open.

``python idle_connections.py HOST PORT COUNT [tls]`` prints ``open`` once all are, or no more can be opened, and
holds them until its input ends.
"""

import contextlib
import resource
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def idle_connections(host: str, port: int, count: int, *, tls: bool = False) -> Iterator[None]:
    """``count`` connections have been opened; what the server closes is not opened again. tls: after a handshake."""
    words = [sys.executable, str(Path(__file__)), host, str(port), str(count), *(["tls"] if tls else [])]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        yield
        holder.stdin.close()  # it ends


def main(host: str, port: int, count: int, *, tls: bool) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    held = []
    for _ in range(count):
        one = socket.socket()
        one.settimeout(5)
        held.append(one)
        try:
            one.connect((host, port))
        except TimeoutError:
            break  # the server accepts no more: the stranger has what it wants
        if tls:
            with contextlib.suppress(OSError):  # the server has closed it
                held.append(unverified().wrap_socket(one))
    print("open", flush=True)
    sys.stdin.read()


def unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), tls=sys.argv[4:] == ["tls"])
