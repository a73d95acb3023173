"""Parses the configured peers, and chooses the sample for each run."""

import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from ipaddress import ip_address
from typing import Final, Literal

ALL: Final = "all"
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")


def read_peers(value: object) -> dict[str, str] | Literal["all"]:
    """Address by name, from ``"a=10.0.0.1,b=fd00::2"``, a list of such words, or a mapping. A bare address serves as
    its own name. ``"all"`` stays as it is. Raises ValueError."""
    if value == ALL:
        return ALL
    if isinstance(value, Mapping):
        pairs = [(name, address) for name, address in value.items()]
    elif isinstance(value, (str, list, tuple)):
        words = value.split(",") if isinstance(value, str) else value
        pairs = [_pair(word.strip()) for word in map(str, words) if word.strip()]
    else:
        raise ValueError("expected all, or name=address, comma-separated")  # noqa: TRY004 - pydantic converts ValueError only
    peers = {}
    for name, address in pairs:
        try:
            # also prevents that ping reads an address as an option
            normal = str(ip_address(str(address)))
        except ValueError:
            raise ValueError(f"{name}={address}: expected name=address with an IP address") from None
        if name != address and not _NAME.fullmatch(str(name)):
            raise ValueError(f"{name!r}: expected a node's name")
        peers[str(name)] = normal
    return peers


def choose_peers(names: Sequence[str], own: str, size: int, turn: int) -> list[str]:
    """The sample of run number ``turn``; ``ceil(len(names) / size)`` consecutive runs cover all peers.

    Each node uses its own order, so that not all nodes ping the same peer at once.
    """
    order = sorted(names, key=lambda name: blake2b(f"{own}/{name}".encode("utf-8", "replace"), digest_size=8).digest())
    return [order[(turn * size + place) % len(order)] for place in range(min(size, len(order)))]


def _pair(word: str) -> tuple[str, str]:
    name, sign, address = word.partition("=")
    return (name.strip(), address.strip()) if sign else (name, name)
