"""Counters of PCIe Advanced Error Reporting, which the kernel keeps for each device since boot.

Format: Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats and drivers/pci/pcie/aer.c: ``NAME n`` per line, then
a total. Older kernels write names as words ("Bad TLP"), current ones in short form ("BadTLP"). If the firmware handles
AER itself, these files do not exist, and its reports are in the kernel log.
"""

from pathlib import Path

import msgspec

from muster_checks.base.bounded_read import integer, read_integer, read_text

# the physical and the data link layer; without NonFatalErr, which probing for absent devices raises on healthy hardware
LINK_ERRORS = (
    *("RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout"),
    *("Receiver Error", "Bad TLP", "Bad DLLP", "RELAY_NUM Rollover", "Replay Timer Timeout"),
)


class AerErrors(msgspec.Struct, frozen=True):
    """Since boot. None: not reported.

    link:      corrected errors of the link itself
    nonfatal, fatal:  uncorrected errors, as reported by this device
    names:     the kinds of uncorrected errors, by the kernel's short names
    below_fatal: all fatal errors that reached this root port, including its own
    """

    link: int | None = None
    nonfatal: int | None = None
    fatal: int | None = None
    names: tuple[str, ...] = ()
    below_fatal: int | None = None


def read_errors(folder: Path) -> AerErrors | None:
    """The counters of one function; None if the kernel keeps none."""
    correctable, nonfatal, fatal = (
        parse(read_text(folder / f"aer_dev_{kind}", 4096)) for kind in ("correctable", "nonfatal", "fatal")
    )
    if correctable is None and nonfatal is None and fatal is None:
        return None
    return AerErrors(
        link=None if correctable is None else sum(n for name, n in correctable.items() if name in LINK_ERRORS),
        nonfatal=_total(nonfatal),
        fatal=_total(fatal),
        names=tuple(
            f"{name} {count}"
            for counts in (fatal, nonfatal)
            for name, count in (counts or {}).items()
            if count and not name.startswith("TOTAL_")
        ),
        below_fatal=read_integer(folder / "aer_rootport_total_err_fatal"),
    )


def parse(text: str | None) -> dict[str, int] | None:
    """``{"BadTLP": 3, "TOTAL_ERR_COR": 3}``; None if no line matches."""
    counts = {}
    for line in (text or "").splitlines():
        name, _, count = line.strip().rpartition(" ")
        value = integer(count)
        if name and value is not None and value >= 0:
            counts[name.strip()] = value
    return counts or None


def _total(counts: dict[str, int] | None) -> int | None:
    if counts is None:
        return None
    total = next((count for name, count in counts.items() if name.startswith("TOTAL_")), None)
    return sum(counts.values()) if total is None else total
