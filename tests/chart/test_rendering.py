"""Whatever the values and the version of Kubernetes, what is rendered is what that version takes, field by field."""

import json
import re
from typing import Any

import pytest
from tests.chart import kubernetes_schemas
from tests.chart.helm_render import CHART, Helm, Object, Refused

VERSIONS = ("1.20.0", "1.24.0", "1.30.0", "1.36.0")
MONITORS = ("monitoring.coreos.com/v1/PodMonitor", "monitoring.coreos.com/v1/ServiceMonitor")
CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "nothing": {part: {"enabled": False} for part in ("agent", "tainter", "controller", "vipuProxy")},
    "without IPUs": {"controller": {"enabled": False}, "vipuProxy": {"enabled": False}},
    "without nodes": {"agent": {"enabled": False}, "tainter": {"enabled": False}},
    "everything set": {
        "nameOverride": "n",
        "global": {"imagePullSecrets": [{"name": "a"}], "kubectlVersion": "1.32.0", "vipuControllers": "a:1:k=v"},
        "image": {"repository": "r.example.com/m", "tag": "t", "pullPolicy": "Always"},
        "pullSecrets": {"imagePullSecretData": "e30="},
        "annotations": {"k8s.v1.cni.cncf.io/networks": "multi-nic-config"},
        "agent": {
            "hostNetwork": True,
            "hostPID": True,
            "runtimeClassName": "nvidia",
            "nodeSelector": {"gpu": "yes"},
            "affinity": {"nodeAffinity": {}},
            "podLabels": {"a": "b"},
            "extraVolumes": [{"name": "sdk", "hostPath": {"path": "/opt/poplar"}}],
            "extraVolumeMounts": [{"name": "sdk", "mountPath": "/opt/poplar"}],
            "config": {"light_at_once": 2},
        },
        "tainter": {
            "replicas": 3,
            "policy": {"rules": []},
            "affinity": {"nodeAffinity": {}},
            "nodeSelector": {"control": "yes"},
            "tolerations": [{"key": "k", "operator": "Exists"}],
            "podAnnotations": {"a": "b"},
            "extraVolumes": [{"name": "loki", "secret": {"secretName": "loki"}}],
            "extraVolumeMounts": [{"name": "loki", "mountPath": "/etc/muster/loki"}],
        },
        "controller": {
            "replicas": 2,
            "hostNetwork": True,
            "affinity": {"nodeAffinity": {}},
            "nodeSelector": {"a": "b"},
            "podAnnotations": {"a": "b"},
            "securityContext": {"runAsGroup": 5},
            "tolerations": [{"operator": "Exists"}],
            "serviceAccount": {"annotations": {"a": "b"}},
        },
        "ipuVisibility": {"advertise": "resources", "advertiseOnMaster": True},
        "extendedScheduler": {"enabled": True},
        "admissionWebhooks": {
            "scope": "one,two",
            "annotations": {"a": "b"},
            "service": {"annotations": {"a": "b"}, "type": "clusterIP"},
            "certificateSecret": "made-elsewhere",
            "caBundle": "PEM",
            "patch": {
                "enabled": False,
                "priorityClassName": "high",
                "podAnnotations": {"a": "b"},
                "nodeSelector": {"a": "b"},
                "tolerations": [{"operator": "Exists"}],
            },
        },
        "vipuProxy": {
            "affinity": {"nodeAffinity": {}},
            "nodeSelector": {"a": "b"},
            "podAnnotations": {"a": "b"},
            "podSecurityContext": {"runAsUser": 7},
            "securityContext": {"runAsGroup": 5},
            "resources": {"limits": {"cpu": 1}},
            "tolerations": [{"operator": "Exists"}],
            "service": {"type": "NodePort"},
            "serviceAccount": {"annotations": {"a": "b"}},
            "extraVolumes": [{"name": "vipu", "hostPath": {"path": "/opt/vipu"}}],
            "extraVolumeMounts": [{"name": "vipu", "mountPath": "/opt/vipu"}],
        },
        "networkPolicy": {"apiServer": ["10.0.0.1/32"]},
        "monitoring": {"labels": {"release": "prometheus"}},
    },
    "names that YAML takes for something else": {
        "namespace": {"name": "123"},
        "agent": {"priorityClassName": "1", "runtimeClassName": "true"},
        "controller": {"serviceAccount": {"name": "1"}},
        "vipuProxy": {"serviceAccount": {"name": "0x1"}, "proxyPartitionTrackerConfigMap": "123"},
        "admissionWebhooks": {"patch": {"enabled": False}, "certificateSecret": "null"},
        "pullSecrets": {"name": "1", "imagePullSecretData": "e30="},
    },
    "logs of pods": {"checks": {"containerlog": {"enabled": True, "parameters": {"known": ["cuda"]}}}},
    "little access": {"checks": {"dmesg": {"parameters": {"source": "journal"}}}, "agent": {"runAs": ""}},
}


