"""Runs the commands of a document as they are written, and records which ones have not run yet."""

import contextlib
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.docs.document_commands import ROOT, commands, documents
from tests.machine import PACKAGES, require

LIMIT_S = 500.0  # ends a command that hangs, before the test that types it is ended (600 s)
Done = subprocess.CompletedProcess[str]


@cache
def _words() -> dict[str, tuple[str, ...]]:
    """The words of each command in the documents, by its line."""
    return {" ".join(each.words): each.words for page in documents() for each in commands(page)}


def _ended_well(done: Done) -> bool:
    return done.returncode == 0


class CommandRunner:
    """lines: the commands to run. names: values of placeholders, which are whole words or parts between punctuation.
    left: commands that have not succeeded yet."""

    def __init__(
        self, lines: set[str], names: Mapping[str, str], environ: Mapping[str, str], folder: Path = ROOT
    ) -> None:
        self.names = dict(names)
        self.left = set(lines)
        self._lines = frozenset(lines)
        # without the variables of the make that runs the tests
        ours = ("ARGS", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")
        own = {name: value for name, value in os.environ.items() if name not in ours}
        self._environ = {**own, **environ}
        self._folder = folder

    def words(self, line: str) -> list[str]:
        """Replaces placeholders. Skips the test if the program is missing."""
        assert line in self._lines, f"a marker in the documents gives it to another test: {line}"
        known = "|".join(map(re.escape, sorted(self.names, key=len, reverse=True))) or "(?!)"
        placeholder = re.compile(rf"(?<![\w-])({known})(?![\w-])")
        words = [placeholder.sub(lambda found: self.names[found[1]], word) for word in _words()[line]]
        if words[0] in PACKAGES:
            require(words[0])
        return words

    def type(
        self,
        line: str,
        *more: str,
        within: Sequence[str] = (),
        stdin: str = "",
        judge: Callable[[Done], bool] = _ended_well,
    ) -> str:
        """Runs the command and returns its output. more: words to append; within: words to prepend, such as nsenter."""
        done = subprocess.run(
            [*within, *self.words(line), *more],
            input=stdin, capture_output=True, text=True, timeout=LIMIT_S, check=False,
            env=self._environ, cwd=self._folder,
        )  # fmt: skip
        assert judge(done), f"{line}: {done.returncode}: {done.stdout}{done.stderr}"
        self.left.discard(line)
        return done.stdout

    @contextlib.contextmanager
    def going_on(self, line: str, says: str, *, within: Sequence[str] = ()) -> Iterator[None]:
        """Keeps the command running inside the context; its first line of output must be ``says``."""
        words = [*within, *self.words(line)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=self._environ, cwd=self._folder) as process:
            try:
                assert process.stdout
                assert (first := process.stdout.readline()) == f"{says}\n", f"{line}: {first}"
                self.left.discard(line)
                yield
            finally:
                process.terminate()
