"""Runs an iperf3 server for tests, and cleans up after itself.

psutil is not used to find open ports: its net_connections() reads the open files of every process to name their owners,
and does not obey ``--root``.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from muster_checks.base.bounded_read import read_text
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, ToolMissing
from muster_checks.iperf.child_lifetime import with_parent_death

_LISTEN = "0A"  # TCP_LISTEN in the kernel's include/net/tcp_states.h
_LOOK_S = 0.02


@asynccontextmanager
async def run_server(
    node: NodeView, address: str, port: int, *, limit_s: float = 120.0, start_s: float = 5.0, once: bool = True
) -> AsyncIterator[None]:
    """iperf3 listens at ``address``:``port`` while the block runs; ``once``: for one test only.

    address: an IP address, optionally followed by ``%`` and the only device to use. The server ends with the test, with
    the block, or after ``limit_s``, whichever is first. Raises CannotTell, e.g. if it does not listen in ``start_s``.
    """
    if node.commands.which("iperf3") is None:
        raise ToolMissing("iperf3", "iperf3")
    if is_listening(node, port):
        raise CannotTell(f"port {port}: another process listens there already", "PortTaken")
    argv = with_parent_death(node, ["iperf3", "-s", *(["-1"] if once else []), "-B", address, "-p", str(port)])
    serving = asyncio.create_task(node.commands.run(argv, timeout_s=limit_s))
    try:
        try:
            async with asyncio.timeout(start_s):
                # a trial connection would use up the one test that it serves
                while not serving.done() and not is_listening(node, port):
                    await asyncio.wait({serving}, timeout=_LOOK_S)
        except TimeoutError:
            raise CannotTell(f"iperf3 -s: not listening at {address}:{port} after {start_s:g} s") from None
        if serving.done():
            raise CannotTell(f"iperf3 -s at {address}:{port}: {serving.result().trouble or 'exited at once'}")
        yield
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def is_listening(node: NodeView, port: int) -> bool:
    """True if any process of this node accepts TCP connections at ``port``, at any address."""
    ending = f":{port:04X}"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in (read_text(node.path(table), 16 << 20) or "").splitlines()[1:]:
            fields = line.split()
            if len(fields) > 3 and fields[3] == _LISTEN and fields[1].endswith(ending):
                return True
    return False
