"""What counts as an answer of a Prometheus."""

import json
from typing import Any

import pytest
from tests.tainter.sources.loki_stub import serving
from tests.tainter.sources.prometheus_stub import PrometheusServer

from muster_tainter.policy.sections.sources import PrometheusSource
from muster_tainter.sources.http_client import SourceError, SourceRefused
from muster_tainter.sources.prometheus.client import SERIES_LIMIT, PrometheusClient, decode_answer

QUERY = {"name": "Hot", "query": "temp > 90", "endAfter": "1m"}


def answer(*series: Any, kind: str = "vector", **more: Any) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": kind, "result": series}, **more}).encode()


def series(value: object, **labels: str) -> dict[str, Any]:
    return {"metric": labels, "value": [1700000000.123, value]}


def test_numbers_and_infinities_are_values_and_all_else_is_not() -> None:
    decoded = decode_answer(
        answer(
            series("95", node="a"), series("+Inf", node="b"), series("NaN", node="c"), series("hot", node="d"),
            {"metric": {"node": "e"}, "histogram": [1700000000.123, {}]}, series(95, node="f"), {"value": []}, 7,
        )
    )  # fmt: skip
    assert [(one.labels["node"], one.value) for one in decoded.samples] == [("a", 95.0), ("b", float("inf"))]
    assert [labels["node"] for labels in decoded.unusable] == ["c", "d", "e"]
    assert (decoded.malformed, decoded.series) == (3, 8)


def test_as_many_series_as_the_limit_are_read_and_one_more_is_refused() -> None:
    many = [series("1", node=f"n{i}") for i in range(SERIES_LIMIT)]
    assert len(decode_answer(answer(*many)).samples) == SERIES_LIMIT
    with pytest.raises(SourceRefused, match="10001"):
        decode_answer(answer(*many, series("1", node="one-more")))


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (answer(kind="matrix"), SourceRefused),
        (answer("1700000000", "1", kind="scalar"), SourceRefused),
        (answer(warnings=["store 10.0.0.1: no answer"]), SourceError),
        (b'{"status": "error", "data": {"resultType": "vector", "result": []}}', SourceError),
        (b'{"status": "success"}', SourceError),
        (b"<html>", SourceError),
        (b"\xff", SourceError),
        (b"", SourceError),
        (b"[" * 100_000, SourceError),
    ],
)
def test_anything_else_is_an_error(body: bytes, kind: type[SourceError]) -> None:
    with pytest.raises(SourceError) as error:
        decode_answer(body)
    assert type(error.value) is kind


@pytest.mark.parametrize(
    ("status", "kind"), [(400, SourceRefused), (422, SourceRefused), (302, SourceRefused), (503, SourceError)]
)
async def test_a_failure_is_told_with_the_server_s_reason(status: int, kind: type[SourceError]) -> None:
    body = b'{"status": "error", "error": "many-to-many"}'
    server = PrometheusServer()
    server.failure = (status, {}, body)
    async with serving(server):
        where = PrometheusSource.model_validate({"url": server.url, "queries": [QUERY]})
        async with PrometheusClient(where) as client:
            with pytest.raises(SourceError, match="many-to-many") as error:
                await client.ask("up")
    assert type(error.value) is kind
