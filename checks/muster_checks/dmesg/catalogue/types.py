"""What kernel lines mean for a node: tables of data, with the reason of each verdict beside it.

The tables lie in ``rows/``: ``xid.csv``, ``sxid.csv`` and ``kernel.yaml`` are read when the catalogue is made, the
decoding tables of single Xid when the first such line comes. A user's file adds rows or changes shipped ones
(row_file.py). Verdicts follow NVIDIA's immediate action for each code: what asks only for the application to be
restarted is a warning and never more, however often it comes.
"""

import csv
import io
from collections.abc import Iterable, Iterator
from functools import cached_property
from importlib.resources import files

import msgspec

from muster_checks.base.vocabulary import FaultClass, Verdict

QUIET_S = 3600.0  # a warning goes when there was no new sign for this long, unless its row says otherwise
COUNT_LIMIT = 100  # what a row may count to: a time is kept for each line counted
XID_REASON, SXID_REASON = "Xid", "SXid"


class CatalogueError(ValueError):
    """A row that cannot be used. The text names file, row, key, what was found and what is allowed."""


class RowMeaning(msgspec.Struct, frozen=True, kw_only=True):
    """What a code or a row means for the node.

    verdict:  ``FAIL``, ``WARN``, or ``PASS`` for what is no sign of trouble
    clears:   how the finding goes, for people: ``boot``, ``driver`` (its own clearing line or a reset), ``person``,
              ``quiet``. A WARN goes when it has been quiet in any case, a FAIL never does
    quiet_s:  seconds without a new sign after which a WARN is over
    source:   who says so
    """

    verdict: Verdict
    fault_class: FaultClass = FaultClass.NONE
    description: str = ""
    clears: str = ""
    quiet_s: float = QUIET_S
    source: str = ""


class XidRow(RowMeaning, frozen=True, kw_only=True):
    """``decode``: which table or text has the verdict instead (``xid74``, ``nvlink5``, ``recovery``);
    ``cancels``: codes whose findings on the same GPU are over with this one."""

    code: int
    mnemonic: str = ""
    decode: str = ""
    cancels: tuple[int, ...] = ()


class SxidRow(RowMeaning, frozen=True, kw_only=True):
    """``verdict_if_fatal``, ``class_if_fatal``: when the line itself says Fatal."""

    code: int
    verdict_if_fatal: Verdict
    class_if_fatal: FaultClass = FaultClass.NONE


class RecoveryRow(RowMeaning, frozen=True, kw_only=True):
    """An action that Xid 154 may name."""

    action: str


class LinkBitRow(msgspec.Struct, frozen=True, kw_only=True):
    """One bit of the registers of Xid 74; below ``min_count`` on one link it is a warning."""

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
    """A pattern row of kernel.yaml. ``name`` is the finding's reason.

    patterns:      any of them; named groups fill the templates, ``bdf`` is brought into one form, ``driver`` gives
                   ``kind`` (gpu, nic, disk, nvswitch, pci), ``uuid`` gives the GPU's ``bdf`` where it is known
    component:     template; ``host`` where a group it needs is missing
    message:       template, for people; may also use ``{count}``
    count, window_s:  so many lines for one component within so many seconds make the finding; a group ``n`` counts n
    clear_pattern: the kernel says that it is over, for the component its groups give
    context, context_s:  an earlier line, this many seconds before at most, whose groups fill in missing ones
    after, after_s:  fires only within this many seconds after that row was seen
    covered_by:    reasons that say the same: while one is open for the component, this one is not raised
    status_set, status_clear:  bits that must be set or clear in the hexadecimal group ``status``
    lines:    0: the patterns stand anywhere in one record; else they end where the last ``lines`` lines end
    delay_s:  lines of the first so many seconds of a boot do not count

    Several rows may have one name: what one of them has said of a record, the next says again only if it is worse.
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
    delay_s: float = 0.0


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
    source="no public table has it: a newer driver; an unknown code alone takes no node",
)
UNKNOWN_SXID = SxidRow(
    code=-1,
    verdict=Verdict.WARN,
    verdict_if_fatal=Verdict.FAIL,
    class_if_fatal=FaultClass.RESET,
    description="code unknown to this catalogue",
    clears="driver",
    source="no public table has it; the line's own word decides",
)


class Catalogue:
    """All rows, shipped and changed by a user. Made by :func:`load_catalogue`."""

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
        """By their text in lower case."""
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
        """What a finding with this reason means, for people: several lines, or that nothing is known of it."""
        head = reason.split(":", 1)[0]
        for prefix, known in ((SXID_REASON, self.sxid), (XID_REASON, self.xid)):
            number = head.removeprefix(prefix)
            if number != head and number.isascii() and number.isdigit() and len(number) < 8:
                return _explain(reason, known(int(number)))
        row = next((row for row in self.rows if row.name == reason), None)
        return f"{reason}: no row of this name" if row is None else _explain(reason, row)


def _explain(reason: str, row: RowMeaning) -> str:
    lines = [f"{reason}: {row.description}"]
    if isinstance(row, XidRow) and row.mnemonic:
        lines.append(f"name: {row.mnemonic}")
    if isinstance(row, XidRow) and row.decode:
        lines.append("verdict: read from the line itself")
    else:
        lines.append(f"verdict: {row.verdict}{_asks(row.fault_class)}")
    if isinstance(row, SxidRow) and row.verdict_if_fatal != row.verdict:
        lines.append(f"verdict if the line says Fatal: {row.verdict_if_fatal}{_asks(row.class_if_fatal)}")
    if isinstance(row, PatternRow) and row.count > 1:
        lines.append(f"from: {row.count} lines for one component within {row.window_s:g} s")
    if row.clears:
        lines.append(f"over with: {_CLEARS[row.clears]}")
    if row.verdict is Verdict.WARN:
        lines.append(f"as a warning over after: {row.quiet_s:g} s without a new one")
    lines.append(f"source: {row.source}")
    return "\n".join(lines)


def _asks(fault_class: FaultClass) -> str:
    return f", asks for: {fault_class}" if fault_class else ""


_CLEARS = {
    "boot": "a reboot",
    "driver": "the driver's own word (a reset that worked, or its clearing line), or a reboot",
    "person": "a person's word, or a reboot",
    "quiet": "quiet",
}
