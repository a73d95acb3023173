"""The operator's metrics, over https, for those who may read them: a Kubernetes token (TokenReview) of somebody with
the right to get the path ``/metrics`` (SubjectAccessReview), as the original has it behind its proxy.

401 without a token that the API server knows, 403 without the right, 503 while it cannot be asked. The certificate is
made here and kept nowhere: whoever asks is not shown who answers, unless cert_dir says otherwise.
"""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from muster_kube.api.errors import ApiError, ConfigError
from muster_kube.api.reviews import Reviews
from muster_kube.webhook.key_pairs import VALID_S, make_key_pair
from muster_kube.webhook.served_certificate import load_key_pair

PATH = "/metrics"
RENEWED_S = VALID_S / 2


class OwnCertificate:
    """A server certificate that signs for nobody but itself, renewed in memory. clock: seconds since the epoch"""

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
        """For ever."""
        while True:
            await self._sleep(RENEWED_S)
            self.renew()


def metrics_app(registry: CollectorRegistry, reviews: Reviews) -> Starlette:
    async def metrics(request: Request) -> Response:
        """For Prometheus, with a token that may `get` the non-resource URL /metrics; else 401 or 403."""
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not token.strip():
            return _refused(401, "expected a header Authorization: Bearer TOKEN")
        try:
            identity = await reviews.who(token.strip())
            if identity is None:
                return _refused(401, "the API server does not know this token")
            if not await reviews.may_ask(identity, "get", PATH):
                return _refused(
                    403, f"{identity.user} may not get {PATH}: a ClusterRole with nonResourceURLs lets them"
                )
        except (ApiError, ConfigError) as error:
            return _refused(503, f"the API server cannot be asked who this is: {error}")
        encoder, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encoder(registry), media_type=content_type)

    return Starlette(routes=[Route(PATH, metrics)])


def _refused(status: int, why: str) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return PlainTextResponse(f"{why}\n", status, headers=headers)
