"""What is reworded, and which tests hold it."""

import ast

from tests.wording.reworded import find_tests, make_marks, reworded

SOURCE = '''
"""The docstring of a module stays."""
import re

LINE = re.compile("a pattern that stays")

def judge(count: int, name: str) -> str:
    if name == "what is looked for stays":
        return f"{count} disks do not answer: {name}"
    return "the agent waits for its turn"
'''


def test_each_sentence_has_a_word_of_its_own_and_everything_else_stays() -> None:
    changed, messages = reworded(SOURCE, make_marks())
    ast.parse(changed)
    late, early = messages
    [(literal, parted), (other, also)] = [
        pair for pair in zip(SOURCE.splitlines(), changed.splitlines(), strict=True) if pair[0] != pair[1]
    ]
    assert parted == literal.replace("disks do", f"disks {early} do")
    assert also == other.replace("the agent", f"the {late} agent")
    assert messages[early] == (9, literal.removeprefix("        return "))


def test_the_tests_that_hold_a_message_are_counted_by_function() -> None:
    marks = make_marks()
    first, second = next(marks), next(marks)
    report = [
        ("tests.test_a::test_one[x]", f"assert 'disks {first} do' == 'disks do'"),
        ("tests.test_a::test_one[y]", f"assert 'disks {first} do' == 'disks do'"),
        ("tests.test_b::test_two", f"{first} and {second}"),
        ("tests.test_b::test_three[x]", "assert 1 == 2"),
    ]
    holders, others = find_tests(report)
    assert holders == {first: {"tests.test_a::test_one", "tests.test_b::test_two"}, second: {"tests.test_b::test_two"}}
    assert others == {"tests.test_b::test_three"}
