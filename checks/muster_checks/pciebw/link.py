"""The bandwidth of a device's path to the host: its PCIe links from sysfs, of which the slowest counts.

Uses the highest speeds, not the current ones: an idle GPU lowers its link to 2.5 GT/s.
"""

from pathlib import Path

from muster_checks.base.bounded_read import integer, number, read_text
from muster_checks.hardware.pci import PciDevice

# GT/s -> GB/s (1e9 bytes) of one lane in one direction, without encoding overhead but with packet headers.
# PCI Express Base Specification 1.0 to 6.0: 8b/10b up to 5 GT/s, 128b/130b up to 32, flits of 242/256 at 64 (of which
# the usual table, en.wikipedia.org/wiki/PCI_Express, gives 7.563).
LANE_GB_PER_S = {2.5: 0.25, 5.0: 0.5, 8.0: 0.985, 16.0: 1.969, 32.0: 3.938, 64.0: 7.563}
GENERATIONS = dict(enumerate(LANE_GB_PER_S.values(), start=1))


def link_gb_per_s(device: PciDevice) -> float | None:
    """One direction; None if sysfs reports no link."""
    ports = [device.path, *device.path.parents]
    ends = [_highest(folder) for folder in ports[: _depth(device.path)]]
    # device and port, then switch and port, up to the root: two neighbours in the list are the ends of one link
    rates = [_rate(ends[place : place + 2]) for place in range(0, len(ends), 2)]
    return min((rate for rate in rates if rate is not None), default=None)


def _depth(path: Path) -> int:
    """Folders up to the root complex (``pci0000:3a``), which is not a device."""
    names = [folder.name for folder in (path, *path.parents)]
    return next((place for place, name in enumerate(names) if name.startswith("pci")), 1)


def _highest(folder: Path) -> tuple[float | None, int | None]:
    """(GT/s, lanes). Virtual machines show "Unknown", and 0 or 255 lanes."""
    speed = number(read_text(folder / "max_link_speed", 64) or "")
    width = integer(read_text(folder / "max_link_width", 64) or "")
    return speed if speed in LANE_GB_PER_S else None, width if width and width <= 32 else None


def _rate(ends: list[tuple[float | None, int | None]]) -> float | None:
    speeds = [speed for speed, _ in ends if speed is not None]
    widths = [width for _, width in ends if width is not None]
    return LANE_GB_PER_S[min(speeds)] * min(widths) if speeds and widths else None
