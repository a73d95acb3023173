"""``/metrics`` of a service."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from muster_kube.http.responses import TEXT, described

METRICS: Mapping[int | str, dict[str, Any]] = MappingProxyType(
    {200: described("the metrics", {**TEXT, "application/openmetrics-text": {"schema": {"type": "string"}}})}
)


def metrics_response(registry: CollectorRegistry, request: Request) -> Response:
    """The metrics in Prometheus' text format, or in OpenMetrics if the client accepts it."""
    try:
        encoder, content_type = choose_encoder(request.headers.get("accept", ""))
    except (TypeError, ValueError):  # a version in the header is not a number
        encoder, content_type = choose_encoder("")
    # as a header, because Starlette changes a media type
    return Response(encoder(registry), headers={"content-type": content_type})
