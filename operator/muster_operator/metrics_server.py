"""Serves the operator's metrics over HTTPS to authorized clients: a Kubernetes token (TokenReview) of a user who may
get the path ``/metrics`` (SubjectAccessReview), as the original does with its proxy.

The response is 401 without a valid token, 403 without the right, and 503 while the API server does not respond. Unless
cert_dir is set, the certificate is self-signed and kept in memory, so clients cannot verify the server.
"""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request
from fastapi.responses import PlainTextResponse, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CollectorRegistry

from muster_kube.api.errors import ApiError, ConfigError
from muster_kube.api.reviews import Reviews
from muster_kube.http.metrics_page import METRICS, metrics_response
from muster_kube.http.responses import described
from muster_kube.http.service import Service
from muster_kube.http.tls import load_key_pair
from muster_kube.process.lifetime import package_version
from muster_kube.webhook.key_pairs import VALID_S, make_key_pair

PATH = "/metrics"
RENEWED_S = VALID_S / 2
_BEARER = HTTPBearer(auto_error=False, description="a Kubernetes token of a user who may get the path /metrics")


class OwnCertificate:
    """A self-signed server certificate that is renewed in memory. clock: seconds since the epoch"""

    def __init__(
        self,
        host: str,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._host = host
        self._clock = clock
        self._sleep = sleep
        self.ssl_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.ssl_context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.renew()

    def renew(self) -> None:
        pair = make_key_pair([self._host], self._clock())
        load_key_pair(self.ssl_context, pair.certificate, pair.key)

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await self._sleep(RENEWED_S)
            self.renew()


def metrics_app(registry: CollectorRegistry, reviews: Reviews) -> Service:
    service = Service("muster operator's metrics", package_version())

    @service.get(
        PATH,
        response_class=PlainTextResponse,
        responses={
            **METRICS,
            401: described("no token, or an invalid one"),
            403: described("the token's user may not get this path"),
            503: described("the API server does not respond"),
        },
    )
    async def metrics(
        request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]
    ) -> Response:
        """For Prometheus, with a token that may `get` the non-resource URL /metrics; otherwise 401 or 403."""
        if credentials is None:
            return _refused(401, "expected a header Authorization: Bearer TOKEN")
        try:
            identity = await reviews.who(credentials.credentials)
            if identity is None:
                return _refused(401, "the API server does not accept this token")
            if not await reviews.may_ask(identity, "get", PATH):
                return _refused(
                    403, f"{identity.user} may not get {PATH}: grant it by a ClusterRole with nonResourceURLs"
                )
        except (ApiError, ConfigError) as error:
            return _refused(503, f"cannot check the token with the API server: {error}")
        return metrics_response(registry, request)

    return service


def _refused(status: int, why: str) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return PlainTextResponse(f"{why}\n", status, headers=headers)
