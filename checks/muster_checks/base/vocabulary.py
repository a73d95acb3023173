"""The types that every part shares: verdict, class, finding, result.

Values only. Everything an agent sends is made of these types, so their JSON form (camelCase keys) is a contract.
"""

from enum import StrEnum
from typing import NewType

import msgspec

NodeName = NewType("NodeName", str)

MESSAGE_LIMIT_BYTES = 256  # messages are part of NodeHealth, whose size is bounded (docs/decisions.md)
FINDINGS_LIMIT = 64  # findings that a check publishes; the rest is only counted


class Verdict(StrEnum):
    """The verdict of a check on a component or a node.

    ``UNKNOWN``: could not be measured (tool missing, timeout, unparsable output); never a FAIL.
    ``SKIP``: does not apply here (no such device).
    """

    PASS = "PASS"  # noqa: S105 - a verdict, not a password
    WARN = "WARN"
    FAIL = "FAIL"
    UNKNOWN = "UNKNOWN"
    SKIP = "SKIP"


_SEVERITY = {Verdict.SKIP: 0, Verdict.PASS: 1, Verdict.UNKNOWN: 2, Verdict.WARN: 3, Verdict.FAIL: 4}


def severity(verdict: Verdict) -> int:
    """Higher is worse: FAIL, WARN, UNKNOWN, PASS, SKIP (a proven fault outranks an unknown state)."""
    return _SEVERITY[verdict]


def worst(verdicts: "list[Verdict] | tuple[Verdict, ...]", default: Verdict = Verdict.PASS) -> Verdict:
    """The worst of ``verdicts`` by :func:`severity`; ``default`` for an empty list."""
    return max(verdicts, key=_SEVERITY.__getitem__, default=default)


class FaultClass(StrEnum):
    """The remedy that a fault needs. ``NONE``: no action beyond reporting it."""

    NONE = ""
    RESTART_APP = "restart-app"
    RESET = "reset"
    REBOOT = "reboot"
    REPLACE = "replace"
    CONTACT = "contact"
    QUARANTINE = "quarantine"


class Origin(StrEnum):
    """Who wrote a kernel log record: facility 0 is the kernel; records from user space always have another one."""

    KERNEL = "kernel"
    USER = "user"


class Measurement(msgspec.Struct, frozen=True, omit_defaults=True):
    """One number behind a verdict, e.g. ``("bandwidth", 3.1, "GB/s", 4.0)``. ``unit``: empty for a plain number."""

    name: str
    value: float
    unit: str = ""
    threshold: float | None = None


class Finding(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A verdict on one component, identified within its check by (component, reason).

    component:  ``gpu/0000:3b:00.0``, ``nvswitch/0000:c1:00.0``, ``nic/mlx5_0``, ``dimm/<label>``, ``disk/nvme0``,
                ``pci/0000:00:01.0``, ``ipu/<IPU-Machine address>/<board index>``, ``peer/<node>``, ``numa/0``,
                ``service/kubelet``, ``storage/<class>``, ``pod/<namespace>/<name>``, ``host``
    reason:     one CamelCase word, e.g. ``Xid79``; letters, digits, ``_`` ``:`` ``,`` as in a Kubernetes condition
    message:    for people; at most :data:`MESSAGE_LIMIT_BYTES` bytes of UTF-8
    first_seen, last_seen:  seconds since the epoch (UTC) of the first and last sign of this occurrence
    count:      signs within this occurrence (lines, or runs that found it)
    occurrence: increases each time the finding fires again after it was cleared or closed; numbered across the whole
                check, so a number identifies one firing of one finding
    origin:     for kernel log findings: who wrote the lines; ``user`` as soon as one line came from user space
    """

    component: str
    verdict: Verdict
    reason: str
    message: str
    fault_class: FaultClass = msgspec.field(default=FaultClass.NONE, name="class")
    measurements: tuple[Measurement, ...] = ()
    first_seen: float = 0.0
    last_seen: float = 0.0
    count: int = 1
    occurrence: int = 1
    origin: Origin | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.component, self.reason


class Result(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """One run of one check on one node.

    verdict:  the worst verdict of the findings, or the outcome of the run itself (UNKNOWN, SKIP, PASS)
    reason, message:  those of the worst finding, or why there is no measurement
    started:  seconds since the epoch (UTC); duration_s: seconds
    """

    check: str
    verdict: Verdict
    reason: str = ""
    message: str = ""
    findings: tuple[Finding, ...] = ()
    started: float = 0.0
    duration_s: float = 0.0


def shorten(message: str, limit_bytes: int = MESSAGE_LIMIT_BYTES) -> str:
    """``message`` on one line, at most ``limit_bytes`` bytes of UTF-8, with control characters made visible."""
    clean = message
    if not message.isprintable():
        clean = "".join(c if c.isprintable() else " " if c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in message)
    raw = clean.encode("utf-8", "replace")
    if len(raw) <= limit_bytes:
        return clean
    return raw[: limit_bytes - 3].decode("utf-8", "ignore") + "…"
