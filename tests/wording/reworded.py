"""Runs tests on a copy of this checkout in which every message is worded otherwise: what fails then, holds a wording.

    python tests/wording/reworded.py muster_tainter tests/tainter      pytest's words, after the component's name

In the copy each sentence of the component's Python, from three plain words in a row on, has a word more: "waits for
its agent" becomes "waits xx for its agent". Names, reasons, numbers and values stay. Docstrings, regular expressions,
what a comparison looks for, commands and scripts stay, too. In each component's test_messages.py failures are
right, and it is left out.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

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
MARK = "xx"
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


def reworded(source: str) -> str:
    """``source`` with each sentence in it changed. The first fitting pair of words of each literal's part is parted."""
    visitor = _Rewording()
    visitor.visit(ast.parse(source))
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    whole = source.encode()
    for first, column, last, end in sorted(visitor.spans, reverse=True):
        begin, stop = starts[first - 1] + column, starts[last - 1] + end
        literal = whole[begin:stop].decode()
        changed = "".join(part if is_code else _reword(part) for is_code, part in _parts(literal))
        whole = whole[:begin] + changed.encode() + whole[stop:]
    return whole.decode()


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


def _reword(part: str) -> str:
    if "(?" in part or "\\s" in part or "\\d" in part:
        return part
    return _PROSE.sub(lambda found: f"{found[0]}{MARK} ", part, count=1)


def main() -> int:
    component, *words = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="reworded-") as folder:
        copy = Path(folder) / "muster"
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
        for name in filter(None, listed.stdout.split("\0")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).exists():
                shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
        changed = 0
        for path in sorted((copy / COMPONENTS[component] / component).rglob("*.py")):
            before = path.read_text()
            after = reworded(before)
            ast.parse(after)
            changed += before != after
            path.write_text(after)
        print(f"{changed} modules of {component} reworded in {copy}", flush=True)
        paths = os.pathsep.join(str(copy / each) for each in COMPONENTS.values())
        environment = os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--ignore-glob=*/test_messages.py", *words]
        return subprocess.run(command, cwd=copy, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
