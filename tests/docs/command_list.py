"""Which test types which of the documents' commands, as the documents themselves say in comments that no reader sees.

``<!-- typed by: tests/a/test_b.py -->`` above a block (a paragraph, a list, a table, or code) names the test that types
its commands; several share them in their order, ``tests/a/test_b.py (2)`` two of them. All other commands of a page are
typed by that of ``<!-- page typed by: tests/a/test_b.py -->``. A command that stands on several pages needs one marker,
and all that hold for it name the same test. A test asks for its own commands and types all.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.docs.document_commands import ROOT, Command, commands, documents

# a sentence has the name alone, with nothing to type it with
NAMED = frozenset(
    (
        "helm rollback", "helm template", "helm upgrade", "kubectl create token", "kubectl delete pod",
        "kubectl describe", "kubectl describe pod", "kubectl exec", "kubectl get lease", "kubectl logs",
        "kubectl port-forward", "kubectl scale", "muster sandbox",
    )
)  # fmt: skip
_MARKER = re.compile(r"^[ \t]*<!-- (page )?typed by: (.+?) -->[ \t]*$", re.MULTILINE)
_NAME = re.compile(r"([^\s,]+)(?: \((\d+)\))?")


@dataclass(frozen=True)
class Page:
    """found: its commands, in their order; where: of each the line."""

    name: str
    text: str
    found: Sequence[Command]


@dataclass
class CommandList:
    """typed: lines by the test file that types them. wrong: what the markers leave open, or say twice."""

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
    """A command, its test, and where the command stands."""
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
    """Lines up to its end; blank ones before it count."""
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
    """What the file ``test``, its ``__file__``, has to type."""
    typed: Mapping[str, set[str]] = command_list().typed
    return set(typed[Path(test).resolve().relative_to(ROOT).as_posix()])
