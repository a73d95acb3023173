"""The address under which a sandbox publishes its agents, on the loopback interface: 192.0.2.1, for example.

Kubernetes 1.21.1 and later reject loopback addresses in EndpointSlices. The sandbox therefore adds an address from a
block reserved for documentation to ``lo`` and relays the agents' ports from there to 127.0.0.1. It uses the first
block in which no other interface has an address. The relay accepts only connections that arrive over ``lo``, so other
machines cannot reach the agents.

Adding the address needs root and ``ip`` (iproute2). The sandbox's reaper removes it, also after SIGKILL, once the
agents have ended. The address carries a label made from the sandbox's folder: if the reaper was killed too, the next
sandbox in that folder finds and removes it.
"""

import asyncio
import socket
import subprocess
from collections.abc import AsyncIterator, Iterable
from contextlib import ExitStack, asynccontextmanager
from hashlib import blake2b
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import psutil

from muster_sandbox.processes import ProcessReaper
from muster_sandbox.relay import LoopbackRelay

BLOCKS = tuple(map(IPv4Network, ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")))  # RFC 5737
DEVICE = "lo"
_IP_LIMIT_S = 10.0


class NoAddress(Exception):
    """The sandbox cannot add an address to ``lo``; the message says why and what to do."""


@asynccontextmanager
async def relay_agents(reaper: ProcessReaper, folder: Path, ports: Iterable[int]) -> AsyncIterator[str]:
    """Relay ``ports`` of a new address on ``lo`` to the same ports on 127.0.0.1; yields the address.

    The address stays on ``lo`` until ``reaper`` is closed or this process ends. Raises NoAddress.
    """
    address = add_address(reaper, folder)
    with ExitStack() as stack:
        for port in ports:
            try:
                listener = _listen(address, port)
            except OSError as error:
                raise NoAddress(f"cannot listen on {address}:{port}: {error.strerror}") from error
            server = await asyncio.start_server(LoopbackRelay(port), sock=listener)
            stack.callback(server.close)
        yield address


def add_address(reaper: ProcessReaper, folder: Path) -> str:
    """Add the first free address of a block that no other interface uses to ``lo``. Raises NoAddress."""
    used = _used_addresses()
    others = [address for address, device in used.items() if device != DEVICE]
    block = next((each for each in BLOCKS if not any(address in each for address in others)), None)
    if block is None:
        raise NoAddress(f"all of {', '.join(map(str, BLOCKS))} are in use on network interfaces of this machine")
    label = address_label(folder)
    _ip("address", "flush", "dev", DEVICE, "label", label)
    reaper.remove_addresses_at_end(label)
    for address in block.hosts():
        if address in _used_addresses():
            continue
        if not (error := _ip("address", "add", f"{address}/32", "dev", DEVICE, "label", label)):
            return str(address)
        if address not in _used_addresses():  # else another sandbox was faster
            raise NoAddress(f"cannot add {address} to {DEVICE}: {error}: run the sandbox as root")
    raise NoAddress(f"every address of {block} is in use on {DEVICE}: remove one with `ip address del`")


def address_label(folder: Path) -> str:
    """The label of the address, at most 15 characters (IFNAMSIZ - 1); distinct for each sandbox folder."""
    return f"{DEVICE}:mst{blake2b(str(folder.resolve()).encode(), digest_size=4).hexdigest()}"


def _ip(*arguments: str) -> str:
    """Run ``ip``. Returns its error message, empty on success. Raises NoAddress if ``ip`` is not installed."""
    try:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=_IP_LIMIT_S, check=False)
    except FileNotFoundError as error:
        raise NoAddress("the program ip is missing: install iproute2") from error
    if done.returncode == 0:
        return ""
    return done.stderr.strip().removeprefix("RTNETLINK answers: ") or f"ip exited with {done.returncode}"


def _listen(address: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, DEVICE.encode())
        listener.bind((address, port))
        listener.listen()
    except BaseException:
        listener.close()
        raise
    return listener


def _used_addresses() -> dict[IPv4Address, str]:
    """This machine's addresses, each with its network interface."""
    return {
        IPv4Address(each.address): name.split(":")[0]  # psutil returns a labelled address under its label
        for name, addresses in psutil.net_if_addrs().items()
        for each in addresses
        if each.family == socket.AF_INET
    }
