"""Decodes Loki's responses to query_range: JSON bytes to log lines.

    {"status": "success", "data": {"resultType": "streams", "result": [
      {"stream": {"k8s_node_name": "n1"}, "values": [["1569266497240578000", "line"], …]}]}}

A value's third element, if any, holds structured metadata: names and texts, or (``categorize-labels``)
{"structuredMetadata": {…}, "parsed": {…}}. Without that flag, which the tainter does not use, Loki adds all of it
to the stream's labels. Source: Loki's HTTP API reference; pkg/loghttp/entry.go for the third element.
"""

from collections.abc import Mapping

import msgspec

LABELS_LIMIT = 64  # per line
LABEL_TEXT_LIMIT = 2048
LINE_LIMIT = 64 << 10  # characters; longer lines are cut
_STAMP_DIGITS = 19  # nanoseconds until the year 2286


class BadLokiAnswer(Exception):
    """A successful response that is not a list of log lines, with what was found instead."""


class LogEntry(msgspec.Struct, frozen=True):
    """One log line. at_ns: Loki's time stamp, nanoseconds since the epoch; labels: with structured metadata."""

    at_ns: int
    labels: Mapping[str, str]
    line: str


class _Stream(msgspec.Struct):
    stream: dict[str, str]
    values: list[tuple[str | dict[str, object], ...]]


class _Data(msgspec.Struct, rename="camel"):
    result_type: str
    result: msgspec.Raw


class _Answer(msgspec.Struct):
    status: str
    data: _Data


_answer = msgspec.json.Decoder(_Answer)
_streams = msgspec.json.Decoder(list[_Stream] | None)


def decode_response(body: bytes | bytearray) -> tuple[list[LogEntry], int]:
    """The lines, oldest first, with equal times in the response's order; and the number of invalid values.

    Raises BadLokiAnswer.
    """
    try:
        answer = _answer.decode(body)
        if answer.status != "success":
            raise BadLokiAnswer(f"status {answer.status[:40]!r}; expected success")
        if answer.data.result_type != "streams":
            raise BadLokiAnswer(f"{answer.data.result_type[:40]!r}; expected streams: the query must ask for lines")
        streams = _streams.decode(answer.data.result) or []
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        shown = bytes(body[:80]).decode("utf-8", "replace")
        raise BadLokiAnswer(f"{error}; the answer begins {shown!r}") from error
    entries: list[LogEntry] = []
    malformed = 0
    for stream in streams:
        labels = _bounded(stream.stream)
        for value in stream.values:
            entry = _entry(labels, value)
            if entry is None:
                malformed += 1
            else:
                entries.append(entry)
    entries.sort(key=lambda entry: entry.at_ns)
    return entries, malformed


def _entry(labels: dict[str, str], value: tuple[str | dict[str, object], ...]) -> LogEntry | None:
    if not 2 <= len(value) <= 3:
        return None
    stamp, line = value[0], value[1]
    if not isinstance(stamp, str) or not isinstance(line, str):
        return None
    if not stamp.isascii() or not stamp.isdigit() or len(stamp) > _STAMP_DIGITS:
        return None
    if len(value) == 3:
        more = value[2]
        if not isinstance(more, dict):
            return None
        labels = _bounded({**_metadata(more), **labels})  # indexed labels, set by the log shipper, take precedence
    return LogEntry(int(stamp), labels, line[:LINE_LIMIT])


def _metadata(third: dict[str, object]) -> dict[str, str]:
    named = third.get("structuredMetadata")
    found = {name: text for name, text in third.items() if isinstance(text, str)}
    if isinstance(named, dict):
        found |= {name: text for name, text in named.items() if isinstance(text, str)}
    return found


def _bounded(labels: dict[str, str]) -> dict[str, str]:
    if len(labels) <= LABELS_LIMIT and all(len(text) <= LABEL_TEXT_LIMIT for text in labels.values()):
        return labels
    return {name: text[:LABEL_TEXT_LIMIT] for name, text in list(labels.items())[:LABELS_LIMIT]}
