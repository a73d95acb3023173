"""The format of container logs: pieces of a line, two streams, and lines that are none."""

import pytest

from muster_checks.containerlog.cri import LINE_BYTES, CriLines, MalformedLine, epoch_seconds

AT = b"2026-07-09T05:37:45.123456789Z"


def line(text: bytes, tag: bytes = b"F", stream: bytes = b"stdout") -> bytes:
    return b" ".join((AT, stream, tag, text))


def test_a_whole_line() -> None:
    assert CriLines().take(line(b"CUDA error: a b")) == (AT, b"CUDA error: a b")
    assert CriLines().take(line(b"")) == (AT, b"")
    assert CriLines().take(line(b"with a further tag", b"F:x:y")) == (AT, b"with a further tag")


def test_pieces_of_two_streams_may_alternate() -> None:
    lines = CriLines()
    assert lines.take(line(b"out 1, ", b"P")) is None
    assert lines.take(line(b"err 1, ", b"P", b"stderr")) is None
    assert lines.take(line(b"out 2, ", b"P")) is None
    assert lines.take(line(b"err 2", b"F", b"stderr")) == (AT, b"err 1, err 2")
    assert lines.take(line(b"out 3")) == (AT, b"out 1, out 2, out 3")
    assert lines.take(line(b"next")) == (AT, b"next")


def test_a_line_of_endless_pieces_is_bounded() -> None:
    lines = CriLines()
    for _ in range(1000):
        assert lines.take(line(b"x" * 16_000, b"P")) is None
        assert lines.kept_bytes <= LINE_BYTES + 1
    whole = lines.take(line(b"end"))
    assert whole is not None
    assert len(whole[1]) == LINE_BYTES
    assert lines.overlong == 1
    assert lines.take(line(b"y" * (LINE_BYTES + 1))) == (AT, b"y" * LINE_BYTES)
    assert lines.overlong == 2


@pytest.mark.parametrize(
    "raw", [b"", b"text", AT, AT + b" stdout", AT + b" stdin F text", AT + b" stdout X text", b'{"log": "text\\n"}']
)
def test_a_line_of_another_format_is_refused(raw: bytes) -> None:
    with pytest.raises(MalformedLine):
        CriLines().take(raw)


def test_times() -> None:
    assert epoch_seconds(b"1970-01-02T00:00:00.5Z") == 86_400.5
    assert epoch_seconds(b"1970-01-02T01:00:00.123456789+01:00") == 86_400.123456
    for text in (b"", b"yesterday", b"9999-99-99T00:00:00Z", b"\xff"):
        assert epoch_seconds(text) is None
