"""JSON as node-problem-detector reads it: durations, keys in any case, and files that are no JSON."""

import errno
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.checks.bad_input import TEXTS

from muster_checks.base.npd_json import FILE_BYTES, FileRefused, NpdForm, Reason, duration, first_error, read_document


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("1m30s", 90),
        ("1.5h", 5400),
        ("86400s", 86400),
        ("300ms", 0.3),
        ("5us", 5e-6),
        ("5µs", 5e-6),
        (".5s", 0.5),
        ("1.s", 1),
        ("0", 0),
        ("+1s", 1),
    ],
)
def test_a_duration_is_read_as_go_reads_it(text, seconds):
    assert duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "30", "s", "-1s", "1 s", "1d", "1e3s", "1s ", "٣s", "1sm", 30, 30.0, None, True, []]
)
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match=r"\b30s\b"):
        duration(text)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30) | st.from_regex(r"[-+0-9.]{0,9}(ms|s|m|h)?", fullmatch=True))
def test_any_text_is_a_duration_or_refused(text):
    try:
        assert 0 <= duration(text) < 1e30
    except ValueError as error:
        assert "30s" in str(error)  # noqa: PT017 - both outcomes are right


class Form(NpdForm):
    reason: Reason
    number: int = 3


def test_keys_are_read_in_any_case_null_is_not_given_and_unknown_ones_are_passed_over():
    assert Form.model_validate({"REASON": "x", "Number": None, "more": [1]}) == Form(reason="x")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "reason: missing"),
        ({"reason": 5}, "reason: 5: Input should be a valid string"),
        ({"reason": ""}, 'reason: "": String should have at least 1 character'),
        ({"reason": "x", "number": "5"}, 'number: "5": Input should be a valid integer'),
        ({"reason": "x", "number": 5.0}, "number: 5.0: Input should be a valid integer"),
        ({"reason": "x", "number": True}, "number: true: Input should be a valid integer"),
        ([], "[]: Input should be a valid dictionary"),
    ],
)
def test_a_number_is_no_text_and_a_text_no_number(given, told):
    with pytest.raises(ValidationError) as caught:
        Form.model_validate(given)
    assert told in first_error(caught.value)


def test_a_reason_becomes_one_word():
    assert Form(reason="disk is bad: /dev/sda").reason == "disk_is_bad:__dev_sda"


@pytest.mark.parametrize("text", TEXTS)
def test_whatever_stands_in_a_file_is_json_or_refused(text, tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(text)
    try:
        read_document(path)
    except FileRefused as error:
        assert "JSON" in str(error)  # noqa: PT017 - both outcomes are right


def test_a_file_that_cannot_be_read_says_why(tmp_path):
    with pytest.raises(FileRefused):
        read_document(tmp_path)
    fifo = tmp_path / "fifo.json"
    os.mkfifo(fifo)
    with pytest.raises(FileRefused):
        read_document(fifo)
    with pytest.raises(FileRefused):
        read_document(tmp_path / "gone.json")
    long = tmp_path / "long.json"
    long.write_bytes(b"[" + b" " * FILE_BYTES + b"]")
    with pytest.raises(FileRefused, match=r"\b1 MiB\b"):
        read_document(long)
    with pytest.raises(FileRefused, match=os.strerror(errno.ENAMETOOLONG)):
        read_document(tmp_path / ("x" * 300))
