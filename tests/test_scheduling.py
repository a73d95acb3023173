"""In which order `make test` runs its files, and which of them share a process."""

import re
from pathlib import Path

import pytest
from tests.scheduling import (
    CHOICES,
    DURATIONS,
    GROUPS,
    INTEGRATION,
    group_of,
    is_integration,
    load_durations,
    may_choose,
    run_order,
)

ROOT = Path(__file__).parents[1]
CHAIN = GROUPS["the kernel log"]
REST = " and not alone and not beside"


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


TEXTS = {
    "none": "def test_it(): ...",
    "the file": "pytestmark = pytest.mark.beside\n\ndef test_it(): ...",
    "one test": "@pytest.mark.beside\ndef test_it(): ...\ndef test_that(): ...",
    "some tests": "marks=[pytest.mark.alone] if long else []",
}


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("none", ["integration"]),
        ("the file", ["beside"]),
        ("one test", ["beside", "integration"]),
        ("some tests", ["alone", "integration"]),
    ],
)
def test_a_run_loads_a_file_unless_it_chooses_none_of_its_tests(text: str, chosen: list[str]) -> None:
    def runs(file: str) -> list[str]:
        return [choice.removesuffix(REST) for choice in CHOICES if may_choose(choice, file, TEXTS[text])]

    assert runs("tests/cluster/test_a.py") == runs(CHAIN[2]) == chosen
    assert runs("tests/kube/test_a.py") == [each.replace("integration", "not integration") for each in chosen]


def test_integration_tests_are_those_of_its_folders_and_of_groups() -> None:
    assert all((ROOT / folder).is_dir() for folder in INTEGRATION)
    assert all(is_integration(f"{folder}test_a.py") for folder in INTEGRATION)
    assert all(is_integration(file) for files in GROUPS.values() for file in files)
    assert not is_integration("tests/checks/test_a.py")


@pytest.mark.parametrize("integration", [False, True])
@pytest.mark.parametrize("other", ["", "alone", "beside"])
def test_each_test_is_chosen_by_one_run(other: str, integration: bool) -> None:
    marks = {"alone": other == "alone", "beside": other == "beside", "integration": integration}
    assert [eval(choice, {}, marks) for choice in CHOICES].count(True) == 1  # noqa: S307  # of our own words


def test_the_makefile_runs_each_choice() -> None:
    runs = re.findall(r'pytest (.*?)-m (?:"([^"]+)"|(\w+))', (ROOT / "Makefile").read_text())
    where: dict[str, list[str]] = {}
    for folders, *choice in runs:
        where.setdefault("".join(choice), []).append(re.sub(r"--numprocesses=\d+", "", folders).strip())
    assert set(where) == set(CHOICES)
    assert sorted(where.pop(CHOICES[-1])) == ["--ignore=tests/checks", "tests/checks"], "one half each"
    assert all(len(each) == 1 for each in where.values())


def test_files_that_are_named_are_there() -> None:
    named = {*load_durations(), *CHAIN}
    assert len(load_durations()) > 20, DURATIONS
    assert not [file for file in named if not (ROOT / file).exists()]
