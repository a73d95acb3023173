"""Every command in the documents is typed by a test: command_list.yaml says by which, and leaves none out."""

from collections import Counter

from tests.docs.command_list import command_list
from tests.docs.document_commands import ROOT, commands, documents

# of these a sentence may name a verb, without what it would be typed with
VERBS = ("helm", "kubectl", "muster", "curl")


def test_every_command_of_a_document_has_its_place_and_no_other_has_one() -> None:
    found = {" ".join(each.words): each.where for page in documents() for each in commands(page)}
    listed = Counter(
        [*(each for lines in command_list()["typed"].values() for each in lines), *command_list()["named"]]
    )
    assert not {each: where for each, where in found.items() if each not in listed}
    assert not sorted(set(listed) - set(found))
    assert not [each for each, count in listed.items() if count > 1]


def test_a_test_that_is_named_asks_for_its_lines_and_a_script_has_them() -> None:
    for name, lines in command_list()["typed"].items():
        text = (ROOT / name).read_text()
        asks = "commands_of_test(__file__)" in text if name.endswith(".py") else set(lines) <= set(text.splitlines())
        assert asks, name


def test_what_is_only_named_has_nothing_to_be_typed_with() -> None:
    for each in command_list()["named"]:
        program, *words = each.split()
        assert program in VERBS, each
        assert len(words) <= 2, each