@pytest.mark.parametrize("values", CASES.values(), ids=CASES.keys())
def test_lint_has_no_complaint(helm: Helm, values: dict[str, Any]) -> None:
    printed = helm.run("lint", "--strict", str(CHART), "-f", "-", stdin=json.dumps(values))

    assert "0 chart(s) failed" in printed
    assert "[WARNING]" not in printed


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", CASES.values(), ids=CASES.keys())
def test_every_object_is_one_that_the_version_knows(helm: Helm, values: dict[str, Any], version: str) -> None:
    rendered = helm.template(values=values, version=version, apis=MONITORS)

    monitors = [each for each in rendered.objects if each["apiVersion"].startswith("monitoring.coreos.com/")]
    for each in rendered.objects:
        if each not in monitors:
            validate(each, version.removesuffix(".0"))
    assert len(
        {(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in rendered.objects}
    ) == len(rendered.objects)


_known_good: set[str] = set()


def validate(body: Object, version: str) -> None:
    """Raises SchemaMismatch. What is the same in several cases is looked at once."""
    text = f"{version} {json.dumps(body, sort_keys=True)}"
    if text not in _known_good:
        kubernetes_schemas.validate(body, version)
        _known_good.add(text)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_field_that_does_not_exist_is_found(helm: Helm, version: str) -> None:
    tainter = helm.template(version=version).one("Deployment", "muster-tainter")
    wrong = tainter | {"spec": tainter["spec"] | {"replica": 2}}

    with pytest.raises(kubernetes_schemas.SchemaMismatch, match="replica"):
        validate(wrong, version.removesuffix(".0"))


def test_a_field_of_a_later_kubernetes_is_found(helm: Helm) -> None:
    """From 1.25 on."""
    agent = helm.template(version="1.20.0").agent
    spec = agent["spec"]["template"]["spec"] | {"hostUsers": False}
    later = agent | {"spec": agent["spec"] | {"template": agent["spec"]["template"] | {"spec": spec}}}

    validate(later, "1.30")
    for version in ("1.20", "1.24"):
        with pytest.raises(kubernetes_schemas.SchemaMismatch, match="hostUsers"):
            validate(later, version)


@pytest.mark.parametrize(
    ("version", "api"), [("1.20.0", "policy/v1beta1"), ("1.21.0", "policy/v1"), ("1.36.0", "policy/v1")]
)
def test_disruption_budgets_are_of_the_version_that_the_cluster_has(helm: Helm, version: str, api: str) -> None:
    assert helm.template(version=version).one("PodDisruptionBudget", "muster-tainter")["apiVersion"] == api


@pytest.mark.parametrize(
    ("version", "policy"), [("1.20.0", False), ("1.29.9", False), ("1.30.0", True), ("v1.36.2-eks-1", True)]
)
def test_the_rules_for_nodes_are_the_api_servers_from_1_30(helm: Helm, version: str, policy: bool) -> None:
    rendered = helm.template(version=version)

    assert rendered.has("ValidatingAdmissionPolicy", "muster-own-node") is policy
    assert rendered.has("ValidatingAdmissionPolicyBinding", "muster-own-node") is policy
    assert rendered.has("ValidatingWebhookConfiguration", "muster-own-node") is not policy
    assert rendered.has("Service", "muster-own-node") is not policy
    assert rendered.has("ValidatingAdmissionPolicy", "muster-node-keys") is policy
    assert rendered.has("ValidatingAdmissionPolicyBinding", "muster-node-keys") is policy
    assert ("webhook_port" in rendered.settings("muster-tainter", "tainter.yaml")) is not policy


@pytest.mark.parametrize("own_node", ["webhook", "policy", "none"])
@pytest.mark.parametrize("node_keys", ["webhook", "policy", "none"])
def test_each_rule_for_nodes_is_where_its_value_says(helm: Helm, own_node: str, node_keys: str) -> None:
    values = {"ownNode": {"mode": own_node, "failurePolicy": "Fail"}, "nodeKeys": {"mode": node_keys}}
    rendered = helm.template(values=values, version="1.30.0")
    served = {"own-node.muster.dev": own_node == "webhook", "node-keys.muster.dev": node_keys == "webhook"}

    assert rendered.has("ValidatingAdmissionPolicy", "muster-own-node") is (own_node == "policy")
    assert rendered.has("ValidatingAdmissionPolicy", "muster-node-keys") is (node_keys == "policy")
    assert rendered.has("ValidatingWebhookConfiguration", "muster-own-node") is any(served.values())
    assert ("webhook_port" in rendered.settings("muster-tainter", "tainter.yaml")) is any(served.values())
    if any(served.values()):
        webhooks = rendered.one("ValidatingWebhookConfiguration", "muster-own-node")["webhooks"]
        assert [each["name"] for each in webhooks] == [name for name, wanted in served.items() if wanted]
        # a kubelet that cannot write its Node is worse than one that can write too much
        assert all(each["failurePolicy"] == "Ignore" for each in webhooks if each["name"].startswith("node-keys"))


@pytest.mark.parametrize("version", ["v1.20.2", "1.20.6", "1.29.9"])
def test_only_a_server_that_shows_validating_webhooks_no_former_node_needs_a_mutating_one(
    helm: Helm, version: str
) -> None:
    rendered = helm.template(values={"ownNode": {"mode": "none"}}, version=version)
    kinds = [f"{kind}WebhookConfiguration" for kind in ("Mutating", "Validating")]
    if version != "v1.20.2":  # CVE-2021-25735
        kinds.reverse()
    there, other = kinds

    [rule] = rendered.one(there, "muster-own-node")["webhooks"]
    assert (rule["name"], rule["failurePolicy"]) == ("node-keys.muster.dev", "Ignore")
    assert not rendered.has(other, "muster-own-node")
    may_patch = [
        resource
        for each in rendered.one("ClusterRole", "muster-tainter")["rules"]
        if "patch" in each["verbs"] and "admissionregistration.k8s.io" in each["apiGroups"]
        for resource in each["resources"]
    ]
    assert ("mutatingwebhookconfigurations" in may_patch) is (version == "v1.20.2")


@pytest.mark.parametrize("missing", [0, 1])
def test_monitors_are_rendered_where_their_kinds_are_known(helm: Helm, missing: int) -> None:
    there = [name for number, name in enumerate(MONITORS) if number != missing]
    rendered = helm.template(apis=there)

    kinds = {each["kind"] for each in rendered.objects if each["apiVersion"].startswith("monitoring")}
    assert kinds == {name.rpartition("/")[2] for name in there}


def test_no_monitor_where_the_cluster_has_none(helm: Helm) -> None:
    assert not [each for each in helm.template().objects if "monitoring" in each["apiVersion"]]


def test_a_cluster_that_is_too_old_is_refused(helm: Helm) -> None:
    with pytest.raises(Refused, match=r">=1.20.0"):
        helm.template(version="1.19.0")


@pytest.mark.parametrize("release", ["r" * 53, "my.release", f"r{'.r' * 26}"], ids=["long", "dot", "dots"])
def test_names_are_what_kubernetes_takes(helm: Helm, release: str) -> None:
    """53 characters are the most that helm takes."""
    rendered = helm.template(release=release)

    for each in rendered.objects:
        limit = 63 if each["kind"] in ("Service", "Deployment", "DaemonSet", "Job", "ConfigMap") else 253
        name = each["metadata"]["name"]
        assert len(name) <= limit, name
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", name), name
        assert each["kind"] != "Service" or "." not in name
        for value in each["metadata"].get("labels", {}).values():
            assert len(value) <= 63
