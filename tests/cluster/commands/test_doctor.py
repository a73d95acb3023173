"""`muster doctor` on a real API server: an installation of the real helm that is broken piece by piece, looked at by an
administrator and by somebody who may look at little."""

import base64
import json
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.chart import test_chart_install as chart
from tests.cluster.chart.test_chart_install import CRDS, HEALTHS, Cluster, until

from muster_cli.__main__ import main
from muster_kube.api.times import rfc3339
from muster_kube.webhook.key_pairs import VALID_S, KeyPairSet, make_key_pair

cluster = chart.cluster  # a fixture

RBAC = "/apis/rbac.authorization.k8s.io/v1"
HOOK = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/gc-ipu-operator-webhook"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/autopilot/leases"
MAPS = "/api/v1/namespaces/{}/configmaps"
TIME = r"\d{4}-\d\d-\d\dT"  # a finding about a certificate names when it ends or ended
NODEHEALTHS = f"{CRDS}/nodehealths.muster.dev"
STATUS = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/observedAt"


class Said:
    def __init__(self, code: int, findings: Iterable[dict[str, Any]]) -> None:
        self.code = code
        self.findings = list(findings)

    def of(self, area: str) -> list[tuple[str, str]]:
        return [(each["verdict"], each["what"]) for each in self.findings if each["area"] == area]

    def says(self, area: str, verdict: str, *facts: str) -> bool:
        """Whether one finding of the area, with that verdict, names all of them."""
        return any(found == verdict and all(fact in what for fact in facts) for found, what in self.of(area))

    def verdicts(self, area: str) -> set[str]:
        return {verdict for verdict, _ in self.of(area)}


def doctor(kubeconfig: Path, capsys: pytest.CaptureFixture[str], *words: str) -> Said:
    code = main(["doctor", "--json", "--kubeconfig", str(kubeconfig), *words])
    return Said(code, json.loads(capsys.readouterr().out)["findings"])


def doctor_until(
    kubeconfig: Path,
    capsys: pytest.CaptureFixture[str],
    enough: Callable[[Said], bool],
    *words: str,
    partial: bool = False,
) -> Said:
    """partial: the user may not read everything, so UNKNOWN is no reason to ask again. An administrator may read
    everything, but a starved API server does not answer each read in time."""
    said: list[Said] = []

    def look() -> bool:
        said.append(doctor(kubeconfig, capsys, *words))
        return enough(said[-1]) and (partial or "UNKNOWN" not in {each["verdict"] for each in said[-1].findings})

    until(look, "the doctor sees it")
    return said[-1]


