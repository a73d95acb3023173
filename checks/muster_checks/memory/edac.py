"""The DIMMs that the kernel's EDAC driver shows, and their error counters.

Files: Documentation/ABI/testing/sysfs-devices-edac. Counters start at 0 when the driver is loaded; before kernel 4.10
only the memory controllers have them. On AMD, and with firmware-first reporting, folders may be named ``rank*``.
"""

import re
from pathlib import Path

import msgspec

from muster_checks.base.bounded_read import names_in, read_integer, read_text
from muster_checks.base.declaration import NodeView

CONTROLLERS = "/sys/devices/system/edac/mc"
_CONTROLLER = re.compile(r"mc\d+")
_DIMM = re.compile(r"(?:dimm|rank)\d+")
_LABEL = re.compile(r"[\w#.:+ -]{1,64}")


class Dimm(msgspec.Struct, frozen=True):
    """One DIMM, or errors that a memory controller could not assign to one.

    place:     ``mc0/dimm3``, or ``mc0``
    label:     as in the kernel log (``CPU_SrcID#0_MC#0_Chan#0_DIMM#0``); the place if there is none
    placed:    False for a controller's errors without a location
    corrected, uncorrected: errors since the counters started; None if they cannot be read
    age_s:     seconds since the counters started
    """

    place: str
    label: str
    placed: bool
    corrected: int | None
    uncorrected: int | None
    age_s: int | None


def read_dimms(node: NodeView) -> list[Dimm]:
    """Every DIMM; empty if no EDAC driver is loaded (most virtual machines)."""
    found: list[Dimm] = []
    root = node.path(CONTROLLERS)
    for controller in filter(_CONTROLLER.fullmatch, names_in(root)):
        folder = root / controller
        age_s = _count(folder / "seconds_since_reset")
        dimms = [name for name in names_in(folder) if _DIMM.fullmatch(name)]
        counted = [name for name in dimms if (folder / name / "dimm_ue_count").exists()]
        for name in counted:
            place, label = f"{controller}/{name}", read_text(folder / name / "dimm_label", 256) or ""
            counts = _count(folder / name / "dimm_ce_count"), _count(folder / name / "dimm_ue_count")
            found.append(Dimm(place, label if _LABEL.fullmatch(label) else place, True, *counts, age_s))
        kind = "noinfo_count" if counted else "count"
        lost = _count(folder / f"ce_{kind}"), _count(folder / f"ue_{kind}")
        found.append(Dimm(controller, controller, False, *lost, age_s))
    return _number_doubles(found)


def _number_doubles(dimms: list[Dimm]) -> list[Dimm]:
    """If two DIMMs have the same label (firmware without labels), they are named by their place."""
    labels = [dimm.label for dimm in dimms]
    return [msgspec.structs.replace(dimm, label=dimm.place) if labels.count(dimm.label) > 1 else dimm for dimm in dimms]


def _count(path: Path) -> int | None:
    value = read_integer(path)
    return value if value is not None and value >= 0 else None
