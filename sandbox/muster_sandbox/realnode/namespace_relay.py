"""``python -m muster_sandbox.realnode.namespace_relay PID PORT…``: connects two network namespaces on loopback.

A connection to 127.0.0.1:PORT in this network namespace reaches 127.0.0.1:PORT in the one of process PID. The relay
copies bytes between sockets, so neither namespace needs an address, a route or a firewall rule for the other. In the
namespace of PID, ``--service ADDRESS:PORT=TARGET`` relays ADDRESS:PORT to 127.0.0.1:TARGET, as kube-proxy does for the
API server's Service.
"""

import argparse
import asyncio
import ctypes
import os
import re
import socket
from pathlib import Path

from muster_sandbox.relay import LoopbackRelay

READY = "passage is open"
_CLONE_NEWNET = 0x40000000  # setns(2); os.setns needs Python 3.12


async def main(arguments: argparse.Namespace) -> None:
    here = {port: socket.create_server(("127.0.0.1", port)) for port in arguments.ports}
    # Not undone: every later connection and listener belongs to the other namespace.
    with Path(f"/proc/{arguments.pid}/ns/net").open() as namespace:  # noqa: ASYNC230 - nothing else runs yet
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}", namespace.name)
    servers = [await asyncio.start_server(LoopbackRelay(port), sock=listener) for port, listener in here.items()]
    if arguments.service:
        address, port, target = re.split("[:=]", arguments.service)
        servers.append(await asyncio.start_server(LoopbackRelay(int(target)), address, int(port)))
    print(READY, flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--service")
    parser.add_argument("pid", type=int)
    parser.add_argument("ports", type=int, nargs="+")
    asyncio.run(main(parser.parse_args()))
