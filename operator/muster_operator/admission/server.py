"""The HTTPS server of both webhooks. Every replica answers, leader or not.

One name for all that belongs to it: both webhook configurations, and in the operator's namespace the Service and the
Secret of the certificate.
"""

import logging
import socket
from collections.abc import AsyncIterator, Collection, Coroutine
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.process.address import bind_socket
from muster_kube.webhook.certificate_files import CertificateFiles
from muster_kube.webhook.certificate_secret import CertificateSecret, mutating_webhook_path, validating_webhook_path
from muster_kube.webhook.served_certificate import CertificateSource
from muster_kube.webhook.server import WebhookApp, serve_webhooks
from muster_operator.admission.configurations import MUTATE_PATH, VALIDATE_PATH
from muster_operator.admission.review import Reviewers
from muster_operator.admission.validation import SpecLimits

log = logging.getLogger(__name__)

NAME = "muster-ipujob"
CONNECTIONS = 5  # for the certificate only: three watches, and what they lead to


@dataclass(frozen=True)
class WebhookEndpoint:
    """namespace: the operator's. port: 0 is any free one. cert_dir: tls.crt and tls.key that somebody else keeps fresh
    and has trusted; None: made here, kept in a Secret. scope: the only namespaces whose jobs are judged."""

    namespace: str
    host: str = "0.0.0.0"  # noqa: S104 - called by the API server
    port: int = 9443
    name: str = NAME
    cert_dir: Path | None = None
    scope: tuple[str, ...] = ()
    limits: SpecLimits = field(default_factory=SpecLimits)


def certificate_hosts(endpoint: WebhookEndpoint) -> Collection[str]:
    """What the certificate is for: the Service's names, and the address that is listened on, if it is one."""
    hosts = [f"{endpoint.name}.{endpoint.namespace}.svc", f"{endpoint.name}.{endpoint.namespace}.svc.cluster.local"]
    try:
        address = ip_address(endpoint.host)
    except ValueError:
        return [*hosts, endpoint.host]
    return hosts if address.is_unspecified else [*hosts, str(address)]


@asynccontextmanager
async def prepare_webhooks(
    endpoint: WebhookEndpoint, config: ClusterConfig, user_agent: str, registry: CollectorRegistry
) -> AsyncIterator[Coroutine[Any, Any, None]]:
    """What serves both webhooks until it is cancelled. Prints ``webhooks on HOST:PORT``. Raises ConfigError, OSError.

    Rights, without a cert_dir: as :class:`CertificateSecret` says, on the Secret and on both webhook configurations.
    """
    # connections of its own: whoever submits a job waits for nothing that the operator does
    async with KubeClient(config, user_agent=user_agent, max_connections=CONNECTIONS) as client:
        certificates: CertificateSource
        if endpoint.cert_dir is not None:
            certificates = CertificateFiles(endpoint.cert_dir)
        else:
            trusting = [mutating_webhook_path(endpoint.name), validating_webhook_path(endpoint.name)]
            certificates = CertificateSecret(
                client, endpoint.namespace, endpoint.name, certificate_hosts(endpoint), trusting=trusting
            )
        bound = bind_socket(endpoint.host, endpoint.port)
        with closing(bound):
            yield _serve(endpoint, certificates, bound, registry)


async def _serve(
    endpoint: WebhookEndpoint, certificates: CertificateSource, bound: socket.socket, registry: CollectorRegistry
) -> None:
    reviews = count_reviews(registry)
    export_certificate_left(registry, certificates)
    reviewers = Reviewers(
        endpoint.limits, endpoint.scope, lambda webhook, answer: reviews.labels(webhook, answer).inc()
    )
    host, port = bound.getsockname()[:2]
    print(f"webhooks on {host}:{port}", flush=True)
    if endpoint.scope:
        log.info("IPUJobs of other namespaces than %s are not judged", ", ".join(endpoint.scope))
    webhooks = WebhookApp({MUTATE_PATH: reviewers.mutate, VALIDATE_PATH: reviewers.validate})
    await serve_webhooks(webhooks, certificates, bound)


def count_reviews(registry: CollectorRegistry) -> Counter:
    """Labels: mutate or validate; allowed or refused."""
    reviews = Counter(
        "muster_operator_reviews",
        "IPUJobs that the admission webhooks answered for",
        ["webhook", "answer"],
        registry=registry,
    )
    for webhook in ("mutate", "validate"):
        for answer in ("allowed", "refused"):
            reviews.labels(webhook, answer)
    return reviews


def export_certificate_left(registry: CollectorRegistry, certificates: CertificateSource) -> None:
    gauge = Gauge("muster_operator_certificate_left_seconds", "Until the webhooks' certificate ends", registry=registry)
    gauge.set_function(lambda: certificates.left_s)
