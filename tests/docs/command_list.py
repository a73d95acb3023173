"""Reads from hidden comments in the documents which test types which command.

``<!-- typed by: tests/a/test_b.py -->`` above a block (a paragraph, a list, a table, or code) names the test that types
its commands. Several names apply to the commands in their order; ``tests/a/test_b.py (2)`` applies to two of them. The
test in ``<!-- page typed by: tests/a/test_b.py -->`` types all other commands of the page. A command on several pages
needs one marker, and all markers for it must name the same test. A test calls ``commands_of_test`` for its commands and
types all of them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.docs.document_commands import ROOT, Command, commands, documents

# names of commands that sentences mention without arguments; no test types them
NAMED = frozenset(
    (
        "helm rollback", "helm template", "helm test", "helm uninstall", "helm upgrade", "kubectl create token",
        "kubectl delete pod", "kubectl describe", "kubectl describe pod", "kubectl exec",
        "kubectl get lease", "kubectl logs", "kubectl port-forward", "kubectl scale", "muster policy check",
        "muster release", "muster replay", "muster sandbox", "muster simulate",
    )
)  # fmt: skip
_MARKER = re.compile(r"^[ \t]*<!-- (page )?typed by: (.+?) -->[ \t]*$", re.MULTILINE)
_NAME = re.compile(r"([^\s,]+)(?: \((\d+)\))?")


@dataclass(frozen=True)
class Page:
    """found: the page's commands, in their order."""

    name: str
    text: str
    found: Sequence[Command]


@dataclass
class CommandList:
    """typed: command lines by the test file that types them. wrong: missing or contradictory markers."""

    typed: dict[str, set[str]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def give(self, line: str, test: str, where: str) -> None:
        others = [other for other, lines in self.typed.items() if line in lines and other != test]
        self.wrong += [f"{where}: {line}: typed by {test} and by {other}" for other in others]
        self.typed.setdefault(test, set()).add(line)


def read_markers(pages: Iterable[Page]) -> CommandList:
    pages = list(pages)
    made = CommandList()
    for page in pages:
        for line, test, where in _of_blocks(page, made.wrong):
            made.give(line, test, where)
    by_block = {line for lines in made.typed.values() for line in lines}
    for page in pages:
        for test in _of_page(page):
            for command in page.found:
                if (line := _line(command)) not in by_block | NAMED:
                    made.give(line, test, command.where)
    given = {line for lines in made.typed.values() for line in lines}
    open_lines = {_line(each): each.where for page in pages for each in page.found if _line(each) not in given | NAMED}
    made.wrong += [f"{where}: {line}: no marker says which test types it" for line, where in open_lines.items()]
    return made


def _line(command: Command) -> str:
    return " ".join(command.words)


def _of_page(page: Page) -> Iterator[str]:
    for marker in _MARKER.finditer(page.text):
        if marker[1]:
            yield marker[2]


def _of_blocks(page: Page, wrong: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yields a command, its test, and the command's file and line."""
    for marker in _MARKER.finditer(page.text):
        if marker[1]:
            continue
        begins = page.text.count("\n", 0, marker.end()) + 2
        ends = begins + _block_length(page.text.splitlines()[begins - 1 :])
        inside = [each for each in page.found if begins <= _number(each) < ends]
        tests = [test for name, count in _NAME.findall(marker[2]) for test in [name] * int(count or 1)]
        if not inside or len(tests) not in (1, len(inside)):
            wrong.append(f"{page.name}:{begins - 1}: {len(tests)} tests are named for {len(inside)} commands")
            continue
        for number, command in enumerate(inside):
            yield _line(command), tests[number % len(tests)], command.where


def _number(command: Command) -> int:
    return int(command.where.rpartition(":")[2])


def _block_length(lines: Sequence[str]) -> int:
    """Number of lines to the end of the first block, including blank lines before it."""
    first = next((number for number, line in enumerate(lines) if line.strip()), len(lines))
    rest = lines[first:]
    if not rest:
        return len(lines)
    if rest[0].lstrip().startswith("```"):
        ends = (number for number, line in enumerate(rest[1:], 2) if line.lstrip().startswith("```"))
    elif rest[0].startswith("    "):
        ends = (number for number, line in enumerate(rest) if line.strip() and not line.startswith("    "))
    else:
        ends = (number for number, line in enumerate(rest) if not line.strip() or line.lstrip().startswith("```"))
    return first + next(ends, len(rest))


def load_page(path: Path) -> Page:
    return Page(path.relative_to(ROOT).as_posix(), path.read_text(), tuple(commands(path)))


@cache
def command_list() -> CommandList:
    return read_markers(load_page(path) for path in documents())


def commands_of_test(test: str) -> set[str]:
    """The commands that the test file must type. test: its ``__file__``."""
    typed: Mapping[str, set[str]] = command_list().typed
    return set(typed[Path(test).resolve().relative_to(ROOT).as_posix()])
