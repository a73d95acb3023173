"""Decodes the fields of a protobuf message, without a schema.

The packages protobuf and betterproto need classes generated from a .proto file, for one answer of which ten fields are
read. Format: protobuf.dev/programming-guides/encoding.
"""

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}
MOST_FIELDS = 10_000  # per message; more than the pods of a node or the devices of a pod
_LONGEST_VARINT = 10  # bytes of 64 bits


class MalformedMessage(ValueError):
    """The bytes are not a valid protobuf message. The message says where."""


def read_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field, in the order of the message: an int for a varint, else bytes.

    Raises MalformedMessage, also for groups (which proto3 does not have) and for more than MOST_FIELDS.
    """
    at, end = 0, len(message)
    for _ in range(MOST_FIELDS):
        if at >= end:
            return
        key, at = _varint(message, at)
        kind = key & 7
        if not key >> 3:
            raise MalformedMessage(f"byte {at}: field number 0")
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            length, at = _varint(message, at)
        elif kind in _FIXED:
            length = _FIXED[kind]
        else:
            raise MalformedMessage(f"byte {at}: unknown wire type {kind}")
        if length > end - at:
            raise MalformedMessage(f"byte {at}: field has {length} bytes, but only {end - at} are left")
        yield key >> 3, message[at : at + length]
        at += length
    if at < end:
        raise MalformedMessage(f"byte {at}: more than {MOST_FIELDS} fields")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    if at < len(message) and message[at] < 0x80:  # almost always
        return message[at], at + 1
    value = shift = 0
    for place in range(at, min(at + _LONGEST_VARINT, len(message))):
        byte = message[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
    raise MalformedMessage(f"byte {at}: incomplete varint")
