"""The own-node rule and the rule about Muster's keys of Nodes as webhooks, for API servers before 1.30.

The first is a validating webhook. The second is called as a mutating one, which changes nothing, because API servers
before 1.20.6 do not show validating webhooks the old Node (CVE-2021-25735). One name is shared by both configurations
and, in the tainter's namespace, the Service and the Secret.
Every replica answers, leader or not.
"""

import logging
import socket
import time
from collections.abc import AsyncIterator, Collection, Coroutine
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.reviews import Reviews
from muster_kube.process.lifetime import print_address
from muster_kube.webhook.certificate_files import CertificateFiles
from muster_kube.webhook.certificate_secret import CertificateSecret, mutating_webhook_path, validating_webhook_path
from muster_kube.webhook.served_certificate import CertificateSource
from muster_kube.webhook.server import WebhookApp, serve_webhooks
from muster_tainter.agents.node_keys import NodeKeysRule
from muster_tainter.agents.own_node import AgentAccount, OwnNodeRule, TokenPodNodes
from muster_tainter.settings import TainterSettings

log = logging.getLogger(__name__)

PATH = "/validate-muster-dev-v1alpha1-nodehealth-status"
NODES_PATH = "/validate-v1-node"
# for lookups of pods and rights, a millisecond or two each, and for the certificate: three watches and their requests
CONNECTIONS = 10


def read_account(text: str, namespace: str) -> AgentAccount:
    """``NAMESPACE/NAME``, or ``NAME`` alone in ``namespace``."""
    before, slash, name = text.rpartition("/")
    return AgentAccount(before if slash else namespace, name)


def server_names(name: str, namespace: str, host: str) -> Collection[str]:
    """The certificate's names: those of the Service, and the listen address unless it is the wildcard."""
    hosts = [f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.cluster.local"]
    try:
        address = ip_address(host)
    except ValueError:
        return [*hosts, host]
    return hosts if address.is_unspecified else [*hosts, str(address)]


@asynccontextmanager
async def prepare(
    settings: TainterSettings,
    bound: socket.socket,
    config: ClusterConfig,
    namespace: str,
    user_agent: str,
    registry: CollectorRegistry,
) -> AsyncIterator[Coroutine[Any, Any, None]]:
    """Serves the rules until cancelled. bound: a socket that does not listen yet. Raises ConfigError."""
    account, name = read_account(settings.agent_account, namespace), settings.webhook_name
    # separate connections: agents' reports and the tainter's other requests must not delay each other
    async with KubeClient(config, user_agent=user_agent, max_connections=CONNECTIONS) as client:
        certificates: CertificateSource
        if settings.cert_dir is not None:
            certificates = CertificateFiles(settings.cert_dir)
        else:
            hosts = server_names(name, namespace, settings.host)
            trusting = [mutating_webhook_path(name), validating_webhook_path(name)]
            certificates = CertificateSecret(client, namespace, name, hosts, trusting=trusting)
        yield _serve(client, account, certificates, bound, registry)


def count_reviews(registry: CollectorRegistry) -> tuple[Counter, Counter]:
    """Of the writes of agents, and of Muster's keys of Nodes."""
    of_agents = Counter(
        "muster_tainter_own_node_reviews",
        "Writes by agents that the webhook reviewed; undecided ones were rejected too",
        ["answer"],
        registry=registry,
    )
    of_keys = Counter(
        "muster_tainter_node_key_reviews",
        "Writes of Nodes that change keys under muster.dev/, as the webhook reviewed them; undecided ones were "
        "rejected too",
        ["answer"],
        registry=registry,
    )
    for answer in ("allowed", "refused", "undecided"):
        of_agents.labels(answer)
        of_keys.labels(answer)
    return of_agents, of_keys


def expose_certificate(registry: CollectorRegistry, certificates: CertificateSource) -> None:
    gauge = Gauge(
        "muster_tainter_certificate_left_seconds", "Time until the webhook's certificate expires", registry=registry
    )
    gauge.set_function(lambda: certificates.left_s)


async def _serve(
    client: KubeClient,
    account: AgentAccount,
    certificates: CertificateSource,
    bound: socket.socket,
    registry: CollectorRegistry,
) -> None:
    of_agents, of_keys = count_reviews(registry)
    expose_certificate(registry, certificates)
    nodes = TokenPodNodes(client, account.namespace)
    own_node = OwnNodeRule(account, nodes, tell=lambda answer: of_agents.labels(answer).inc(), clock=time.monotonic)
    node_keys = NodeKeysRule(Reviews(client), tell=lambda answer: of_keys.labels(answer).inc(), clock=time.monotonic)
    print_address("webhook listening", bound)
    log.info("%s may write only the status of its own node's NodeHealth", account)
    reviewers = {PATH: own_node.review, NODES_PATH: node_keys.review}
    await serve_webhooks(WebhookApp(reviewers), certificates, bound)
