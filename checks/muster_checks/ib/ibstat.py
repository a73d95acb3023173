"""Parses `ibstat` (package infiniband-diags; format: ibstat.c of rdma-core).

A block for each adapter, ``CA 'mlx5_0'``, and in it one for each port; a key and its value on each line. A down port
has a rate too. ibstat prints neither counters nor the board, so those are not judged.
"""

import re

from muster_checks.ib.sysfs import IbPort, is_selected

TEXT_LIMIT_BYTES = 1 << 20
STATES = {"Down": 1, "Initializing": 2, "Armed": 3, "Active": 4}
_LINE = re.compile(r"\s*([A-Za-z][\w ]{1,31}): ?(.{0,64}?)\s*")
_ADAPTER = re.compile(r"CA '([\w.-]{1,64})'\s*")
_PORT = re.compile(r"\s+Port ([0-9]{1,3}):\s*")
_RATE = re.compile(r"([0-9]{1,5}(?:\.[0-9])?)(?: \(FDR10\))?")


def parse_ibstat(text: bytes, globs: str) -> list[IbPort] | None:
    """The ports of the adapters whose name matches ``globs``; None if the text has another format."""
    adapters: dict[str, tuple[dict[str, str], dict[int, dict[str, str]]]] = {}
    values: dict[str, str] = {}
    ports: dict[int, dict[str, str]] = {}
    for line in text[:TEXT_LIMIT_BYTES].decode("utf-8", "replace").splitlines():
        if adapter := _ADAPTER.fullmatch(line):
            values, ports = adapters.setdefault(adapter[1], ({}, {}))
        elif port := _PORT.fullmatch(line):
            values = ports.setdefault(int(port[1]), {})
        elif pair := _LINE.fullmatch(line):
            values[pair[1]] = pair[2]
    found = [
        _port(device, number, len(ports) > 1, adapter.get("CA type", ""), values)
        for device, (adapter, ports) in adapters.items()
        for number, values in ports.items()
    ]
    return [port for port in found if is_selected(port.device, globs)] if found else None


def _port(device: str, number: int, several: bool, kind: str, values: dict[str, str]) -> IbPort:
    state, layer = values.get("State", ""), values.get("Link layer", "")
    rate = _RATE.fullmatch(values.get("Rate", ""))
    return IbPort(
        device=device,
        number=number,
        component=f"nic/{device}/{number}" if several else f"nic/{device}",
        model=f"{kind}/",
        layer=layer,
        state=STATES.get(state),
        says=", ".join(filter(None, (state, values.get("Physical state", "")))),
        rate_gb_per_s=float(rate[1]) if rate else None,
        interface=layer == "Ethernet",  # whether the interface should be up is not known here
    )
