"""Reads a protobuf message: which field has which value, nothing else.

Written here because the packages that can do it bring more than is wanted: protobuf and betterproto work on classes
that are generated from a .proto and kept beside it, for one answer of which ten fields are read.
Format: protobuf.dev/programming-guides/encoding.
"""

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}
MOST_FIELDS = 10_000  # of one message: no node has as many pods, no pod as many devices
_LONGEST_VARINT = 10  # bytes of 64 bits


class MalformedMessage(ValueError):
    """The bytes are no protobuf message, or an end is missing. Says where."""


def read_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field, in the order of the message: an int where it is a varint, else its bytes.

    Groups, which proto3 has not, and more than MOST_FIELDS are refused. Raises MalformedMessage.
    """
    at, end = 0, len(message)
    for _ in range(MOST_FIELDS):
        if at >= end:
            return
        key, at = _varint(message, at)
        kind = key & 7
        if not key >> 3:
            raise MalformedMessage(f"byte {at}: a field without a number")
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            length, at = _varint(message, at)
        elif kind in _FIXED:
            length = _FIXED[kind]
        else:
            raise MalformedMessage(f"byte {at}: a field of the unknown kind {kind}")
        if length > end - at:
            raise MalformedMessage(f"byte {at}: a field of {length} bytes, with {end - at} left")
        yield key >> 3, message[at : at + length]
        at += length
    if at < end:
        raise MalformedMessage(f"byte {at}: more than {MOST_FIELDS} fields")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    if at < len(message) and message[at] < 0x80:  # nearly all
        return message[at], at + 1
    value = shift = 0
    for place in range(at, min(at + _LONGEST_VARINT, len(message))):
        byte = message[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
    raise MalformedMessage(f"byte {at}: a number without an end")
