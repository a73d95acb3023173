"""Patterns that span several lines, matched as node-problem-detector matches them.

That program joins the last ``bufferSize`` lines with newlines (empty lines before the first one). A rule fires on each
new line after which the joined text ends in a match. This costs a join and a scan for each line, so only patterns that
can match a newline are handled here; the others are matched in single lines (npd_rules.py).
"""

from collections import deque
from collections.abc import Sequence

from muster_checks.dmesg.catalogue.match import Matcher
from muster_checks.dmesg.catalogue.types import PatternRow

LINE_CHARACTERS = 8192  # maximum length of a stored line: these lines are part of the saved state
_WHOLE = "muster_whole"  # a group around the pattern: where the match begins


class RecentLines:
    """``rows``: those with ``lines``. ``wanted``: whether there are any, so that every line must be pushed."""

    def __init__(self, rows: Sequence[PatternRow]) -> None:
        self.wanted = bool(rows)
        self._kinds: list[tuple[int, Matcher, list[PatternRow]]] = []
        for lines in sorted({row.lines for row in rows}):
            pairs = [(row, pattern) for row in rows if row.lines == lines for pattern in row.patterns]
            patterns = [rf"(?-m:(?P<{_WHOLE}>{pattern})\z)" for _, pattern in pairs]
            self._kinds.append((lines, Matcher(patterns), [row for row, _ in pairs]))
        self._last: deque[str] = deque(maxlen=max((row.lines for row in rows), default=0))
        self.load([])

    def push(self, texts: Sequence[str]) -> list[tuple[PatternRow, str]]:
        """Take in the lines of one record. Returns the rows that fire, each with the complete lines that its match
        spans."""
        fired: list[tuple[PatternRow, str]] = []
        for line in (line for text in texts for line in text.split("\n")):
            self._last.append(line.strip()[-LINE_CHARACTERS:])  # a match must include the end of the line
            for lines, matcher, rows in self._kinds:
                joined = "\n".join(list(self._last)[-lines:]).encode("utf-8", "replace")
                for index in matcher.which(joined):
                    found = matcher.groups(index, joined).get(_WHOLE, "").encode()
                    first = joined.rfind(b"\n", 0, len(joined) - len(found)) + 1
                    fired.append((rows[index], joined[first:].decode("utf-8", "replace").strip()))
        return fired

    def dump(self) -> list[str]:
        return list(self._last)

    def load(self, lines: Sequence[str]) -> None:
        """Continue after ``lines``; missing lines are empty."""
        length = self._last.maxlen or 0
        self._last.extend([""] * length)
        self._last.extend(lines[-length:] if length else [])
