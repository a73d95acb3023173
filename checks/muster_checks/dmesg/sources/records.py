"""One kernel message with its time and origin, as the readers pass it to the judge.

Every source (``/dev/kmsg``, a log file, the journal) produces this value, so the judge does not depend on the source.
"""

import msgspec

from muster_checks.base.vocabulary import Origin

KERNEL_FACILITY = 0  # the kernel's own; the kernel never gives it to a write to /dev/kmsg
DEFAULT_LEVEL = 6  # "info", for sources without a level


class KernelLine(msgspec.Struct, frozen=True):
    """One logical kernel message.

    text:      the message without stamp and without device dictionary; a message of several lines is joined by "\\n"
    at:        seconds since the epoch (UTC)
    uptime_s:  seconds since boot, by the clock of the kernel log
    level:     0 (emergency) to 7 (debug)
    facility:  syslog facility; 0 is the kernel
    origin:    ``KERNEL`` for facility 0, else ``USER``
    seq:       number of the kernel's record; 0 if the source has none
    stamp:     the time as the source shows it, e.g. ``[1235733.431527]``; empty if it has none
    timed:     whether ``at`` is the line's own time; otherwise the line may have been written at any time
    """

    text: str
    at: float
    uptime_s: float
    level: int
    facility: int
    origin: Origin
    seq: int
    stamp: str
    timed: bool = True

    @property
    def whole(self) -> str:
        """The line as it appears in the log: stamp and text."""
        return f"{self.stamp} {self.text}" if self.stamp else self.text


def origin_of(facility: int) -> Origin:
    return Origin.KERNEL if facility == KERNEL_FACILITY else Origin.USER


def uptime_stamp(microseconds: int) -> str:
    """``[ 1843.308145]``: seconds since boot in the kernel's format."""
    return f"[{microseconds // 1_000_000:5d}.{microseconds % 1_000_000:06d}]"
