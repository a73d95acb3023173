"""`make lint`: assertions that hold sentences, which would stop anybody from improving the English of a message.

    python tests/wording/assertions.py          fails where a file holds more of them than allowed.yaml has for it
    python tests/wording/assertions.py --list   each of them, as FILE:LINE: TEXT
    python tests/wording/assertions.py --update allowed.yaml with today's numbers, where they are smaller

A test asserts a reason, a verdict, a number, an object or an exit code. Where the words of a message matter, one test
holds them, in the component's `test_messages.py`, which is not searched.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

TESTS = Path(__file__).parent.parent
ALLOWED = Path(__file__).parent / "allowed.yaml"
MESSAGES = "test_messages.py"
WORDS = 4
_WORD = re.compile(
    r"[a-z']*[a-z][a-z']+[,:;.!?]?|a|[A-Z][a-z]+[,:;.!?]?"
)  # no flags, paths, names with digits or capitals inside


def held_sentences(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each sentence within an assert, or in the ``match`` of a ``pytest.raises`` or ``warns``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assert):
            yield from _sentences(node.test)
        elif isinstance(node, ast.keyword) and node.arg == "match":
            yield from _sentences(node.value)


def _sentences(expression: ast.expr) -> Iterator[tuple[int, str]]:
    for node in ast.walk(expression):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_sentence(node.value):
            yield node.lineno, node.value


def _is_sentence(text: str) -> bool:
    return sum(1 for word in text.split() if _WORD.fullmatch(word)) >= WORDS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--update", action="store_true")
    arguments = parser.parse_args()
    found = {
        path.relative_to(TESTS).as_posix(): list(held_sentences(path.read_text()))
        for path in sorted(TESTS.rglob("*.py"))
        if path.name != MESSAGES
    }
    allowed: dict[str, int] = yaml.safe_load(ALLOWED.read_text()) if ALLOWED.exists() else {}
    if arguments.list:
        for file, sentences in found.items():
            for line, text in sentences:
                print(f"tests/{file}:{line}: {text!r}")
        return 0
    counts = {file: len(sentences) for file, sentences in found.items() if sentences}
    if arguments.update:
        smaller = {file: min(count, allowed.get(file, 0)) for file, count in counts.items() if allowed.get(file)}
        _write(smaller if allowed else counts)
        return 0
    wrong = False
    for file in sorted(counts.keys() | allowed.keys()):
        count, limit = counts.get(file, 0), allowed.get(file, 0)
        if count > limit:
            wrong = True
            for line, text in found[file]:
                print(f"tests/{file}:{line}: an assertion holds a sentence: {text[:80]!r}")
            print(f"tests/{file}: {count} such assertions, {limit} allowed: assert a fact, or use {MESSAGES}")
        elif count < limit:
            wrong = True
            print(f"tests/{file}: {count} such assertions, {limit} allowed: run {Path(__file__).name} --update")
    return wrong


def _write(counts: dict[str, int]) -> None:
    head = "# file: assertions in it that hold a sentence. It only shrinks: tests/wording/assertions.py --update\n"
    ALLOWED.write_text(head + yaml.safe_dump(counts))


if __name__ == "__main__":
    sys.exit(main())
