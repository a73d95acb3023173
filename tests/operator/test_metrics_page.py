"""docs/metrics.md names every family of the operator and of the V-IPU proxy with type and labels, and none beside."""

from tests.metrics_page import registered, written

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.webhook.certificate_secret import CertificateSecret
from muster_operator import metrics
from muster_operator.admission.server import count_reviews, export_certificate_left
from muster_operator.proxy import metrics as proxy


def test_of_the_operator() -> None:
    made = metrics.OperatorMetrics()
    made.watch(list, list, lambda: 0)
    count_reviews(made.registry)
    client = KubeClient(ClusterConfig(origin="nowhere", server="http://127.0.0.1:1"))
    export_certificate_left(made.registry, CertificateSecret(client, "n", "s", ["h"]))
    exist = registered([made.registry])
    assert written("The operator's") == exist
    assert all(name.startswith("muster_operator_") for name in exist)


def test_of_the_proxy() -> None:
    exist = registered([proxy.ProxyMetrics().registry])
    assert written("The V-IPU proxy's") == exist
    assert all(name.startswith("muster_vipu_proxy_") for name in exist)
