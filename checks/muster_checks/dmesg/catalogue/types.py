"""The meaning of kernel lines for a node: tables with a verdict and its source in each row.

The tables are in ``rows/``: ``xid.csv``, ``sxid.csv`` and the YAML files are read when the catalogue is created, and
the decoding tables of single Xid when the first such line appears. A user's file adds rows or changes shipped ones
(row_file.py). Verdicts follow NVIDIA's immediate action for each code: a code that requires only a restart of the
application is a WARN, however often it appears.
"""

import csv
import io
from collections.abc import Iterable, Iterator
from functools import cached_property
from importlib.resources import files

import msgspec

from muster_checks.base.vocabulary import FaultClass, Verdict

QUIET_S = 3600.0  # a WARN ends this long after its last sign, unless its row sets another time
COUNT_LIMIT = 100  # limit of a row's count: the time of each counted line is stored
XID_REASON, SXID_REASON = "Xid", "SXid"


class CatalogueError(ValueError):
    """An invalid row. The message names file, row, key, the value and the allowed values."""


class RowMeaning(msgspec.Struct, frozen=True, kw_only=True):
    """The meaning of a code or a row for the node.

    verdict:  ``FAIL``, ``WARN``, or ``PASS`` for a line that is not a fault
    clears:   what ends the finding, for people: ``boot``, ``driver`` (its own clearing line or a reset), ``person``,
              ``quiet``. Every WARN ends after a quiet time, a FAIL never does
    quiet_s:  seconds without a new sign after which a WARN ends
    source:   source of the verdict
    """

    verdict: Verdict
    fault_class: FaultClass = FaultClass.NONE
    description: str = ""
    clears: str = ""
    quiet_s: float = QUIET_S
    source: str = ""


class XidRow(RowMeaning, frozen=True, kw_only=True):
    """``decode``: the table that gives the verdict instead (``xid74``, ``nvlink5``, ``recovery``);
    ``cancels``: codes whose findings on the same GPU this one ends."""

    code: int
    mnemonic: str = ""
    decode: str = ""
    cancels: tuple[int, ...] = ()


class SxidRow(RowMeaning, frozen=True, kw_only=True):
    """``verdict_if_fatal``, ``class_if_fatal``: for a line that contains the word Fatal."""

    code: int
    verdict_if_fatal: Verdict
    class_if_fatal: FaultClass = FaultClass.NONE


class RecoveryRow(RowMeaning, frozen=True, kw_only=True):
    """A recovery action that Xid 154 may contain."""

    action: str


class LinkBitRow(msgspec.Struct, frozen=True, kw_only=True):
    """One bit of the registers of Xid 74; fewer than ``min_count`` on one link are a WARN."""

    register: int
    bit: int
    meaning: str
    verdict: Verdict
    fault_class: FaultClass
    min_count: int
    source: str


class Nvlink5Row(msgspec.Struct, frozen=True, kw_only=True):
    """One rule of NVIDIA's table for Xid 144 to 150.

    infos:   (mask, value) of intrInfo in the layout before R575 and from it on
    status:  errorStatus values; empty: any
    """

    code: int
    units: tuple[str, ...]
    infos: tuple[tuple[int, int], ...]
    status: tuple[int, ...]
    action: str
    investigate: str

    def fits_unit(self, units: tuple[str, ...]) -> bool:
        return any(unit in self.units for unit in units)

    def fits_info(self, info: int) -> bool:
        return any(info & mask == value for mask, value in self.infos)

    def fits_status(self, status: int) -> bool:
        return not self.status or status in self.status

    def within_status(self, status: int) -> bool:
        return any(one & (one - 1) == 0 and one & status for one in self.status)


