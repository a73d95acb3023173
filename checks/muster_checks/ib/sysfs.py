"""Reads InfiniBand and RoCE ports from sysfs. Formats: drivers/infiniband/core/sysfs.c of the kernel.

``state`` is ``4: ACTIVE``, ``phys_state`` is ``5: LinkUp``, ``rate`` is ``400 Gb/sec (4X NDR)``; an unavailable counter
is ``N/A (no PMA)``.
"""

import os
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from muster_checks.base.bounded_read import names_in, read_integer, read_text
from muster_checks.ib.thresholds import CounterRow

ACTIVE = (4, 5)  # ACTIVE, ACTIVE_DEFER
_RATE = re.compile(r"([0-9]{1,5}(?:\.[0-9]{1,3})?) Gb/sec \(([0-9]{1,3})X")
_NUMBERED = re.compile(r"([0-9]{1,2}): ?(.{0,40})", re.S)


class IbPort(msgspec.Struct, frozen=True):
    """One port.

    model:     ``MT4129/MT_0000000838``: type and board
    state, phys_state:  the kernel's numbers, None if unreadable; ``says`` has their names
    rate_gb_per_s, lanes:  of the current link; meaningless while it is down
    interface: it has a network interface here, whose link state the check nic judges
    """

    device: str
    number: int
    component: str
    model: str = ""
    layer: str = ""
    state: int | None = None
    says: str = ""
    rate_gb_per_s: float | None = None
    lanes: int | None = None
    received: int | None = None
    interface: bool = False
    counters: dict[str, int] = {}

    @property
    def active(self) -> bool:
        return self.state in ACTIVE

    @property
    def key(self) -> str:
        return f"{self.device}/{self.number}"


def read_ports(folder: Path, globs: str, rows: Sequence[CounterRow]) -> list[IbPort]:
    """Every port of the devices in ``folder`` (/sys/class/infiniband) whose name matches, except virtual ones."""
    ports = []
    for device in names_in(folder):
        entry = folder / device
        if is_selected(device, globs) and not _virtual(entry):
            numbers = [name for name in names_in(entry / "ports") if name.isdecimal() and len(name) < 4]
            ports += [_port(entry, device, int(name), len(numbers) > 1, rows) for name in numbers]
    return ports


def is_selected(device: str, globs: str) -> bool:
    """globs: comma-separated."""
    return any(fnmatchcase(device, pattern.strip()) for pattern in globs.split(","))


def _port(entry: Path, device: str, number: int, several: bool, rows: Sequence[CounterRow]) -> IbPort:
    folder = entry / f"ports/{number}"
    state, says = _read_numbered(folder / "state")
    _, physically = _read_numbered(folder / "phys_state")
    rate, lanes = parse_rate(read_text(folder / "rate", 128))
    counters = {
        row.counter: value
        for row in rows
        if (value := read_integer(folder / row.folder / row.counter)) is not None and value >= 0
    }
    return IbPort(
        device=device,
        number=number,
        component=f"nic/{device}/{number}" if several else f"nic/{device}",
        model=f"{read_text(entry / 'hca_type', 64) or ''}/{read_text(entry / 'board_id', 64) or ''}",
        layer=read_text(folder / "link_layer", 64) or "",
        state=state,
        says=", ".join(word for word in (says, physically) if word),
        rate_gb_per_s=rate,
        lanes=lanes,
        received=read_integer(folder / "counters/port_rcv_packets"),
        interface=bool(names_in(entry / "device/net")),
        counters=counters,
    )


def parse_rate(text: str | None) -> tuple[float | None, int | None]:
    """``400 Gb/sec (4X NDR)`` as (400.0, 4)."""
    found = _RATE.match(text or "")
    return (float(found[1]), int(found[2])) if found else (None, None)


def _read_numbered(path: Path) -> tuple[int | None, str]:
    found = _NUMBERED.match(read_text(path, 64) or "")
    return (int(found[1]), found[2].strip()) if found else (None, "")


def _virtual(entry: Path) -> bool:
    """Functions that duplicate their card's port, and RDMA in software (rxe, siw)."""
    place = os.path.realpath(entry)
    return (entry / "device/physfn").exists() or "/devices/virtual/" in place or "mlx5_core.sf." in place
