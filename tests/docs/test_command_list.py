"""Every command in the documents has a marker that names the test that types it."""

from pathlib import Path

import pytest
from tests.cluster.commands import sandbox_terminal, test_sandbox_commands, test_tour, tour
from tests.docs.command_list import NAMED, Page, command_list, read_markers
from tests.docs.document_commands import ROOT, commands, documents

# sentences may mention a subcommand of these without arguments
VERBS = ("helm", "kubectl", "muster")


def test_every_command_of_a_document_has_one_test() -> None:
    assert not command_list().wrong


def test_a_named_test_requests_its_commands_and_a_named_script_contains_them() -> None:
    for name, lines in command_list().typed.items():
        text = (ROOT / name).read_text()
        asks = "commands_of_test(__file__)" in text if name.endswith(".py") else lines <= set(text.splitlines())
        assert asks, name


def test_the_tests_on_a_sandbox_type_all_of_their_lines() -> None:
    typed = {line for lines in sandbox_terminal.TYPED_BY.values() for line in lines}
    assert typed == test_sandbox_commands.LINES


def test_the_tour_has_the_lines_that_its_test_types() -> None:
    assert {" ".join(each.words) for each in commands(tour.PAGE)} >= test_tour.LINES


def test_a_command_without_arguments_is_in_a_document_and_is_a_subcommand() -> None:
    found = {" ".join(each.words) for page in documents() for each in commands(page)}
    assert found >= NAMED
    assert {line.split()[0] for line in NAMED} <= set(VERBS)
    assert max(len(line.split()) for line in NAMED) <= 3


def page(text: str, folder: Path) -> Page:
    (folder / "page.md").write_text(text)
    return Page("page.md", text, tuple(commands(folder / "page.md", folder)))


TYPED = """# Title

<!-- page typed by: tests/test_rest.py -->

`muster status` says it, `muster checks` lists them, `muster sandbox` is a name.

<!-- typed by: tests/test_code.py -->

```sh
muster doctor
muster resume
```

`muster explain NODE` is of the page again.

<!-- typed by: tests/test_one.py (2), tests/test_two.py -->
| what | how |
|---|---|
| one | `muster clear NODE`, `muster clear NODE CHECK` |
| two | `muster pause` |

    make lint
"""


def test_a_block_a_page_and_each_command_of_a_block_have_their_tests(tmp_path: Path) -> None:
    made = read_markers([page(TYPED, tmp_path)])
    assert made.wrong == []
    assert made.typed == {
        "tests/test_code.py": {"muster doctor", "muster resume"},
        "tests/test_one.py": {"muster clear NODE", "muster clear NODE CHECK"},
        "tests/test_two.py": {"muster pause"},
        "tests/test_rest.py": {"muster status", "muster checks", "muster explain NODE", "make lint"},
    }


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("`muster status` has no marker\n", ["page.md:1"]),
        (
            "<!-- typed by: a, b -->\n`muster status`, `muster checks` and `muster doctor`\n",
            ["page.md:1", *["page.md:2"] * 3],
        ),
        ("<!-- typed by: a -->\nno command\n\n<!-- typed by: b -->\n`muster status`\n", ["page.md:1"]),
        ("<!-- typed by: a -->\n`muster status`\n\n<!-- typed by: b -->\n`muster status`\n", ["page.md:5"]),
    ],
    ids=["none", "too few", "nothing to type", "two"],
)
def test_missing_and_contradictory_markers_are_reported(tmp_path: Path, text: str, places: list[str]) -> None:
    wrong = read_markers([page(text, tmp_path)]).wrong
    assert [each.partition(": ")[0] for each in wrong] == places