class PatternRow(RowMeaning, frozen=True, kw_only=True):
    """A pattern row of a YAML file. ``name`` is the finding's reason.

    patterns:      a message must begin with a match of one of them; named groups fill the templates; ``bdf`` is
                   normalised, ``driver`` gives ``kind`` (gpu, nic, disk, nvswitch, pci), ``uuid`` gives the GPU's
                   ``bdf`` if it is known
    component:     template; ``host`` if a group in it is missing
    message:       template, for people; may also contain ``{count}``
    count, window_s:  number of lines for one component within that many seconds that make a finding; a line with a
                   group ``n`` counts n times. With a count of 1, ``{count}`` in the message is the number of lines in
                   the window so far
    clear_pattern: a line that ends the finding, for the component that its groups give
    context, context_s:  an earlier line, at most this many seconds before, whose groups replace missing ones
    after, after_s:  the row fires only within this many seconds after that row matched
    covered_by:    reasons that report the same fault: while one is open for the component, this row does not fire
    status_set, status_clear:  bits that must be set or clear in the hexadecimal group ``status``
    lines:    0: the patterns match anywhere in one record; otherwise a match must end where the last ``lines`` lines
              end
    anywhere: a match may begin anywhere in the message, where a user's text may stand. Such a FAIL does not fire for a
              message that is known to hold a user's text
    node_process: the row selects a process by its name (groups ``task`` and ``pid``), so it fires only if the process
              is known to belong to the node itself, and not to a pod
    node_disk: the row names a disk (group ``disk``), so it does not fire for one that holds nothing that the node needs
              (node_disks.py); it does if the message names none
    delay_s:  lines of the first seconds of a boot, up to this time, do not count
    vendor:   whose driver or program prints the line, for shipped rows

    Several rows may have the same name: for one record, a later row fires only if its verdict is worse.
    """

    name: str
    patterns: tuple[str, ...]
    component: str
    message: str
    count: int = 1
    window_s: float = 0.0
    clear_pattern: str = ""
    context: str = ""
    context_s: float = 0.0
    after: str = ""
    after_s: float = 0.0
    covered_by: tuple[str, ...] = ()
    status_set: int = 0
    status_clear: int = 0
    lines: int = 0
    anywhere: bool = False
    node_process: bool = False
    node_disk: bool = False
    delay_s: float = 0.0
    vendor: str = ""


def _read(name: str) -> Iterator[dict[str, str]]:
    return csv.DictReader(io.StringIO((files(__package__) / "rows" / name).read_text("utf-8")))


def _meaning(row: dict[str, str]) -> dict[str, object]:
    return {
        "verdict": Verdict(row["verdict"]),
        "fault_class": FaultClass(row["class"]),
        "description": row.get("description", ""),
        "clears": row.get("clears", ""),
        "quiet_s": float(row.get("quiet_s") or QUIET_S),
        "source": row["source"],
    }


def read_xids() -> dict[int, XidRow]:
    rows = [
        XidRow(
            code=int(row["code"]),
            mnemonic=row["mnemonic"],
            decode=row["decode"],
            cancels=tuple(int(code) for code in row["cancels"].split()),
            **_meaning(row),  # type: ignore[arg-type]  # built by name just above
        )
        for row in _read("xid.csv")
    ]
    return {row.code: row for row in rows}


def read_sxids() -> dict[int, SxidRow]:
    rows = [
        SxidRow(
            code=int(row["code"]),
            verdict_if_fatal=Verdict(row["verdict_if_fatal"]),
            class_if_fatal=FaultClass(row["class_if_fatal"]),
            **_meaning(row),  # type: ignore[arg-type]  # built by name just above
        )
        for row in _read("sxid.csv")
    ]
    return {row.code: row for row in rows}


def _bits(pattern: str) -> tuple[int, int]:
    """(mask, value) of ``------000000----------0000100001``, most significant bit first, ``-`` for any."""
    mask = int(pattern.translate(str.maketrans("01-", "110")), 2)
    return mask, int(pattern.replace("-", "0"), 2)


UNKNOWN_XID = XidRow(
    code=-1,
    verdict=Verdict.WARN,
    description="code unknown to this catalogue",
    clears="quiet",
    source="in no public table, probably from a newer driver; an unknown code alone does not taint a node",
)
UNKNOWN_SXID = SxidRow(
    code=-1,
    verdict=Verdict.WARN,
    verdict_if_fatal=Verdict.FAIL,
    class_if_fatal=FaultClass.RESET,
    description="code unknown to this catalogue",
    clears="driver",
    source="in no public table; the severity that the line states decides",
)


