"""In which order `make test` runs its files, and which of them share a process."""

import re
from pathlib import Path

import pytest
from tests.scheduling import CHOICES, DURATIONS, GROUPS, group_of, load_durations, may_choose, run_order

ROOT = Path(__file__).parents[1]
CHAIN = GROUPS["the kernel log"]


def test_the_longest_file_is_the_first_and_what_is_short_keeps_its_order() -> None:
    files = ["tests/a.py", "tests/b.py", "tests/c.py", "tests/d.py"]
    order = run_order(files, {"tests/b.py": 10.0, "tests/d.py": 300.0})
    assert sorted(files, key=order.__getitem__) == ["tests/d.py", "tests/b.py", "tests/a.py", "tests/c.py"]


def test_files_of_a_group_run_in_its_order_where_their_sum_puts_them() -> None:
    last, first = CHAIN[-1], CHAIN[0]
    files = [last, "tests/a.py", first, "tests/b.py"]
    order = run_order(files, {last: 60.0, first: 50.0, "tests/a.py": 100.0, "tests/b.py": 120.0})
    assert sorted(files, key=order.__getitem__) == ["tests/b.py", first, last, "tests/a.py"]
    assert group_of(first) == group_of(last) != group_of("tests/a.py")


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("def test_it(): ...", [False, False, True]),
        ("pytestmark = pytest.mark.beside\n\ndef test_it(): ...", [False, True, False]),
        ("@pytest.mark.beside\ndef test_it(): ...\ndef test_that(): ...", [False, True, True]),
        ("marks=[pytest.mark.alone] if long else []", [True, False, True]),
    ],
    ids=["none", "the file", "one test", "some tests"],
)
def test_a_run_loads_a_file_unless_it_chooses_none_of_its_tests(text: str, chosen: list[bool]) -> None:
    assert [may_choose(choice, text) for choice in CHOICES] == chosen


def test_the_makefile_runs_each_choice() -> None:
    runs = re.findall(r'pytest .*?-m (?:"([^"]+)"|(\w+))', (ROOT / "Makefile").read_text())
    assert sorted("".join(each) for each in runs) == sorted(CHOICES)


def test_files_that_are_named_are_there() -> None:
    named = {*load_durations(), *CHAIN}
    assert len(load_durations()) > 20, DURATIONS
    assert not [file for file in named if not (ROOT / file).exists()]
