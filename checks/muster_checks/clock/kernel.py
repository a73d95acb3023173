"""Reads the kernel's view of its clock with adjtimex(2). Every time service (chronyd, ntpd, systemd-timesyncd, phc2sys)
leaves its result there, and `timedatectl` shows it.

No library offers this call. With no mode bit set it only reads and needs no privilege.
"""

import ctypes
import errno
from collections.abc import Callable
from typing import Any

import msgspec

# include/uapi/linux/timex.h
STA_INS, STA_DEL, STA_UNSYNC, STA_NANO = 0x0010, 0x0020, 0x0040, 0x2000
# NTP_PHASE_LIMIT: the kernel's error estimate grows up to this value while nothing corrects the clock
UNSYNCHRONISED_ERROR_S = 16.0


class KernelClock(msgspec.Struct, frozen=True):
    """synchronised: a time service corrects the clock. offset_s: correction still pending in the kernel. max_error_s:
    the kernel's bound of the error. leap: +1 or -1 if a second is inserted or deleted at the end of this UTC day."""

    synchronised: bool
    offset_s: float
    max_error_s: float
    leap: int = 0


class _Timex(ctypes.Structure):
    """struct timex of a 64-bit Linux (208 bytes)."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_long * 20),
    )


def parse_timex(offset: int, max_error_us: int, status: int) -> KernelClock:
    """``offset`` is in nanoseconds if the status has STA_NANO, otherwise in microseconds."""
    max_error_s = max_error_us / 1e6
    return KernelClock(
        # chronyd without rtcsync never clears the flag, so the flag alone proves nothing
        synchronised=not (status & STA_UNSYNC and max_error_s >= UNSYNCHRONISED_ERROR_S),
        offset_s=offset / (1e9 if status & STA_NANO else 1e6),
        max_error_s=max_error_s,
        leap=bool(status & STA_INS) - bool(status & STA_DEL),
    )


def read_kernel_clock(call: Callable[[Any], int] | None = None) -> KernelClock:
    """``call``: adjtimex; default: the C library's. Raises OSError if it is forbidden (a seccomp profile)."""
    adjtimex = call or ctypes.CDLL(None, use_errno=True).adjtimex
    timex = _Timex()
    if adjtimex(ctypes.byref(timex)) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"adjtimex: {errno.errorcode.get(number, number)}")
    return parse_timex(timex.offset, timex.maxerror, timex.status)
