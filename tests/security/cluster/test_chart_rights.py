"""The chart, installed by the real helm on a real API server: what each account may do then, and what it may not."""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.chart.helm_render import CHART, Object
from tests.cluster.chart import test_chart_install as chart
from tests.cluster.chart.test_chart_install import CRDS, HEALTHS, IPUJOBS, TRACKER, Cluster, until
from tests.machine import require

from muster_sandbox.controlplane.admin import AdminClient
from muster_sandbox.controlplane.admin import RequestRefused as Denied

cluster = chart.cluster  # a fixture


@dataclass(frozen=True)
class Parts:
    """A release of the chart. agent_pod: on node ``n``; agents' tokens are bound to it."""

    cluster: Cluster
    agent_pod: Object

    @property
    def admin(self) -> AdminClient:
        return self.cluster.admin

    @property
    def has_policy(self) -> bool:
        """Whether the API server itself can hold agents to their own node: from Kubernetes 1.30 on."""
        return self.cluster.plane.minor >= 30

    def connect(self, account: tuple[str, str]) -> AdminClient:
        return self.cluster.as_account(*account, self.agent_pod if account == AGENT else None)


@pytest.fixture(scope="module")
def parts(cluster: Cluster) -> Iterator[Parts]:
    cluster.upgrade("gc", *VALUES)
    cluster.admin.create("/api/v1/nodes", {"metadata": {"name": "n"}})
    for node in ("n", "other"):
        cluster.admin.create(
            HEALTHS, {"apiVersion": "muster.dev/v1alpha1", "kind": "NodeHealth", "metadata": {"name": node}}
        )
    # mounts no token, so it waits for none on Kubernetes before 1.24
    bound = {"nodeName": "n", "serviceAccountName": AGENT[1], "automountServiceAccountToken": False}
    pod = cluster.admin.create(f"{AUTO}/pods", {"metadata": {"name": "agent-of-n"}, "spec": POD["spec"] | bound})
    yield Parts(cluster, pod)
    cluster.admin.delete(f"{AUTO}/pods/agent-of-n", grace_s=0)
    cluster.admin.delete("/api/v1/nodes/n")
    for node in ("n", "other"):
        cluster.admin.delete(f"{HEALTHS}/{node}")
    cluster.uninstall("gc", "--no-hooks")


