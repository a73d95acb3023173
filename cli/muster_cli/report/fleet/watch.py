"""`muster status --watch`: reads the fleet every two seconds.

On a terminal the table is repainted. Elsewhere each changed row is a line of its own, with its time.
"""

import asyncio
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TextIO

import msgspec

from muster_checks.base.vocabulary import shorten
from muster_cli.exit_codes import exit_code
from muster_cli.report.colours import use_colour
from muster_cli.report.columns import as_lines, as_page
from muster_cli.report.fleet.rows import HEAD, NodeRow, select_rows, summary, worst_verdict
from muster_kube.api.errors import ApiError
from muster_kube.api.times import rfc3339_whole
from muster_kube.process.command_line import EXIT_UNKNOWN

PERIOD_S = 2.0
_CLEAR = "\x1b[H\x1b[2J"  # cursor to the top left, then erase the display (ECMA-48)
_ERROR_LIMIT = 400  # bytes


class FleetWatch:
    """every: show healthy nodes too, however many there are. footer: lines below the table, after each read."""

    def __init__(
        self,
        *,
        every: bool = False,
        footer: Callable[[], Iterable[str]] = tuple,
        file: TextIO | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._every = every
        self._footer = footer
        self._file = file or sys.stdout
        self._sleep = sleep
        self._now = now
        self._rows: list[NodeRow] | None = None
        self._error = ""
        self._painted = ""

    def exit_code(self) -> int:
        """Of the state that was shown last; UNKNOWN if the last read has failed."""
        if self._rows is None or self._error:
            return EXIT_UNKNOWN
        return exit_code(worst_verdict(self._rows).value)

    async def run(self, read: Callable[[], Awaitable[list[NodeRow]]]) -> int:
        """Until cancelled. Raises ApiError if the first read fails; later errors are shown and retried."""
        while True:
            try:
                rows = await read()
            except ApiError as error:
                if self._rows is None:
                    raise
                self._fail(f"muster: {shorten(str(error), _ERROR_LIMIT)}")
            else:
                self._show(rows)
            await self._sleep(PERIOD_S)

    def _show(self, rows: list[NodeRow]) -> None:
        before, self._rows, self._error = self._rows, rows, ""
        if self._file.isatty():
            self._repaint(rows)
        elif before is None:
            visible, hidden = select_rows(rows, every=self._every)
            self._print_rows(visible, head=True)
            print(
                *([hidden] if hidden else []),
                *map(shorten, self._footer()),
                summary(rows),
                sep="\n",
                file=self._file,
                flush=True,
            )
        else:
            known = {row.node: _without_ages(row) for row in before}
            self._print_rows([row for row in rows if known.pop(row.node, None) != _without_ages(row)])
            for node in known:
                print(f"{rfc3339_whole(self._now())}  {shorten(node)}  removed", file=self._file, flush=True)

    def _fail(self, error: str) -> None:
        repeated, self._error = error == self._error, error
        if self._file.isatty():
            self._repaint(self._rows or [])
        elif not repeated:
            print(error, file=sys.stderr, flush=True)

    def _repaint(self, rows: Sequence[NodeRow]) -> None:
        width, height = shutil.get_terminal_size()
        visible, hidden = select_rows(rows, every=self._every)
        now = self._now()
        page = as_page(HEAD, [row.cells(now) for row in visible], width, colour=use_colour(self._file))
        lines = page.splitlines()
        last = [line for line in (hidden, *map(shorten, self._footer()), summary(rows), self._error) if line]
        room = max(1, height - len(last) - 2)
        if len(lines) > room:
            last = [f"{len(lines) - room} more lines do not fit on this screen", *last]
            lines = lines[:room]
        painted = "\n".join([*lines, *last])
        if painted != self._painted:
            self._painted = painted
            print(_CLEAR + painted, file=self._file, flush=True)

    def _print_rows(self, rows: Sequence[NodeRow], *, head: bool = False) -> None:
        at = rfc3339_whole(self._now())
        lines = as_lines(("TIME", *HEAD), [(at, *row.cells(self._now())) for row in rows])
        for line in lines if head else lines[1:]:
            print(line, file=self._file, flush=True)


def _without_ages(row: NodeRow) -> NodeRow:
    """``state`` holds the age of the idle time, which grows all the time."""
    return msgspec.structs.replace(row, state="", idle_since="idle" if row.idle_since else "", since="")
