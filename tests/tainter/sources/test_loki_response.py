"""Loki's answers as bytes: what is taken from them, and what is refused."""

import json
from typing import Any

import pytest

from muster_tainter.sources.loki.response import LINE_LIMIT, BadLokiAnswer, decode_response


def answer(*result: dict[str, Any], kind: str = "streams", status: str = "success") -> bytes:
    return json.dumps({"status": status, "data": {"resultType": kind, "result": list(result), "stats": {}}}).encode()


def test_the_reference_s_own_example_is_read_oldest_first() -> None:
    stream = {"filename": "/var/log/myproject.log", "job": "varlogs", "level": "info"}
    values = [["1569266497240578000", "foo"], ["1569266492548155000", "bar"]]
    entries, malformed = decode_response(answer({"stream": stream, "values": values}))
    assert [(entry.at_ns, entry.line) for entry in entries] == [
        (1569266492548155000, "bar"),
        (1569266497240578000, "foo"),
    ]
    assert entries[0].labels == stream
    assert malformed == 0


def test_lines_of_several_streams_come_in_the_order_of_their_times() -> None:
    one = {"stream": {"node": "a"}, "values": [["1", "a1"], ["3", "a3"]]}
    two = {"stream": {"node": "b"}, "values": [["2", "b2"]]}
    entries, _ = decode_response(answer(one, two))
    assert [entry.line for entry in entries] == ["a1", "b2", "a3"]


@pytest.mark.parametrize(
    "third",
    [
        {"k8s_node_name": "n1"},
        {"structuredMetadata": {"k8s_node_name": "n1"}, "parsed": {"level": "info"}},
    ],
)
def test_structured_metadata_counts_as_labels(third: dict[str, Any]) -> None:
    entries, _ = decode_response(answer({"stream": {"job": "x"}, "values": [["1", "line", third]]}))
    assert entries[0].labels["k8s_node_name"] == "n1"


def test_metadata_never_overrides_a_label_that_the_stream_has() -> None:
    entries, _ = decode_response(
        answer({"stream": {"k8s_node_name": "n1"}, "values": [["1", "x", {"k8s_node_name": "n2"}]]})
    )
    assert entries[0].labels["k8s_node_name"] == "n1"


@pytest.mark.parametrize(
    "value",
    [["no time", "x"], ["-5", "x"], ["1" * 30, "x"], ["1"], ["1", "x", "y"], ["1", "x", {}, {}], [], ["\u0661", "x"]],
)
def test_values_that_make_no_sense_are_counted_and_the_others_taken(value: list[Any]) -> None:
    entries, malformed = decode_response(answer({"stream": {}, "values": [value, ["1", "good"]]}))
    assert [entry.line for entry in entries] == ["good"]
    assert malformed == 1


def test_an_empty_answer_holds_no_lines() -> None:
    assert decode_response(answer()) == ([], 0)
    assert decode_response(b'{"status":"success","data":{"resultType":"streams","result":null}}') == ([], 0)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>502</html>", "<html>502"),
        (b"", "truncated"),
        (b"[]", "object"),
        (b'{"status":"success"}', "data"),
        (answer(kind="matrix"), "matrix"),
        (answer(status="error"), "error"),
        (answer({"stream": {"a": 1}, "values": []}), "str"),
        (b'{"status":"success","data":{"resultType":"streams","result":[' + b"[" * 100_000, "streams"),
        (b"\xff\xfe", "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_what_is_no_answer_is_refused_with_what_was_found(body: bytes, words: str) -> None:
    with pytest.raises(BadLokiAnswer, match=words):
        decode_response(body)


def test_long_lines_and_crowds_of_labels_are_cut() -> None:
    labels = {f"l{i}": "x" * 10_000 for i in range(500)}
    entries, _ = decode_response(answer({"stream": labels, "values": [["1", "y" * (LINE_LIMIT + 100)]]}))
    assert len(entries[0].line) == LINE_LIMIT
    assert sum(len(text) for text in entries[0].labels.values()) <= 64 * 2048