VALUES = ("--set", "admissionWebhooks.failurePolicy=Ignore", "--set", "run.heavyChecks=true")
RUN = ("autopilot", "muster-run")
AGENT, TAINTER = ("autopilot", "muster-agent"), ("autopilot", "muster-tainter")
OPERATOR, PROXY = ("default", "gc-ipu-operator-controller-manager"), ("default", "gc-ipu-operator-vipu-proxy")
DRY = "?dryRun=All"
ONLY = "fieldSelector=metadata.name="  # as the watches of single objects select
CORE, AUTO, MINE = "/api/v1", "/api/v1/namespaces/autopilot", "/api/v1/namespaces/default"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
Call = tuple[str, str, Any]
NAMED: Object = {"metadata": {"name": "x"}}
POD: Object = {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
PRIVILEGED: Object = {
    "metadata": {"name": "x"},
    "spec": {"hostPID": True, "containers": [{"name": "c", "image": "i", "securityContext": {"privileged": True}}]},
}
JOBS = "/apis/batch/v1/namespaces/{}/jobs"
JOB: Object = {
    "metadata": {"name": "x"},
    "spec": {"template": {"spec": {**PRIVILEGED["spec"], "restartPolicy": "Never"}}},
}
EVICTION: Object = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": "agent-of-n"}}
LEASE: Object = {"metadata": {"name": "x"}, "spec": {}}
REVIEW: Object = {"spec": {"token": "t"}}
ACCESS_REVIEW: Object = {"spec": {"user": "ann", "resourceAttributes": {"verb": "get", "resource": "pods"}}}
EVENT: Object = {
    "metadata": {"name": "x"}, "reason": "R", "message": "m", "type": "Normal",
    "involvedObject": {"kind": "Node", "name": "n", "namespace": ""},
}  # fmt: skip
ROLE: Object = {
    "metadata": {"name": "x"},
    "rules": [{"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]}],
}
ANYTHING: Object = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
RBAC = "/apis/rbac.authorization.k8s.io/v1"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1"

# of the tainter, for its webhooks: from Kubernetes 1.30 on their rules are policies of the API server
OWN_NODE: list[Call] = [
    ("create", f"{AUTO}/secrets{DRY}", NAMED),
    *(
        ("get", f"{WEBHOOKS}/{kind}webhookconfigurations{one}muster-own-node", None)
        for kind in ("mutating", "validating")
        for one in ("/", f"?{ONLY}")
    ),
    ("get", f"{AUTO}/secrets?{ONLY}muster-own-node", None),
]
MAY: dict[tuple[str, str], list[Call]] = {
    AGENT: [
        ("get", HEALTHS, None),
        ("patch", f"{HEALTHS}/n/status{DRY}", {"status": {"verdict": "PASS"}}),
        ("get", "/apis/discovery.k8s.io/v1beta1/namespaces/autopilot/endpointslices", None),
    ],
    TAINTER: [
        ("get", HEALTHS, None),
        ("patch", f"{HEALTHS}/n{DRY}", {"spec": {}}),
        ("get", f"{CORE}/nodes", None),
        ("patch", f"{CORE}/nodes/n{DRY}", {"metadata": {"labels": {"muster.dev/health": "pass"}}}),
        ("patch", f"{CORE}/nodes/n/status{DRY}", {"status": {}}),
        ("get", f"{CORE}/pods", None),
        ("create", f"{MINE}/events{DRY}", EVENT),
        ("create", LEASES.format("autopilot") + DRY, LEASE),
        ("create", f"{AUTO}/configmaps{DRY}", NAMED),
        ("create", TOKENS, REVIEW),
    ],
    OPERATOR: [
        ("get", IPUJOBS, None),
        ("get", HEALTHS, None),
        ("patch", f"{HEALTHS}/n{DRY}", {"spec": {}}),
        ("get", f"{CORE}/nodes", None),
        ("create", f"{MINE}/pods{DRY}", POD),
        ("create", f"{MINE}/configmaps{DRY}", NAMED),
        ("create", f"{MINE}/serviceaccounts{DRY}", NAMED),
        ("create", f"{RBAC}/namespaces/default/roles{DRY}", ROLE),
        ("create", f"{MINE}/events{DRY}", EVENT | {"involvedObject": {"kind": "IPUJob", "namespace": "default"}}),
        ("create", LEASES.format("default") + DRY, LEASE),
        ("create", f"{MINE}/secrets{DRY}", NAMED),
        ("get", f"{WEBHOOKS}/mutatingwebhookconfigurations/gc-ipu-operator-webhook", None),
        ("get", f"{WEBHOOKS}/mutatingwebhookconfigurations?{ONLY}gc-ipu-operator-webhook", None),
        ("get", f"{MINE}/secrets?{ONLY}gc-ipu-operator-webhook", None),
        ("create", TOKENS, REVIEW),
    ],
    PROXY: [
        ("create", f"{MINE}/configmaps{DRY}", NAMED),
        ("create", TOKENS, REVIEW),
    ],
    RUN: [
        ("get", f"{HEALTHS}?limit=1", None),
        ("patch", f"{HEALTHS}/n{DRY}", {"metadata": {"annotations": {"permit.muster.dev/x": "1"}}}),
    ],
}
MAY_NOT: dict[tuple[str, str], list[Call]] = {
    AGENT: [
        ("get", f"{CORE}/nodes", None),
        ("get", f"{CORE}/pods", None),
        ("get", f"{CORE}/secrets", None),
        ("get", f"{AUTO}/configmaps", None),
        ("patch", f"{CORE}/nodes/n{DRY}", {"metadata": {"labels": {"a": "b"}}}),
        ("patch", f"{HEALTHS}/n{DRY}", {"spec": {}}),
        ("create", f"{HEALTHS}{DRY}", NAMED),
        ("delete", f"{HEALTHS}/n", None),
        ("create", f"{MINE}/events{DRY}", EVENT),
        ("get", "/apis/discovery.k8s.io/v1beta1/endpointslices", None),
        ("create", TOKENS, REVIEW),
        ("create", ACCESS, ACCESS_REVIEW),
    ],
    TAINTER: [
        # under a policy that neither drains nor repairs
        ("create", f"{AUTO}/pods{DRY}", PRIVILEGED),
        ("create", JOBS.format("autopilot") + DRY, JOB),
        ("create", f"{AUTO}/persistentvolumeclaims{DRY}", NAMED),
        ("create", f"{AUTO}/pods/agent-of-n/eviction{DRY}", EVICTION),
        ("get", f"{AUTO}/secrets", None),
        ("get", f"{AUTO}/secrets/autopilot-pull-secret", None),
        ("get", f"{AUTO}/secrets?{ONLY}autopilot-pull-secret", None),
        ("create", f"{MINE}/secrets{DRY}", NAMED),
        ("create", f"{MINE}/configmaps{DRY}", NAMED),
        ("create", f"{MINE}/pods{DRY}", POD),
        ("delete", f"{CORE}/nodes/n", None),
        ("delete", f"{MINE}/pods/x", None),
        ("patch", f"{HEALTHS}/n/status{DRY}", {"status": {"verdict": "PASS"}}),
        ("get", f"{WEBHOOKS}/mutatingwebhookconfigurations/gc-ipu-operator-webhook", None),
        ("get", f"{WEBHOOKS}/validatingwebhookconfigurations/gc-ipu-operator-webhook", None),
        ("create", f"{RBAC}/clusterroles{DRY}", NAMED),
        ("get", IPUJOBS, None),
    ],
    OPERATOR: [
        ("get", f"{MINE}/secrets", None),
        ("create", f"{AUTO}/secrets{DRY}", NAMED),
        ("get", LEASES.format("default"), None),
        ("patch", f"{LEASES.format('default')}/x{DRY}", {"spec": {}}),
        ("delete", f"{MINE}/serviceaccounts/x", None),
        ("delete", f"{MINE}/configmaps/x", None),
        ("patch", f"{CORE}/nodes/n{DRY}", {"metadata": {"labels": {"a": "b"}}}),
        ("create", f"{RBAC}/clusterrolebindings{DRY}", NAMED),
        # no right is given on that it does not have
        ("create", f"{RBAC}/namespaces/default/roles{DRY}", NAMED | {"rules": [ANYTHING]}),
        ("patch", f"{HEALTHS}/n/status{DRY}", {"status": {"verdict": "PASS"}}),
        ("create", f"{HEALTHS}{DRY}", NAMED),
        ("delete", f"{HEALTHS}/n", None),
        ("get", f"{WEBHOOKS}/validatingwebhookconfigurations/muster-own-node", None),
        ("get", f"{WEBHOOKS}/validatingwebhookconfigurations", None),
        ("create", f"{IPUJOBS}{DRY}", NAMED),
        ("patch", f"{CRDS}/ipujobs.graphcore.ai{DRY}", {"metadata": {"labels": {"a": "b"}}}),
    ],
    PROXY: [
        ("get", f"{MINE}/configmaps", None),
        ("get", f"{MINE}/secrets", None),
        ("create", f"{AUTO}/configmaps{DRY}", NAMED),
        ("get", f"{CORE}/nodes", None),
        ("get", f"{CORE}/pods", None),
        ("get", IPUJOBS, None),
        ("create", f"{MINE}/pods{DRY}", POD),
        ("create", LEASES.format("default") + DRY, LEASE),
    ],
    RUN: [
        ("patch", f"{HEALTHS}/n/status{DRY}", {"status": {"verdict": "PASS"}}),
        ("create", f"{HEALTHS}{DRY}", NAMED),
        ("delete", f"{HEALTHS}/n", None),
        ("get", f"{CORE}/nodes", None),
        ("get", f"{CORE}/pods", None),
        ("get", f"{AUTO}/secrets", None),
        ("get", f"{AUTO}/configmaps", None),
        ("create", f"{AUTO}/pods{DRY}", POD),
        ("create", JOBS.format("autopilot") + DRY, JOB),
        ("create", TOKENS, REVIEW),
        ("get", "/apis/discovery.k8s.io/v1beta1/namespaces/autopilot/endpointslices", None),
    ],
}  # fmt: skip


def allowed(client: AdminClient, call: Call) -> bool:
    """Whether the API server lets it through; what it then makes of it is not asked."""
    method, path, body = call
    words = (path,) if body is None else (path, body)
    try:
        getattr(client, method)(*words)
    except Denied as error:
        return error.status != 403
    return True


@pytest.mark.parametrize("account", MAY, ids=lambda account: account[1])
def test_a_part_may_do_what_it_does(parts: Parts, account: tuple[str, str]) -> None:
    calls = MAY[account] + (OWN_NODE if account == TAINTER and not parts.has_policy else [])
    with parts.connect(account) as client:
        assert [call[:2] for call in calls if not allowed(client, call)] == []


@pytest.mark.parametrize("account", MAY_NOT, ids=lambda account: account[1])
def test_a_part_may_do_nothing_else(parts: Parts, account: tuple[str, str]) -> None:
    calls = MAY_NOT[account] + (OWN_NODE if account == TAINTER and parts.has_policy else [])
    with parts.connect(account) as client:
        assert [call[:2] for call in calls if allowed(client, call)] == []


def test_the_api_server_holds_agents_to_their_own_node_where_it_can(parts: Parts) -> None:
    """Before Kubernetes 1.30 a webhook of the tainter does, which does not run here (test_own_node_webhook.py)."""
    webhook = f"{WEBHOOKS}/validatingwebhookconfigurations/muster-own-node"
    assert parts.admin.exists(webhook) is not parts.has_policy
    own: Call = ("patch", f"{HEALTHS}/n/status{DRY}", {"status": {"verdict": "PASS"}})
    others: Call = ("patch", f"{HEALTHS}/other/status{DRY}", {"status": {"verdict": "PASS"}})
    with parts.connect(AGENT) as agent, parts.cluster.as_account(*AGENT) as unbound, parts.connect(TAINTER) as tainter:
        until(lambda: allowed(agent, others) is not parts.has_policy, "the policy is in force")
        assert allowed(agent, own)
        assert allowed(unbound, own) is not parts.has_policy
        assert not allowed(tainter, own), "by its role"


def test_the_tracker_is_the_proxys(parts: Parts) -> None:
    with parts.connect(PROXY) as client:
        client.create(f"{MINE}/configmaps", {"metadata": {"name": "ipu-partitions-tracker"}})
        try:
            client.patch(TRACKER, {"data": {"p": "{}"}})
            assert client.get(TRACKER)["data"] == {"p": "{}"}
            assert not allowed(client, ("delete", TRACKER, None))
        finally:
            parts.admin.delete(TRACKER)


def test_metrics_may_be_read_once_the_guides_line_is_typed(parts: Parts) -> None:
    parts.admin.create(f"{MINE}/serviceaccounts", {"metadata": {"name": "prometheus"}})

    def may_read() -> bool:
        attributes = {"path": "/metrics", "verb": "get"}
        spec = {"user": "system:serviceaccount:default:prometheus", "nonResourceAttributes": attributes}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        answer = parts.admin.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
        return bool(answer["status"]["allowed"])

    assert not may_read()
    require("kubectl")
    kubectl = ["kubectl", "--kubeconfig", str(parts.cluster.plane.kubeconfig)]
    found = subprocess.run(
        [*kubectl, "get", "clusterrole", "-l", "component=metrics-reader"], capture_output=True, text=True, check=True
    )
    assert "gc-metrics-reader" in found.stdout
    line = [
        "create",
        "clusterrolebinding",
        "metrics",
        "--clusterrole=gc-metrics-reader",
        "--serviceaccount=default:prometheus",
    ]
    subprocess.run([*kubectl, *line], capture_output=True, check=True)
    until(may_read, "the right to read metrics")
    parts.admin.delete(f"{RBAC}/clusterrolebindings/metrics")
    parts.admin.delete(f"{MINE}/serviceaccounts/prometheus")


def test_with_a_policy_that_drains_and_repairs_it_may_evict_and_make_jobs_in_their_own_namespace(parts: Parts) -> None:
    """The example for people on call, in the chart's default namespaces."""
    example = CHART.parents[1] / "examples/repair-job.yaml"
    parts.cluster.upgrade("gc", *VALUES, "--set-file", f"tainter.policy={example}")
    repairs: Call = ("create", JOBS.format("muster-repairs") + DRY, JOB)
    evictions: Call = ("create", f"{AUTO}/pods/agent-of-n/eviction{DRY}", EVICTION)
    try:
        with parts.connect(TAINTER) as tainter:
            until(lambda: allowed(tainter, repairs) and allowed(tainter, evictions), "the roles are in force")
            for call in (
                ("create", JOBS.format("autopilot") + DRY, JOB),
                ("create", f"{AUTO}/pods{DRY}", PRIVILEGED),
                ("create", f"{CORE}/namespaces/muster-repairs/pods{DRY}", POD),
                ("get", f"{CORE}/namespaces/muster-repairs/secrets", None),
            ):
                assert not allowed(tainter, call), call
    finally:
        parts.cluster.upgrade("gc", *VALUES)
    parts.cluster.wait_until_gone(f"{CORE}/namespaces/muster-repairs")