class Catalogue:
    """All rows, shipped and changed by a user. Created by :func:`load_catalogue`."""

    def __init__(self, xids: dict[int, XidRow], sxids: dict[int, SxidRow], rows: tuple[PatternRow, ...]) -> None:
        self.xids = xids
        self.sxids = sxids
        self.rows = rows

    def with_rows(self, rows: Iterable[PatternRow]) -> "Catalogue":
        """A catalogue of these rows and, after them, ``rows``."""
        return Catalogue(self.xids, self.sxids, (*self.rows, *rows))

    def xid(self, code: int) -> XidRow:
        return self.xids.get(code, UNKNOWN_XID)

    def sxid(self, code: int) -> SxidRow:
        return self.sxids.get(code, UNKNOWN_SXID)

    @cached_property
    def recoveries(self) -> dict[str, RecoveryRow]:
        """By action in lower case."""
        rows = [
            RecoveryRow(action=row["action"], **_meaning(row))  # type: ignore[arg-type]  # built by name above
            for row in _read("xid154.csv")
        ]
        return {row.action.lower(): row for row in rows}

    @cached_property
    def link_bits(self) -> tuple[LinkBitRow, ...]:
        return tuple(
            LinkBitRow(
                register=int(row["register"]),
                bit=int(row["bit"]),
                meaning=row["meaning"],
                verdict=Verdict(row["verdict"]),
                fault_class=FaultClass(row["class"]),
                min_count=int(row["min_count"]),
                source=row["source"],
            )
            for row in _read("xid74.csv")
        )

    @cached_property
    def nvlink5(self) -> tuple[Nvlink5Row, ...]:
        return tuple(
            Nvlink5Row(
                code=int(row["code"]),
                units=tuple(row["unit"].split("/")),
                infos=(_bits(row["intr_info_v1"]), _bits(row["intr_info_v2"])),
                status=tuple(int(value, 16) for value in row["error_status"].split("/") if value),
                action=row["action"],
                investigate=row["investigate"],
            )
            for row in _read("nvlink5.csv")
        )

    def explain(self, reason: str) -> str:
        """The meaning of a finding with this reason, for people: several lines, or a line that no row has this name."""
        head = reason.split(":", 1)[0]
        for prefix, known in ((SXID_REASON, self.sxid), (XID_REASON, self.xid)):
            number = head.removeprefix(prefix)
            if number != head and number.isascii() and number.isdigit() and len(number) < 8:
                return _explain(reason, known(int(number)))
        row = next((row for row in self.rows if row.name == reason), None)
        return f"{reason}: no catalogue row has this name" if row is None else _explain(reason, row)


def _explain(reason: str, row: RowMeaning) -> str:
    lines = [f"{reason}: {row.description}"]
    if isinstance(row, XidRow) and row.mnemonic:
        lines.append(f"name: {row.mnemonic}")
    if isinstance(row, XidRow) and row.decode:
        lines.append("verdict: decoded from the line")
    else:
        lines.append(f"verdict: {row.verdict}{_requires(row.fault_class)}")
    if isinstance(row, SxidRow) and row.verdict_if_fatal != row.verdict:
        lines.append(f"verdict if the line contains Fatal: {row.verdict_if_fatal}{_requires(row.class_if_fatal)}")
    if isinstance(row, PatternRow) and row.count > 1:
        lines.append(f"reported after: {row.count} lines for one component within {row.window_s:g} s")
    if row.clears:
        lines.append(f"ends with: {_CLEARS[row.clears]}")
    if row.verdict is Verdict.WARN:
        lines.append(f"a WARN ends after: {row.quiet_s:g} s without a new sign")
    lines.append(f"source: {row.source}")
    return "\n".join(lines)


def _requires(fault_class: FaultClass) -> str:
    return f", requires: {fault_class}" if fault_class else ""


_CLEARS = {
    "boot": "a reboot",
    "driver": "a message of the driver (a successful reset, or its clearing line), or a reboot",
    "person": "muster clear, or a reboot",
    "quiet": "a quiet time",
}
