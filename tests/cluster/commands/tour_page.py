"""docs/tour.md as a transcript: which commands it types, and whether what they printed is what it says. Pure.

Commands stand in ```console blocks, each after `$ `, with what it printed below. Comments before a block direct it:

<!-- until: REGEX -->        its last command only looks: it is typed again until it prints that, as the page says
<!-- varies: REGEX -->       what this matches may be anything else that it matches; there may be several
<!-- background: REGEX -->   its command goes on running; what is shown is the first match, once that is printed

`^C` instead of a command ends what runs in the background.
"""

import difflib
import re
from dataclasses import dataclass, replace

INTERRUPT = "^C"
_COMMENT = re.compile(r"<!-- (until|varies|background): (.+) -->")
_OPEN, _CLOSE = "```console", "```"
# what is never the same twice
_VARYING = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"), "TIME"),
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "UID"),
    (re.compile(r"\b127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"\bv\d+\.\d+\.\d+\S*"), "VERSION"),
    (re.compile(r"\b\d+(ms|s|m|h|d)( ?\d+(ms|s|m|h|d))*\b"), "DURATION"),
    (re.compile(r" {2,}"), "  "),  # columns are as wide as what stands in them
)


class BadPage(Exception):
    """The page cannot be run; says where and why."""


@dataclass(frozen=True)
class Step:
    """A command and what the page says that it prints. first, after: the lines of that, numbered from 0."""

    command: str
    printed: str
    first: int
    after: int
    until: str = ""
    varies: tuple[str, ...] = ()
    background: str = ""

    def says(self, printed: str) -> bool:
        return self._constant(printed) == self._constant(self.printed)

    def difference(self, printed: str) -> str:
        page, found = self._constant(self.printed), self._constant(printed)
        return "\n".join(difflib.unified_diff(page, found, "docs/tour.md", "printed", lineterm="", n=9))

    def _constant(self, text: str) -> list[str]:
        for pattern in self.varies:
            text = re.sub(pattern, "(varies)", text)
        for known, word in _VARYING:
            text = known.sub(word, text)
        return [line.rstrip() for line in text.strip("\n").splitlines()]


def steps(page: str) -> list[Step]:
    """In order. Raises BadPage."""
    found: list[Step] = []
    directions: list[tuple[str, str]] = []
    block: list[Step] | None = None
    lines = page.splitlines()
    for number, line in enumerate(lines):
        if block is not None and line == _CLOSE:
            found += _directed(block, directions, number)
            block, directions = None, []
        elif block is not None and (line.startswith("$ ") or line == INTERRUPT):
            block.append(Step(line.removeprefix("$ "), "", number + 1, number + 1))
        elif block is not None:
            if not block:
                raise BadPage(f"line {number + 1}: a block begins with a command, after `$ `")
            last = block[-1]
            block[-1] = replace(last, printed=f"{last.printed}{line}\n", after=number + 1)
        elif line == _OPEN:
            block = []
        elif comment := _COMMENT.fullmatch(line):
            directions.append((comment[1], comment[2]))
        elif directions:
            raise BadPage(f"line {number + 1}: expected {_OPEN} after a comment that directs a block, found {line!r}")
    if block is not None or directions:
        raise BadPage(f"line {len(lines)}: the page ends within a block, or after a comment that directs one")
    return found


def _directed(block: list[Step], directions: list[tuple[str, str]], number: int) -> list[Step]:
    if not block:
        raise BadPage(f"line {number + 1}: a block without a command")
    varies = tuple(pattern for word, pattern in directions if word == "varies")
    one = {word: pattern for word, pattern in directions if word != "varies"}
    *before, last = (replace(step, varies=varies) for step in block)
    return [*before, replace(last, **one)]


def written(page: str, printed: dict[Step, str]) -> str:
    """The page with what was printed; the page itself where that is the same but for what varies."""
    if all(step.says(text) for step, text in printed.items()):
        return page
    lines = page.splitlines()
    for step in sorted(printed, key=lambda step: step.first, reverse=True):
        lines[step.first : step.after] = [line.rstrip() for line in printed[step].strip("\n").splitlines()]
    return "\n".join(lines) + "\n"
