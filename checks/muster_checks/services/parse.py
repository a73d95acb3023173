"""Parses what `systemctl show` prints.

Format: systemctl(1), `show`: KEY=VALUE lines, a blank line between units; a unit that does not exist is printed too,
with LoadState=not-found.
"""

import msgspec

from muster_checks.base.bounded_read import Unreadable, integer

TEXT_LIMIT_BYTES = 1 << 20


class SystemdUnit(msgspec.Struct, frozen=True, kw_only=True):
    """One systemd unit. restarts: automatic ones (Restart=) since the unit was loaded; None: not reported."""

    name: str
    load: str = ""
    active: str = ""
    sub: str = ""
    result: str = ""
    file_state: str = ""
    restarts: int | None = None


def parse(text: bytes) -> list[SystemdUnit]:
    """The units in the output of `systemctl show`; blocks without an Id are skipped. Raises Unreadable."""
    if len(text) > TEXT_LIMIT_BYTES:
        raise Unreadable(f"{len(text) >> 20} MiB: expected at most 1 MiB from systemctl show")
    units = []
    for block in text.decode("utf-8", "replace").replace("\r\n", "\n").split("\n\n"):
        values = dict(line.partition("=")[::2] for line in block.splitlines() if "=" in line)
        if values.get("Id"):
            units.append(
                SystemdUnit(
                    name=values["Id"].strip()[:120],
                    load=values.get("LoadState", ""),
                    active=values.get("ActiveState", ""),
                    sub=values.get("SubState", ""),
                    result=values.get("Result", ""),
                    file_state=values.get("UnitFileState", ""),
                    restarts=integer(values.get("NRestarts")),
                )
            )
    return units
