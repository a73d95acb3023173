"""Reading what files and tools say: a number is a number, and whatever else stands there is None or Unreadable."""

import json
import math
import os
from pathlib import Path
from types import NoneType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.bad_input import NO_VALUES, TEXTS, any_json

from muster_checks.base.bounded_read import (
    DOCUMENT_LIMIT_BYTES,
    Unreadable,
    integer,
    json_document,
    names_in,
    number,
    read_integer,
    read_text,
)


def _file(folder: Path, content: bytes) -> Path:
    path = folder / "file"
    path.write_bytes(content)
    return path


def test_the_text_of_a_small_file_is_stripped(tmp_path: Path) -> None:
    assert read_text(_file(tmp_path, b" 4: ACTIVE\n")) == "4: ACTIVE"


def test_a_large_file_is_read_to_the_limit(tmp_path: Path) -> None:
    assert read_text(_file(tmp_path, b"x" * 1000), limit_bytes=10) == "x" * 10


def test_what_is_no_text_is_read_all_the_same(tmp_path: Path) -> None:
    assert read_text(_file(tmp_path, b"\xff\xfeMT4129")) == "\N{REPLACEMENT CHARACTER}" * 2 + "MT4129"


def test_a_fifo_is_no_file_to_wait_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert read_text(tmp_path / "fifo") is None


@pytest.mark.parametrize("name", ["gone", "a/b", "", "nul\0", "x" * 5000])
def test_what_cannot_be_read_is_none(tmp_path: Path, name: str) -> None:
    assert read_text(tmp_path / name) is None
    assert read_integer(tmp_path / name) is None


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"42\n", 42),
        (b"0x10de\n", 0x10DE),
        (b"-1\n", -1),
        (b"0042\n", 42),
        (b"5 things\n", 5),
        (b"18446744073709551615\n", 2**64 - 1),
        (b"", None),
        (b"N/A (no PMA)\n", None),
        (b"0x\n", None),
        (b"1.5\n", None),
        (b"18446744073709551616\n", None),
        (b"9" * 300, None),
    ],
)
def test_integers_of_sysfs(tmp_path: Path, content: bytes, value: int | None) -> None:
    assert read_integer(_file(tmp_path, content)) == value


@pytest.mark.parametrize("content", TEXTS)
def test_rubbish_in_a_file_is_a_number_or_none(tmp_path: Path, content: bytes) -> None:
    value = read_integer(_file(tmp_path, content))
    assert value is None or isinstance(value, int)


@given(st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_any_bytes_in_a_file_are_a_number_or_none(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    value = read_integer(_file(tmp_path_factory.getbasetemp(), content))
    assert value is None or isinstance(value, int)


def test_the_entries_of_a_folder_are_sorted_and_none_where_there_is_no_folder(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        (tmp_path / name).touch()
    assert names_in(tmp_path) == ["a", "b", "c"]
    assert names_in(tmp_path / "a") == names_in(tmp_path / "gone") == names_in(tmp_path / "nul\0") == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("31.5 GB/s", 31.5),
        ("1,024 MiB", 1024.0),
        ("98 %", 98.0),
        ("16x", 16.0),
        (" -12 C", -12.0),
        ("1e-6", 1e-6),
        ("5.", 5.0),
        (31, 31.0),
        (0.5, 0.5),
        ("N/A", None),
        ("[Not Supported]", None),
        ("", None),
        ("0x1f", None),
        ("1.234,5 Gbit/s", None),  # another locale's
        ("1,23", None),
        ("10.10.10.1", None),
        ("12:30", None),
        ("3b:00.0", 3.0),  # a unit is not looked at
        ("inf", None),
        ("nan", None),
        ("1e999", None),
        (float("inf"), None),
        (float("nan"), None),
        (1e308, None),
        (10**400, None),
        (True, None),
        (None, None),
        ([1], None),
        (b"1", None),
    ],
)
def test_numbers_of_tools(text: object, value: float | None) -> None:
    assert number(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        ("0x1f", 31),
        ("0X1F extra", 31),
        ("0xzz", None),
        ("1.5", None),
        ("2.0", 2),
        (7, 7),
        (1e20, 10**20),
        ("N/A", None),
    ],
)
def test_whole_numbers_of_tools(text: object, value: int | None) -> None:
    assert integer(text) == value


@pytest.mark.parametrize("value", NO_VALUES)
def test_what_stands_where_a_number_should_is_never_a_wrong_one(value: object) -> None:
    assert number(value) in (None, -1.0)
    assert integer(value) in (None, -1)


@given(any_json())
@settings(max_examples=100, deadline=None)
def test_any_value_is_a_finite_number_or_none(value: object) -> None:
    for read in (number(value), integer(value)):
        assert read is None or math.isfinite(read)


@given(st.text(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_text_is_a_finite_number_or_none(text: str) -> None:
    for read in (number(text), integer(text)):
        assert read is None or math.isfinite(read)


def test_a_document_is_found_behind_warnings_and_before_more_text() -> None:
    text = b'WARNING: {not json\n[info] starting\n\xef\xbb\xbf\n  {"a": [1, 2]}\ndone\n'
    assert json_document(text) == {"a": [1, 2]}


def test_a_document_may_begin_with_a_byte_order_mark() -> None:
    assert json_document(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


def test_keys_that_are_meant_twice_are_kept_when_asked_for() -> None:
    assert json_document(b'{"a": 1, "a": 2}', pairs=list) == [("a", 1), ("a", 2)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"no json here", "{ or ["),
        (b'{"a": [1, 2', "JSON"),
        (b"[" * 100_000, "JSON"),
        (b"[noise]\n{}", "JSON"),
        (b"\n".join([b"[noise"] * 20 + [b'{"late": 1}']), "JSON"),
    ],
)
def test_a_document_that_is_not_there_says_what_was_expected(text: bytes, said: str) -> None:
    with pytest.raises(Unreadable, match=said.replace("[", r"\[").replace("{", r"\{")):
        json_document(text)


def test_a_document_no_tool_prints_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(Unreadable, match="at most 16 MiB"):
        json_document(b"[" + b" " * DOCUMENT_LIMIT_BYTES + b"]")


def _document_or_none(text: bytes) -> object:
    try:
        return json_document(text)
    except Unreadable:
        return None


@pytest.mark.parametrize("text", TEXTS)
def test_rubbish_is_a_document_or_unreadable(text: bytes) -> None:
    assert isinstance(_document_or_none(text), (dict, list, NoneType))


@given(st.binary(max_size=400))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_a_document_or_unreadable(text: bytes) -> None:
    assert isinstance(_document_or_none(text), (dict, list, NoneType))


@given(st.dictionaries(st.text(max_size=5), any_json(), min_size=1, max_size=4))
@settings(max_examples=100, deadline=None)
def test_any_document_comes_back_as_it_was(document: dict[str, object]) -> None:
    text = json.dumps(document)
    assert json.dumps(json_document(b"a warning\n" + text.encode() + b"\n\nend")) == text
