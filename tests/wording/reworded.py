"""Runs tests on a copy of this checkout in which every message is worded otherwise, and names the messages that a test
holds.

    python tests/wording/reworded.py muster_tainter tests/tainter      pytest's words, after the component's name

In the copy each sentence of the component's Python, from three plain words in a row on, has a word more, which no other
sentence has: "waits for its agent" becomes "waits zaabz for its agent". Names, reasons, numbers and values stay.
Docstrings, regular expressions, what a comparison looks for, commands and scripts stay, too.

The words in what a failed test prints say which messages it holds. One test may hold a message, in its component's
test_messages.py. The exit code is 0 if that is so.
"""

import ast
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent.parent
COMPONENTS = {
    "muster_checks": "checks",
    "muster_agent": "agent",
    "muster_tainter": "tainter",
    "muster_operator": "operator",
    "muster_kube": "kube",
    "muster_cli": "cli",
    "muster_sandbox": "sandbox",
}
TOLD = "test_messages.py"
_MARK = re.compile(r"\bz[a-z]{3}z\b")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_COMMANDS = r"(?!(?:muster|kubectl|helm) )"  # what a person is to type stays as it is
_PROSE = re.compile(
    rf"(?<![\w\\]){_COMMANDS}([a-z]{{2,}}) (?=[a-z]+ [a-z]+)|(?<![\w\\]){_COMMANDS}([a-z]{{2,}}) (?=[a-z]{{2,}}(?: |$))"
)
_WHOLE_COMMANDS = ("kubectl ", "helm ")
_PATTERNS = {"compile", "match", "fullmatch", "search", "sub", "finditer", "findall", "split"}
_LOOKUPS = {"get", "value", "startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition"}


class _Rewording(ast.NodeVisitor):
    """Collects where sentences stand: (line, column, end line, end column) in UTF-8 bytes, as ast counts."""

    def __init__(self) -> None:
        self.spans: list[tuple[int, int, int, int]] = []

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        pass

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name not in _PATTERNS | _LOOKUPS:
            self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if not all(isinstance(each, ast.Name) and each.id.isupper() for each in node.targets) or not isinstance(
            node.value, (ast.Tuple, ast.Set)
        ):  # words that a tool prints, to compare with
            self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        for value in node.values:
            self.visit(value)

    def visit_List(self, node: ast.List) -> None:
        words = [each.value for each in node.elts if isinstance(each, ast.Constant)]
        if "-c" not in words:  # a shell's command
            self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self._add(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and not node.value.startswith("#!"):  # a script
            self._add(node)

    def _add(self, node: ast.expr) -> None:
        if ast.unparse(node).lstrip("f'\"").startswith(_WHOLE_COMMANDS):
            return
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        self.spans.append((node.lineno, node.col_offset, node.end_lineno, node.end_col_offset))


def reworded(source: str, marks: Iterator[str]) -> tuple[str, dict[str, tuple[int, str]]]:
    """``source`` with each sentence in it changed, and the line and the literal of each mark. The first fitting pair of
    words of each literal's part is parted by the next of ``marks``."""
    visitor = _Rewording()
    visitor.visit(ast.parse(source))
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    whole, messages = source.encode(), {}
    for first, column, last, end in sorted(visitor.spans, reverse=True):
        begin, stop = starts[first - 1] + column, starts[last - 1] + end
        literal = whole[begin:stop].decode()
        mark = next(marks)
        changed = "".join(part if is_code else _reword(part, mark) for is_code, part in _parts(literal))
        if changed != literal:
            messages[mark] = first, literal
        whole = whole[:begin] + changed.encode() + whole[stop:]
    return whole.decode(), messages


def make_marks() -> Iterator[str]:
    return (f"z{''.join(letters)}z" for letters in itertools.product(_LETTERS, repeat=3))


def find_tests(report: Iterable[tuple[str, str]]) -> tuple[dict[str, set[str]], set[str]]:
    """The tests that hold each mark, and those that failed without one. report: failed tests, and what they printed;
    a test with several sets of parameters counts once."""
    holders: dict[str, set[str]] = {}
    others, named = set(), set()
    for test, printed in report:
        name = test.partition("[")[0]
        found = set(_MARK.findall(printed))
        for mark in found:
            holders.setdefault(mark, set()).add(name)
        (named if found else others).add(name)
    return holders, others - named


def _parts(literal: str) -> Iterator[tuple[bool, str]]:
    """Its text and what stands in its braces, in turn. In a plain string such braces are a place for format()."""
    depth = begin = 0
    for at, character in enumerate(literal):
        if character == "{" and (depth := depth + 1) == 1:
            yield False, literal[begin:at]
            begin = at
        elif character == "}" and depth and (depth := depth - 1) == 0:
            yield True, literal[begin : at + 1]
            begin = at + 1
    yield depth > 0, literal[begin:]


def _reword(part: str, mark: str) -> str:
    if "(?" in part or "\\s" in part or "\\d" in part:
        return part
    return _PROSE.sub(lambda found: f"{found[0]}{mark} ", part, count=1)


def _copy_checkout(copy: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)


def _reword_component(folder: Path) -> dict[str, str]:
    """``FILE:LINE: LITERAL`` by mark."""
    marks, messages = make_marks(), {}
    for path in sorted(folder.rglob("*.py")):
        after, found = reworded(path.read_text(), marks)
        ast.parse(after)
        path.write_text(after)
        name = path.relative_to(folder.parent)
        messages |= {mark: f"{name}:{line}: {literal}" for mark, (line, literal) in found.items()}
    return messages


def _read_failures(junit: Path) -> Iterator[tuple[str, str]]:
    for case in ElementTree.parse(junit).iter("testcase"):  # noqa: S314 - pytest has written it
        printed = [element.text or "" for element in case if element.tag in ("failure", "error")]
        if printed:
            yield f"{case.get('classname')}::{case.get('name')}", "\n".join(printed)


def _print_held(messages: Mapping[str, str], holders: Mapping[str, set[str]], others: set[str]) -> bool:
    """Whether anything is held that should not be."""
    wrong = False
    for mark, tests in sorted(holders.items(), key=lambda held: messages.get(held[0], "")):
        elsewhere = [test for test in tests if TOLD.removesuffix(".py") not in test]
        if len(tests) > 1 or elsewhere:
            wrong = True
            print(f"{messages.get(mark, mark)}\n    is held by {', '.join(sorted(tests))}")
    for test in sorted(others):
        print(f"{test} failed, and shows no message")
    print(f"of {len(messages)} messages, {len(holders)} are held by a test")
    return wrong or bool(others)


def main() -> int:
    component, *words = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="reworded-") as folder:
        copy, junit = Path(folder) / "muster", Path(folder) / "junit.xml"
        _copy_checkout(copy)
        messages = _reword_component(copy / COMPONENTS[component] / component)
        print(f"{len(messages)} messages of {component} reworded in {copy}", flush=True)
        paths = os.pathsep.join(str(copy / each) for each in COMPONENTS.values())
        environment = os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
        shown = ["-vv", "--tb=short", "--no-header", "-p", "no:cacheprovider", f"--junitxml={junit}"]
        command = [sys.executable, "-m", "pytest", *shown, *words]
        with (Path(folder) / "pytest.log").open("wb") as log:
            code = subprocess.run(command, cwd=copy, env=environment, stdout=log, check=False).returncode
        if code not in (0, 1):  # 1: tests failed
            print((Path(folder) / "pytest.log").read_text()[-4000:])
            return code
        return int(_print_held(messages, *find_tests(_read_failures(junit))))


if __name__ == "__main__":
    sys.exit(main())
