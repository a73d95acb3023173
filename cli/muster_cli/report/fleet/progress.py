"""Progress of `muster run` on stderr: one line that is repainted on a terminal, otherwise a line for each node that is
not healthy."""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from typing import TextIO

from muster_checks.base.vocabulary import Verdict, shorten
from muster_cli.report.fleet.answer import GOOD, FleetAnswers, worst_line
from muster_cli.report.quantities import plural

RENEWED_S = 0.2


class FleetProgress:
    """``total``: number of nodes that run the checks; None while it is not known."""

    def __init__(
        self,
        answers: FleetAnswers,
        *,
        total: int | None = None,
        file: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total = total
        self._answers = answers
        self._file = file or sys.stderr
        self._terminal = self._file.isatty()
        self._clock = clock
        self._began = clock()

    async def show(self) -> None:
        """Until cancelled."""
        while self._terminal:
            print(f"\r\x1b[2K{self.line()[: self._width()]}", end="", file=self._file, flush=True)
            await asyncio.sleep(RENEWED_S)

    def line(self) -> str:
        """``132/500 nodes, 2 FAIL, 1 UNKNOWN, 0:42``."""
        done = len(self._answers.verdicts)
        counted = f"{done}/{self.total} nodes" if self.total is not None else plural(done, "node")
        bad = [
            f"{number} {verdict.value}"
            for verdict in (Verdict.FAIL, Verdict.WARN, Verdict.UNKNOWN)
            if (number := self._answers.count(verdict))
        ]
        minutes, seconds = divmod(int(self._clock() - self._began), 60)
        return ", ".join([counted, *bad, f"{minutes}:{seconds:02}"])

    def print_bad(self, node: str) -> None:
        """Without a terminal: print a line if ``node``, which has answered, is not healthy."""
        if not self._terminal and self._answers.verdicts[node] not in GOOD:
            print(shorten(worst_line(self._answers.rows[node]), 1024), file=self._file, flush=True)

    def clear(self) -> None:
        if self._terminal:
            print("\r\x1b[2K", end="", file=self._file, flush=True)

    def _width(self) -> int:
        try:
            return max(20, os.get_terminal_size(self._file.fileno()).columns - 1)
        except OSError:
            return 79
