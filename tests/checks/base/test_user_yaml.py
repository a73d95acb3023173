"""Where a value is in a YAML file, for errors."""

import pytest

from muster_checks.base.user_yaml import field_path, line_of, location_in

TEXT = """rules:
  - name: a
    match: {class: [reset,
                    melted]}
  - name: b
pools: []
"""


@pytest.mark.parametrize(
    ("location", "line"),
    [
        (["rules"], 1),
        (["rules", 0, "name"], 2),
        (["rules", 0, "match", "class", 1], 4),
        (["rules", 1], 5),
        (["rules", 1, "missing", "deeper"], 5),
        (["rules", 9], 1),
        (["pools", "x"], 6),
        (["missing"], 1),
        ([], 1),
    ],
)
def test_line_of_a_value_or_of_what_is_there_of_it(location: list[int | str], line: int) -> None:
    assert line_of(TEXT, location) == line


@pytest.mark.parametrize("text", ["rules: [", "\x00", "- " * 2000 + "["])
def test_invalid_document_has_no_lines(text: str) -> None:
    assert line_of(text, ["rules"]) == 0


@pytest.mark.parametrize("location", [["rules", 0, "match", "class"], ["workload"], ["groups", 12, "names", 3]])
def test_location_in_a_message(location: list[int | str]) -> None:
    assert location_in(f"{field_path(location)}: 9: expected less") == location


@pytest.mark.parametrize("message", ["expected a mapping", "3: three", ""])
def test_message_without_a_location(message: str) -> None:
    assert location_in(message) == []
