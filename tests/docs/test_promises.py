"""docs/promises.md: every row says what became of its promises, and the tests that it names exist."""

import ast
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from tests.docs.document_commands import ROOT

PAGE = ROOT / "docs" / "promises.md"
STATES = ("kept", "changed", "not kept")
DOCUMENTS = 5
_TEST = re.compile(r"`([a-z0-9_/]+\.py)::(test_\w+)`")
_TOTALS = re.compile(r"(\d+) promises: (\d+) kept, (\d+) changed, (\d+) not kept")


@dataclass(frozen=True)
class Row:
    """number: how many promises it stands for; how: what Muster does instead or where; tests: file and name of each."""

    document: str
    promise: str
    number: int
    state: str
    how: str
    tests: tuple[tuple[str, str], ...]


def read_rows(text: str) -> list[Row]:
    """Raises ValueError: a row has another number of cells, or a test cell that is not a list of tests."""
    rows: list[Row] = []
    document = ""
    for line in text.splitlines():
        if line.startswith("## "):
            document = line.removeprefix("## ")
        if not line.startswith("|") or line.startswith(("| promise |", "|---")):
            continue
        promise, number, state, how, tests = (cell.strip() for cell in line.strip("|").split("|"))
        if _TEST.sub("", tests).replace(",", "").strip():
            raise ValueError(f"{promise}: {tests}: expected `path.py::test_name`, …")
        rows.append(Row(document, promise, int(number), state, how, tuple(_TEST.findall(tests))))
    return rows


@cache
def function_names(path: Path) -> frozenset[str]:
    """Names of all functions of a file; none if there is no such file."""
    if not path.is_file():
        return frozenset()
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, functions))


def missing_tests(rows: list[Row]) -> list[str]:
    return [
        f"{path}::{name}"
        for row in rows
        for path, name in row.tests
        if name not in function_names(ROOT / "tests" / path)
    ]


ROWS = read_rows(PAGE.read_text())


def test_every_test_that_is_named_exists() -> None:
    assert not missing_tests(ROWS)


def test_every_promise_has_a_state_an_answer_and_a_test() -> None:
    for row in ROWS:
        assert row.state in STATES, row
        assert row.promise, row
        assert row.how, row
        assert row.number > 0, row
        assert row.tests, row
    assert len({row.document for row in ROWS}) == DOCUMENTS
    assert not [name for name, times in Counter((row.document, row.promise) for row in ROWS).items() if times > 1]


def test_the_numbers_are_the_sums_of_the_rows() -> None:
    found = _TOTALS.search(PAGE.read_text())
    assert found
    sums = [sum(row.number for row in ROWS if row.state == state) for state in STATES]
    assert [int(each) for each in found.groups()] == [sum(sums), *sums]


def test_a_test_that_is_renamed_is_noticed() -> None:
    text = "## D\n| p | 2 | kept | how | `docs/test_promises.py::test_of_yore`, `docs/test_gone.py::test_x` |\n"
    assert missing_tests(read_rows(text)) == ["docs/test_promises.py::test_of_yore", "docs/test_gone.py::test_x"]


@pytest.mark.parametrize("cells", ["p | 2 | kept | how", "p | two | kept | how | ", "p | 2 | kept | how | by hand"])
def test_a_row_that_cannot_be_read_is_refused(cells: str) -> None:
    with pytest.raises(ValueError, match=r"unpack|invalid literal|by hand"):
        read_rows(f"| {cells} |\n")
