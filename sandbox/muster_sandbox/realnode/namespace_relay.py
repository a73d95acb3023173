"""``python -m muster_sandbox.realnode.namespace_relay PID PORT…``: connects two network namespaces on loopback.

Whoever connects to 127.0.0.1:PORT here comes out at 127.0.0.1:PORT of the network namespace of process PID. No packet
crosses: bytes are copied between sockets, so neither side gets a route, an address or a rule for it. Over there,
``--service ADDRESS:PORT=PORT`` leads to 127.0.0.1:PORT, as kube-proxy would have it for the API server's Service.
"""

import argparse
import asyncio
import contextlib
import ctypes
import os
import re
import socket
from pathlib import Path

READY = "passage is open"
_CLONE_NEWNET = 0x40000000  # setns(2); os.setns comes with Python 3.12
_CHUNK = 1 << 16


async def main(arguments: argparse.Namespace) -> None:
    here = {port: socket.create_server(("127.0.0.1", port)) for port in arguments.ports}
    # for good: what is connected or listened on from now on is there
    with Path(f"/proc/{arguments.pid}/ns/net").open() as namespace:  # noqa: ASYNC230 - nothing else runs yet
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}", namespace.name)
    servers = [await asyncio.start_server(LoopbackRelay(port), sock=listener) for port, listener in here.items()]
    if arguments.service:
        address, port, leads_to = re.split("[:=]", arguments.service)
        servers.append(await asyncio.start_server(LoopbackRelay(int(leads_to)), address, int(port)))
    print(READY, flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


class LoopbackRelay:
    """Serves one connection: all that comes goes on to 127.0.0.1:``port``, and back."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
            await asyncio.gather(copy_stream(reader, far_writer), copy_stream(far_reader, writer))
        writer.close()


async def copy_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """All that comes from ``reader`` until its end."""
    with contextlib.suppress(OSError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
    writer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--service")
    parser.add_argument("pid", type=int)
    parser.add_argument("ports", type=int, nargs="+")
    asyncio.run(main(parser.parse_args()))
