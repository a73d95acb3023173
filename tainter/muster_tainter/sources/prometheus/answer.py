"""What every answer of Prometheus' query API has in common.

    {"status": "success", "data": {"resultType": "matrix", "result": [
      {"metric": {"node": "n1", …}, "values": [[1700000000, "12.5"], …]}, …]}, "warnings": […]}

Source: Prometheus' HTTP API reference, instant queries (resultType vector) and range queries (matrix).
"""

import msgspec

_SHOWN = 300  # characters of a warning


class UnusableAnswer(Exception):
    """The answer cannot be decoded, is an error, or is incomplete."""


class WrongResultType(UnusableAnswer):
    """The query has another type of result, and always will."""


class MatrixSeries(msgspec.Struct):
    """values: (seconds since the epoch, a number as text)."""

    metric: dict[str, str]
    values: list[tuple[float, str]] = []


class _Data(msgspec.Struct, rename="camel"):
    result_type: str
    result: msgspec.Raw


class _Answer(msgspec.Struct):
    status: str
    data: _Data
    warnings: list[str] = []


_answer = msgspec.json.Decoder(_Answer)
_result = msgspec.json.Decoder(list[msgspec.Raw])
decode_matrix_series = msgspec.json.Decoder(MatrixSeries).decode


def decode_result(body: bytes | bytearray, result_type: str) -> list[msgspec.Raw]:
    """The series of a complete answer, each still encoded. Raises WrongResultType, UnusableAnswer."""
    try:
        answer = _answer.decode(body)
        if answer.status != "success":
            raise UnusableAnswer(f"status {answer.status[:40]!r}; expected success")
        if answer.data.result_type != result_type:
            raise WrongResultType(f"the query returns a {answer.data.result_type[:40]}; expected a {result_type}")
        result = _result.decode(answer.data.result)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        shown = bytes(body[:80]).decode("utf-8", "replace")
        raise UnusableAnswer(f"{error}; the answer begins {shown!r}") from error
    if answer.warnings:
        # Thanos and Mimir warn of stores that did not answer: what is missing proves nothing
        raise UnusableAnswer(f"incomplete: {answer.warnings[0][:_SHOWN]}")
    return result
