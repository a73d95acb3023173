"""docs/metrics.md names every family that the tainter has, its type and its labels, and none beside them."""

from tests.metrics_page import registered, written

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.webhook.certificate_secret import CertificateSecret
from muster_tainter.agents.webhook import count_reviews, expose_certificate
from muster_tainter.controller import Tainter
from muster_tainter.fleet.replica import AgentPodSelector, Connections, Replica
from muster_tainter.metrics import TainterMetrics
from muster_tainter.pause import Pause
from muster_tainter.policy.file import load_policy


def test_the_page_names_exactly_the_families_of_a_replica_with_every_part_of_it() -> None:
    metrics, policy = TainterMetrics(), load_policy(None)
    client = KubeClient(ClusterConfig(origin="nowhere", server="http://127.0.0.1:1"))
    Tainter(
        Connections.shared(client),
        lambda: policy,
        Replica(may_write=lambda: False),
        metrics,
        agents=AgentPodSelector("muster", "app=agent"),
    )
    Pause(client, "muster", on_change=lambda: None, registry=metrics.registry)
    count_reviews(metrics.registry)
    expose_certificate(metrics.registry, CertificateSecret(client, "n", "s", ["h"]))
    exist = registered([metrics.registry])
    assert written("The tainter's") == exist
    assert all(name.startswith(("muster_tainter_", "muster_goodput_")) for name in exist)
