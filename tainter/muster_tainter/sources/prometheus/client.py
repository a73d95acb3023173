"""Sends instant queries to a Prometheus, or to a server with its HTTP API such as Thanos or Mimir.

    {"status": "success", "data": {"resultType": "vector", "result": [
      {"metric": {"node": "n1", …}, "value": [1700000000.123, "95"]}, …]}, "warnings": [… ]}

Source: Prometheus' HTTP API reference. A native histogram has ``histogram`` instead of ``value``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

import msgspec

from muster_tainter.sources.http_client import TIMEOUT_S, SourceClient, SourceError, SourceRefused
from muster_tainter.sources.prometheus.answer import UnusableAnswer, WrongResultType, decode_result

PATH = "/api/v1/query"
RANGE_PATH = "/api/v1/query_range"
SERIES_LIMIT = 10_000  # of an answer, as the documentation promises


class MetricSample(msgspec.Struct, frozen=True):
    """A series with its value, which is a number or infinite."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class MetricAnswer:
    """unusable: label sets of series whose value is NaN or no number: they say nothing about their node.

    malformed: number of series without labels and value
    """

    samples: list[MetricSample]
    unusable: list[Mapping[str, str]]
    malformed: int

    @property
    def series(self) -> int:
        return len(self.samples) + len(self.unusable) + self.malformed


class _Series(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[float, str] | None = None


_series = msgspec.json.Decoder(_Series)


class PrometheusClient(SourceClient):
    async def ask(self, query: str, at: float | None = None) -> MetricAnswer:
        """The result now, or ``at`` a time in seconds since the epoch. Raises SourceError, also if it is incomplete."""
        when = {} if at is None else {"time": f"{at:.3f}"}
        body, _ = await self.get(f"{PATH}?{urlencode({'query': query, 'timeout': f'{TIMEOUT_S:g}s', **when})}")
        try:
            return decode_answer(body)
        except SourceError as error:
            raise type(error)(f"{self.where.url}: {error}") from error

    async def ask_range(self, query: str, start: float, end: float, step_s: float) -> bytearray:
        """The answer as it is: a matrix, with a value each ``step_s`` from ``start`` to ``end``, in seconds since the
        epoch. Raises SourceError."""
        times = {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step_s:.3f}"}
        body, _ = await self.get(f"{RANGE_PATH}?{urlencode({'query': query, 'timeout': f'{TIMEOUT_S:g}s', **times})}")
        return body


def decode_answer(body: bytes | bytearray) -> MetricAnswer:
    """Raises SourceRefused for a query that is unfit, SourceError for an answer that is unusable or incomplete."""
    try:
        result = decode_result(body, "vector")
    except WrongResultType as error:
        raise SourceRefused(f"{error}: series at one time") from error
    except UnusableAnswer as error:
        raise SourceError(str(error)) from error
    if len(result) > SERIES_LIMIT:
        raise SourceRefused(f"the query returns {len(result)} series; expected {SERIES_LIMIT} at most")
    return _sorted_out(result)


def _sorted_out(result: list[msgspec.Raw]) -> MetricAnswer:
    answer = MetricAnswer([], [], 0)
    malformed = 0
    for raw in result:
        try:
            series = _series.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            malformed += 1
            continue
        value = _number(series.value[1]) if series.value is not None else math.nan
        if math.isnan(value):
            answer.unusable.append(series.metric)
        else:
            answer.samples.append(MetricSample(series.metric, value))
    return MetricAnswer(answer.samples, answer.unusable, malformed)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
