"""Parses a disk's own health data: `smartctl -j` (7.0 and later) or `nvme smart-log -o json`.

The fields of the NVMe log are those of the NVMe base specification (SMART / Health Information, log 02h). The two tools
name them differently, and nvme reports kelvin.
"""

from collections.abc import Mapping
from pathlib import PurePosixPath

import msgspec

from muster_checks.base.bounded_read import Unreadable, integer, json_document, number

SMARTCTL = ("smartctl", "-j", "-i", "-H", "-A")
NVME = ("nvme", "smart-log", "-o", "json")
COMMAND_FAILED = 4  # smartctl(8), exit status, bit 2
# Refusals of a disk that should have answered: the reason, by words in the refusal. The first match counts.
_REASONS = {
    "Permission denied": "NotReadable",
    "Operation not permitted": "NotReadable",
    "No such device or address": "DeviceGone",  # ENXIO: no device has the number of the device file
    "No such device": "NoDeviceFile",  # what smartctl writes for ENOENT
}


class SmartHealth(msgspec.Struct, frozen=True, kw_only=True):
    """None where the disk does not report a value.

    device:  ``nvme0``, ``sda``; ``nvme`` if the text does not name it
    passed:  the disk's own verdict (ATA, SCSI; for NVMe: no critical warning)
    critical_warning:  bits, see judge.py
    spare_percent, spare_threshold_percent, wear_percent:  wear may exceed 100
    media_errors:  times that data could not be recovered, over the disk's life
    """

    device: str
    passed: bool | None = None
    critical_warning: int | None = None
    spare_percent: float | None = None
    spare_threshold_percent: float | None = None
    wear_percent: float | None = None
    media_errors: int | None = None
    temperature_c: float | None = None

    @property
    def says_something(self) -> bool:
        return self.passed is not None or self.critical_warning is not None


class SmartUnavailable(Exception):
    """The tool could not query the disk. ``expected``: the disk has SMART, or privileges, its device file or the
    device are missing, so that an answer was due; else it may be a virtual disk or a volume of a RAID controller."""

    def __init__(self, message: str, expected: bool, reason: str = "NotReadable") -> None:
        super().__init__(message)
        self.expected = expected
        self.reason = reason


def parse_smartctl(text: bytes) -> SmartHealth:
    """Raises Unreadable, or SmartUnavailable if smartctl could not open the disk.

    A disk without SMART returns a value with no health data.
    """
    document = _object(json_document(text))
    run = _object(document.get("smartctl"))
    if not run:
        raise Unreadable("no member smartctl: expected the output of smartctl -j")
    status = _object(document.get("smart_status")).get("passed")
    log = _object(document.get("nvme_smart_health_information_log"))
    if not isinstance(status, bool) and not log:
        refusal, code = _messages(run), integer(run.get("exit_status")) or 0
        # a disk that has no SMART has no command that could fail
        answered = _object(document.get("smart_support")).get("available") is not False
        if not refusal and code & COMMAND_FAILED and answered:
            raise SmartUnavailable(f"the disk did not answer a SMART command (exit status {code})", expected=True)
        if refusal:
            reason = next((reason for words, reason in _REASONS.items() if words in refusal), None)
            raise SmartUnavailable(refusal, reason is not None, reason or "NotReadable")
    return SmartHealth(
        device=PurePosixPath(str(_object(document.get("device")).get("name", "disk"))[:64]).name or "disk",
        passed=status if isinstance(status, bool) else None,
        critical_warning=_byte(log.get("critical_warning")),
        spare_percent=_percent(log.get("available_spare")),
        spare_threshold_percent=_percent(log.get("available_spare_threshold")),
        wear_percent=_percent(log.get("percentage_used")),
        media_errors=_count(log.get("media_errors")),
        temperature_c=number(_object(document.get("temperature")).get("current")),
    )


def parse_nvme(text: bytes) -> SmartHealth:
    """Raises Unreadable."""
    log = _object(json_document(text))
    if "critical_warning" not in log or "spare_thresh" not in log:
        raise Unreadable("no critical_warning: expected the output of nvme smart-log -o json")
    kelvin = number(log.get("temperature"))
    return SmartHealth(
        device="nvme",
        critical_warning=_byte(log.get("critical_warning")),
        spare_percent=_percent(log.get("avail_spare")),
        spare_threshold_percent=_percent(log.get("spare_thresh")),
        wear_percent=_percent(log.get("percent_used")),
        media_errors=_count(log.get("media_errors")),
        temperature_c=None if kelvin is None else kelvin - 273,
    )


def _messages(run: Mapping[str, object]) -> str:
    found = run.get("messages")
    texts = [str(_object(entry).get("string", "")) for entry in found[:4]] if isinstance(found, list) else []
    return "; ".join(filter(None, texts))[:300]


def _object(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _byte(value: object) -> int | None:
    found = integer(value)
    # a device that has left the bus reads as all ones
    return found if found is not None and 0 <= found < 0xFF else None


def _percent(value: object) -> float | None:
    found = number(value)
    return found if found is not None and 0 <= found <= 255 else None


def _count(value: object) -> int | None:
    found = integer(value)
    return found if found is not None and found >= 0 else None
