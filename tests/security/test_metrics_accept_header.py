"""A network stranger sends any header Accept to /metrics: the answer is the metrics, never an error."""

import asyncio
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import Response
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from tests.agent.http.test_messages import make_agent
from tests.tainter.http.service import bare_service

from muster_agent.http.routes import make_app
from muster_agent.metrics.agent_metrics import AgentMetrics
from muster_kube.http.metrics_page import metrics_response

# words of the header that the library reads, beside any others
WORDS = st.sampled_from(
    [
        *("application/openmetrics-text", "text/plain", "*/*", ";", ",", "=", " ", ".", "version=", "escaping=", "q="),
        *("1.0.0", "2.0.0", "0.0.4", "new", "-1", "1e9", "allow-utf-8", "underscores", "dots", "values", "\xb2", '"'),
    ]
)
HEADERS = st.lists(WORDS | st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"))).map(
    "".join
)


def every_kind() -> Any:
    """A service with a metric of each kind, names beyond ASCII and an exemplar: what some formats cannot express."""
    registry = CollectorRegistry()
    Counter("a", "a", ["l"], registry=registry).labels("\xe9").inc(1, {"trace": "1"})
    Histogram("h", "h", registry=registry).observe(1, {"trace": "1"})
    Gauge("g", "g", registry=registry).set(float("nan"))
    service = FastAPI()

    @service.get("/metrics")
    async def metrics(request: Request) -> Response:
        return metrics_response(registry, request)

    return service


SERVICES = {
    "agent": lambda: make_app(make_agent(), AgentMetrics("node-1", "1")),
    "tainter": bare_service,
    "every kind of metric": every_kind,
}


@pytest.mark.parametrize("name", SERVICES)
def test_any_accept_header_gets_the_metrics(name: str) -> None:
    service = SERVICES[name]()

    async def ask(accepted: str) -> httpx2.Response:
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=service), base_url="http://10.0.0.1"
        ) as client:
            return await client.get("/metrics", headers=[(b"accept", accepted.encode("latin-1"))])

    @given(HEADERS)
    @example("application/openmetrics-text;version=new")
    @example("text/plain;version=x")
    @example("text/plain;version=1.x")
    @example(f"text/plain;version={'9' * 5000}")
    @settings(deadline=None, max_examples=60, database=None, derandomize=True)
    def attack(accepted: str) -> None:
        answer = asyncio.run(ask(accepted))
        assert answer.status_code == 200
        assert "# HELP " in answer.text

    attack()