def test_it_finds_what_is_broken_and_only_that(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    admin, kubeconfig = cluster.admin, cluster.plane.kubeconfig
    nothing = doctor_until(kubeconfig, capsys, lambda said: said.code == 2)
    assert nothing.says("parts", "FAIL", "Muster")
    assert nothing.says("crds", "FAIL", "nodehealths.muster.dev")

    cluster.upgrade("gc", "--set", "admissionWebhooks.failurePolicy=Ignore", "--set", "agent.nodeSelector.gpu=a")
    # no kubelet runs: nothing of it starts. Roles are seen by the API server a moment after they were made
    fresh = doctor_until(kubeconfig, capsys, lambda said: said.verdicts("rights") == {"PASS"})
    assert fresh.verdicts("crds") == {"PASS"}
    assert fresh.verdicts("rights") == {"PASS"}
    assert fresh.verdicts("apis") == {"PASS"}
    assert fresh.verdicts("policy") == {"PASS"}
    assert fresh.verdicts("pause") == {"PASS"}
    assert fresh.verdicts("clocks") == {"PASS"}
    assert fresh.says("parts", "FAIL", "Deployment autopilot/muster-tainter", "0 of 2")
    assert fresh.says("leaders", "FAIL", "tainter")
    assert fresh.says("certificates", "FAIL", "caBundle")
    assert fresh.says("webhooks", "WARN", "Service default/gc-ipu-operator-webhook")
    assert fresh.says("v-ipu", "FAIL", "controller")
    assert fresh.says("v-ipu", "FAIL", "proxy")
    assert fresh.says("agents", "WARN", "nodes")

    _drain(cluster)
    lacking = doctor_until(kubeconfig, capsys, lambda said: said.verdicts("rights") == {"FAIL"})
    assert lacking.says("rights", "FAIL", "pods/eviction", "rules[0] (all).action")

    _break(cluster)
    try:
        broken = doctor_until(kubeconfig, capsys, lambda said: said.verdicts("rights") == {"FAIL"})
    finally:
        admin.delete("/api/v1/nodes/bare")
    assert broken.code == 2
    assert broken.says("crds", "FAIL", "status.observedAt")
    assert broken.says("rights", "FAIL", "autopilot:muster-tainter")
    assert broken.says("leaders", "FAIL", "Lease autopilot/muster-tainter")
    expired = [what for verdict, what in broken.of("certificates") if verdict == "FAIL" and re.search(TIME, what)]
    assert any("caBundle" in what for what in expired)
    assert broken.says("pause", "WARN", "ada")
    assert broken.says("policy", "FAIL", "NoShedule")
    assert broken.says("v-ipu", "FAIL", "entry 1, 'pod1'")
    assert broken.says("agents", "WARN", "bare", "agent.nodeSelector", "gpu=a")

    person = cluster.plane.kubeconfig_for_user("somebody")
    partial = doctor(person, capsys)
    assert partial.code == 3
    assert partial.verdicts("parts") == {"UNKNOWN"}
    assert not partial.says("parts", "FAIL")
    _may_read(cluster, "somebody", "autopilot")
    allotted = ("--namespace", "autopilot")
    seen = doctor_until(person, capsys, lambda said: said.verdicts("pause") == {"WARN"}, *allotted, partial=True)
    assert seen.says("pause", "WARN", "ada")
    assert seen.says("policy", "FAIL", "NoShedule")
    assert seen.verdicts("rights") == {"UNKNOWN"}
    assert seen.verdicts("crds") == {"UNKNOWN"}


def _drain(cluster: Cluster) -> None:
    """A policy that the chart has not seen, and that needs a right that it did not grant."""
    policy = "rules: [{name: all, action: drain}]"
    cluster.admin.patch(f"{MAPS.format('autopilot')}/muster-policy", {"data": {"policy.yaml": policy}})


def _break(cluster: Cluster) -> None:
    admin = cluster.admin
    definition = admin.get(NODEHEALTHS)
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["status"]["properties"]["observedAt"]
    admin.patch(NODEHEALTHS, {"spec": definition["spec"]})
    admin.delete(f"{RBAC}/clusterrolebindings/muster-tainter")
    admin.create(LEASES, {"metadata": {"name": "muster-tainter"}, "spec": {"holderIdentity": ""}})
    kept = KeyPairSet(make_key_pair(["gc-ipu-operator-webhook.default.svc"], time.time() - VALID_S - 3600))
    bundle = base64.b64encode(kept.bundle).decode()
    webhooks = admin.get(HOOK)["webhooks"]
    for each in webhooks:
        each["clientConfig"]["caBundle"] = bundle
    admin.patch(HOOK, {"webhooks": webhooks})
    pause = {"by": "ada", "at": rfc3339(time.time() - 7200), "reason": "switch"}
    admin.create(MAPS.format("autopilot"), {"metadata": {"name": "muster-pause"}, "data": pause})
    policy = "rules: [{name: a, action: taint, taint: {effect: NoShedule}}]"
    admin.patch(f"{MAPS.format('autopilot')}/muster-policy", {"data": {"policy.yaml": policy}})
    controllers = f"{MAPS.format('default')}/gc-ipu-operator-vipu-controllers"
    admin.patch(controllers, {"data": {"controllers.yaml": "pod1"}})
    admin.create("/api/v1/nodes", {"metadata": {"name": "bare"}})
    admin.create(HEALTHS, {"apiVersion": "muster.dev/v1alpha1", "kind": "NodeHealth", "metadata": {"name": "bare"}})


def _may_read(cluster: Cluster, user: str, namespace: str) -> None:
    group = "rbac.authorization.k8s.io"
    rules = [{"apiGroups": ["", "apps", "coordination.k8s.io"], "resources": ["*"], "verbs": ["get", "list"]}]
    cluster.admin.create(f"{RBAC}/namespaces/{namespace}/roles", {"metadata": {"name": "look"}, "rules": rules})
    binding = {
        "metadata": {"name": "look"},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "look"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }
    cluster.admin.create(f"{RBAC}/namespaces/{namespace}/rolebindings", binding)
