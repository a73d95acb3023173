"""The HTTPS server of the webhooks. Every replica serves them, leader or not.

All its objects share one name: both webhook configurations and, in the operator's namespace, the Service and the Secret
of the certificate.
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
from muster_kube.api.reviews import Identity, Reviews
from muster_kube.process.address import bind_socket
from muster_kube.process.lifetime import print_address
from muster_kube.webhook.certificate_files import CertificateFiles
from muster_kube.webhook.certificate_secret import CertificateSecret, mutating_webhook_path, validating_webhook_path
from muster_kube.webhook.served_certificate import CertificateSource
from muster_kube.webhook.server import Reviewer, WebhookApp, serve_webhooks
from muster_operator.admission.configurations import MUTATE_PATH, POD_PATH, VALIDATE_PATH
from muster_operator.admission.ipu_pods import PodReviewer, read_minor
from muster_operator.admission.review import Reviewers
from muster_operator.admission.validation import SpecLimits
from muster_operator.job.snapshot import JobSetup

log = logging.getLogger(__name__)

NAME = "muster-ipujob"
CONNECTIONS = 9  # three watches of the certificate, the writes that follow, and reviews of users' rights


@dataclass(frozen=True)
class WebhookEndpoint:
    """namespace: the operator's. port: 0 picks a free one. cert_dir: tls.crt and tls.key that another component renews
    and makes trusted; None: generated here and kept in a Secret. scope: only jobs of these namespaces are reviewed.
    ipu_pods: pods are reviewed too, and this is how they wait for their IPUs."""

    namespace: str
    host: str = "0.0.0.0"  # noqa: S104 - called by the API server
    port: int = 9443
    name: str = NAME
    cert_dir: Path | None = None
    scope: tuple[str, ...] = ()
    limits: SpecLimits = field(default_factory=SpecLimits)
    ipu_pods: JobSetup | None = None


def certificate_hosts(endpoint: WebhookEndpoint) -> Collection[str]:
    """The names in the certificate: those of the Service, and the listening address unless it is a wildcard."""
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
    """Yields a coroutine that serves the webhooks until cancelled. Prints ``webhooks on HOST:PORT``. Raises
    ConfigError, OSError.

    It needs the right to create SubjectAccessReviews and, without a cert_dir, those that :class:`CertificateSecret`
    lists, on the Secret and on both webhook configurations.
    """
    # separate connections: submitting a job must not wait for the operator's other work
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
            yield _serve(endpoint, certificates, bound, registry, client)


async def _serve(
    endpoint: WebhookEndpoint,
    certificates: CertificateSource,
    bound: socket.socket,
    registry: CollectorRegistry,
    client: KubeClient,
) -> None:
    rights = Reviews(client)

    async def may_create_pods(user: Identity, namespace: str) -> bool:
        return await rights.may(user, "create", "", "pods", namespace=namespace)

    reviews = count_reviews(registry)
    export_certificate_left(registry, certificates)
    reviewers = Reviewers(
        endpoint.limits,
        endpoint.scope,
        lambda webhook, answer: reviews.labels(webhook, answer).inc(),
        may_create_pods,
    )
    print_address("webhooks", bound)
    if endpoint.scope:
        log.info("IPUJobs outside the namespaces %s are not reviewed", ", ".join(endpoint.scope))
    served: dict[str, Reviewer] = {MUTATE_PATH: reviewers.mutate, VALIDATE_PATH: reviewers.validate}
    if endpoint.ipu_pods is not None:
        pods = PodReviewer(
            endpoint.ipu_pods,
            lambda: read_minor(client),
            endpoint.scope,
            lambda answer: reviews.labels("pod", answer).inc(),
        )
        served[POD_PATH] = pods.mutate
    await serve_webhooks(WebhookApp(served), certificates, bound)


def count_reviews(registry: CollectorRegistry) -> Counter:
    """Labels: mutate or validate, or pod for pods; allowed or refused."""
    reviews = Counter(
        "muster_operator_reviews",
        "IPUJobs reviewed by the admission webhooks, and pods (webhook pod)",
        ["webhook", "answer"],
        registry=registry,
    )
    for webhook in ("mutate", "validate", "pod"):
        for answer in ("allowed", "refused"):
            reviews.labels(webhook, answer)
    return reviews


def export_certificate_left(registry: CollectorRegistry, certificates: CertificateSource) -> None:
    gauge = Gauge(
        "muster_operator_certificate_left_seconds",
        "Seconds until the certificate of the webhooks expires",
        registry=registry,
    )
    gauge.set_function(lambda: certificates.left_s)
