"""State of one kernel line while it is judged."""

from muster_checks.base.vocabulary import Verdict, severity
from muster_checks.dmesg.catalogue.types import PatternRow
from muster_checks.dmesg.open_findings import Event
from muster_checks.dmesg.sources.records import KernelLine

LINE_CHARACTERS = 8192


class LineContext:
    """One record: its time, the text being judged, the events so far, and by row name the verdicts of the rows that
    matched."""

    __slots__ = ("_whole", "at", "events", "line", "rows", "text")

    def __init__(self, line: KernelLine, at: float) -> None:
        self.line = line
        self.text = b""
        self.at = at
        self.events: list[Event] = []
        self.rows: dict[str, Verdict] = {}
        self._whole: str | None = None

    def has_reported(self, row: PatternRow) -> bool:
        """A row of this name has already reported the record with the same or a worse verdict."""
        reported = self.rows.get(row.name)
        return reported is not None and severity(reported) >= severity(row.verdict)

    @property
    def whole(self) -> str:
        if self._whole is None:
            # a lone surrogate could not be encoded
            self._whole = self.line.whole[:LINE_CHARACTERS].encode("utf-8", "replace").decode()
        return self._whole
