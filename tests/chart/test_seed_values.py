"""Every row of the founding charts' tables has its effect, or a warning says what took its place."""

import json
from typing import Any

import pytest
import yaml
from tests.chart.helm_render import CHART, Helm, Refused

RUN = "Deployment"
MANAGER, PROXY = "gc-ipu-operator-controller-manager", "gc-ipu-operator-vipu-proxy"
TOLERATION = [{"key": "k", "operator": "Exists"}]
OURS = [{"key": f"muster.dev/{name}", "operator": "Exists"} for name in ("faulty", "startup")]


def at(found: Any, path: str) -> Any:
    for key in path.split("/"):
        found = found[int(key)] if key.isdigit() else found[key]
    return found


# values, the object's kind and name, the place in it, what stands there
ROWS: list[tuple[dict[str, Any], str, str, str, Any]] = [
    ({"nameOverride": "n"}, RUN, "gc-n-controller-manager", "metadata/name", "gc-n-controller-manager"),
    ({"fullNameOverride": "f"}, RUN, "f-vipu-proxy", "metadata/name", "f-vipu-proxy"),
    *(
        ({"global": {"imagePullSecrets": given}}, RUN, name, "spec/template/spec/imagePullSecrets", [{"name": "s"}])
        for given in (["s"], [{"name": "s"}], {"name": "s"})
        for name in (MANAGER, PROXY, "muster-tainter")
    ),
    *(
        ({part: {key: given}}, RUN, name, f"spec/template/{place}", given)
        for part, name in (("controller", MANAGER), ("vipuProxy", PROXY))
        for key, given, place in (
            ("affinity", {"nodeAffinity": {}}, "spec/affinity"),
            ("nodeSelector", {"a": "b"}, "spec/nodeSelector"),
            ("tolerations", TOLERATION, "spec/tolerations"),
            ("resources", {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}},
             "spec/containers/0/resources"),
            ("podSecurityContext", {"runAsUser": 7}, "spec/securityContext"),
        )
    ),
    *(
        ({part: {"podAnnotations": {"a": "b"}}}, RUN, name, "spec/template/metadata/annotations/a", "b")
        for part, name in (("controller", MANAGER), ("vipuProxy", PROXY))
    ),
    *(
        ({part: {"securityContext": {"runAsGroup": 5}}}, RUN, name,
         "spec/template/spec/containers/0/securityContext/runAsGroup", 5)
        for part, name in (("controller", MANAGER), ("vipuProxy", PROXY))
    ),
    *(
        ({part: {"image": {"repository": "r", "tag": "t", "pullPolicy": "Never"}}}, RUN, name,
         f"spec/template/spec/containers/0/{place}", expected)
        for part, name in (("controller", MANAGER), ("vipuProxy", PROXY))
        for place, expected in (("image", "r:t"), ("imagePullPolicy", "Never"))
    ),
    ({"image": {"tag": "t"}}, RUN, MANAGER, "spec/template/spec/containers/0/image", "localhost:5000/muster:t"),
    ({}, RUN, MANAGER, "spec/template/spec/containers/0/imagePullPolicy", "Always"),
    ({}, RUN, MANAGER, "spec/template/spec/dnsPolicy", "ClusterFirst"),
    *(
        ({"controller": {"hostNetwork": True}}, RUN, MANAGER, f"spec/template/spec/{place}", expected)
        for place, expected in (("hostNetwork", True), ("dnsPolicy", "ClusterFirstWithHostNet"))
    ),
    ({}, RUN, MANAGER, "spec/template/spec/securityContext", {"runAsUser": 65532}),
    ({"controller": {"dnsPolicy": "Default"}}, RUN, MANAGER, "spec/template/spec/dnsPolicy", "Default"),
    ({"controller": {"service": {"port": 9}}}, "Service", f"{MANAGER}-metrics", "spec/ports/0/port", 9),
    # 8443 is the webhooks' port in alpha-5, and the metrics' since
    *(
        ({"admissionWebhooks": {"port": 8443}}, RUN, MANAGER, f"spec/template/spec/containers/0/ports/{place}", port)
        for place, port in (("2/containerPort", 8443), ("1/containerPort", 8444))
    ),
    ({"admissionWebhooks": {"port": 8443}}, "Service", f"{MANAGER}-metrics", "spec/ports/0/port", 8443),
    ({"controller": {"service": {"port": 443}}}, RUN, MANAGER,
     "spec/template/spec/containers/0/ports/1/containerPort", 8443),
    ({"controller": {"service": {"type": "NodePort"}}}, "Service", f"{MANAGER}-metrics", "spec/type", "NodePort"),
    ({"controller": {"serviceAccount": {"name": "a"}}}, RUN, MANAGER, "spec/template/spec/serviceAccountName", "a"),
    ({"controller": {"serviceAccount": {"create": False}}}, RUN, MANAGER,
     "spec/template/spec/serviceAccountName", "default"),
    ({"controllers": {"serviceAccount": {"name": "a"}}}, RUN, MANAGER, "spec/template/spec/serviceAccountName", "a"),
    ({"controller": {"serviceAccount": {"annotations": {"a": "b"}}}}, "ServiceAccount", MANAGER,
     "metadata/annotations", {"a": "b"}),
    ({"vipuProxy": {"serviceAccount": {"name": "a", "annotations": {"a": "b"}}}}, "ServiceAccount", "a",
     "metadata/annotations", {"a": "b"}),
    ({"vipuProxy": {"service": {"port": 81}}}, "Service", PROXY, "spec/ports/0/port", 81),
    ({"vipuProxy": {"service": {"type": "clusterIP"}}}, "Service", PROXY, "spec/type", "ClusterIP"),
    ({"service": {"type": "NodePort", "port": 82}}, "Service", PROXY, "spec/ports/0/port", 82),
    ({"service": {"type": "NodePort"}}, "Service", PROXY, "spec/type", "NodePort"),
    ({"service": {"port": 82}, "vipuProxy": {"service": {"port": 83}}}, "Service", PROXY, "spec/ports/0/port", 83),
    ({"proxyPort": 8099}, RUN, PROXY, "spec/template/spec/containers/0/ports/0/containerPort", 8099),
    ({"podAnnotations": {"a": "b"}}, RUN, PROXY, "spec/template/metadata/annotations/a", "b"),
    ({"podSecurityPolicyContext": {"runAsUser": 7}}, RUN, PROXY,
     "spec/template/spec/securityContext", {"runAsUser": 7}),
    ({"securityContext": {"runAsGroup": 5}}, RUN, PROXY,
     "spec/template/spec/containers/0/securityContext/runAsGroup", 5),
    ({"resources": {"limits": {"cpu": 1}}}, RUN, PROXY,
     "spec/template/spec/containers/0/resources", {"limits": {"cpu": 1}}),
    ({"nodeSelector": {"a": "b"}}, RUN, PROXY, "spec/template/spec/nodeSelector", {"a": "b"}),
    ({"tolerations": TOLERATION}, RUN, PROXY, "spec/template/spec/tolerations", TOLERATION),
    ({"affinity": {"nodeAffinity": {}}}, RUN, PROXY, "spec/template/spec/affinity", {"nodeAffinity": {}}),
    ({"admissionWebhooks": {"service": {"annotations": {"a": "b"}}}}, "Service", "gc-ipu-operator-webhook",
     "metadata/annotations", {"a": "b"}),
    ({"admissionWebhooks": {"service": {"type": "LoadBalancer"}}}, "Service", "gc-ipu-operator-webhook",
     "spec/type", "LoadBalancer"),
    ({"admissionWebhooks": {"patch": {"enabled": False}, "certificateSecret": "s"}}, RUN, MANAGER,
     "spec/template/spec/volumes/4", {"name": "certificate", "secret": {"secretName": "s"}}),
    *(
        ({"extendedScheduler": {"enabled": True, "port": 9555}}, kind, name, place, 9555)
        for kind, name, place in (
            (RUN, MANAGER, "spec/template/spec/containers/0/ports/3/containerPort"),
            ("Service", "gc-ipu-operator-extender", "spec/ports/0/port"),
            ("NetworkPolicy", MANAGER, "spec/ingress/1/ports/1/port"),
        )
    ),
    *(
        ({"admissionWebhooks": {"patch": {key: given}}}, "Job", "muster-release", f"spec/template/{place}", expected)
        for key, given, place, expected in (
            ("priorityClassName", "p", "spec/priorityClassName", "p"),
            ("podAnnotations", {"a": "b"}, "metadata/annotations", {"a": "b"}),
            ("nodeSelector", {"a": "b"}, "spec/nodeSelector", {"a": "b"}),
            ("tolerations", TOLERATION, "spec/tolerations", [*OURS, *TOLERATION]),
            ("runAsUser", 2001, "spec/securityContext/runAsUser", 2001),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("values", "kind", "name", "place", "expected"), ROWS, ids=lambda each: json.dumps(each)[:40])
def test_a_value_has_the_effect_of_its_row(
    helm: Helm, values: dict[str, Any], kind: str, name: str, place: str, expected: Any
) -> None:
    assert at(helm.template(values=values).one(kind, name), place) == expected


# of table 6.1 of 1.0.3, but for those that docs/promises.md lists as changed
DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("nameOverride", "fullNameOverride"), ""),
    **{f"global.{key}": list[str]() for key in ("imagePullSecrets", "kubectlVersion", "vipuControllers")},
    "admissionWebhooks.failurePolicy": "Fail",
    "admissionWebhooks.patch.nodeSelector": {},
    "admissionWebhooks.patch.podAnnotations": {},
    "admissionWebhooks.patch.priorityClassName": "",
    "admissionWebhooks.patch.runAsUser": 2000,
    "admissionWebhooks.patch.tolerations": [],
    "admissionWebhooks.port": 9443,
    "admissionWebhooks.service": {"annotations": {}, "servicePort": 443, "type": "ClusterIP"},
    "admissionWebhooks.timeoutSeconds": 30,
    "controller.develLogs": True,
    "controller.podSecurityContext": {"runAsUser": 65532},
    "controller.resources": {
        "limits": {"cpu": "500m", "memory": "512Mi"},
        "requests": {"cpu": "100m", "memory": "200Mi"},
    },
    "controller.service": {"port": 8443, "type": "ClusterIP"},
    **{
        f"{part}.{key}": default
        for part in ("controller", "vipuProxy")
        for key, default in (
            ("affinity", {}),
            ("image.pullPolicy", "Always"),
            ("image.tag", ""),
            ("nodeSelector", {}),
            ("podAnnotations", {}),
            ("rbac.create", True),
            ("securityContext", {}),
            ("serviceAccount", {"annotations": {}, "create": True, "name": ""}),
            ("tolerations", []),
        )
    },
    "vipuProxy.logLevel": 2,
    "vipuProxy.podSecurityContext": {},
    "vipuProxy.proxyIdleTimeoutSeconds": 60,
    "vipuProxy.proxyPartitionTrackerConfigMap": "ipu-partitions-tracker",
    "vipuProxy.proxyPort": 8080,
    "vipuProxy.proxyReadTimeoutSeconds": 30,
    "vipuProxy.proxyWriteTimeoutSeconds": 300,
    "vipuProxy.resources": {},
    "vipuProxy.service": {"port": 80, "type": "ClusterIP"},
}


def test_the_defaults_are_the_tables() -> None:
    values = yaml.load((CHART / "values.yaml").read_text(), Loader=yaml.CSafeLoader)
    assert {value: at(values, value.replace(".", "/")) for value in DEFAULTS} == DEFAULTS


@pytest.mark.parametrize(
    ("values", "fact"),
    [
        ({"extendedScheduler": {"enabled": True}, "controller": {"enabled": False}}, "- extendedScheduler and "),
        ({"global": {"kubectlVersion": "1.32.0"}}, "global.launcherImage"),
        ({"ipuVisibility": {"advertise": "none", "advertiseOnMaster": True}}, "- ipuVisibility.advertiseOnMaster "),
        ({"admissionWebhooks": {"image": {"tag": "v0.2.0"}}}, "controller.image"),
        ({"admissionWebhooks": {"patch": {"image": {"tag": "v1.1.1"}}}}, "- admissionWebhooks.patch.image "),
        ({"vipuServerAddr": "a"}, "kubectl label nodes NODE muster.dev/vipu-cluster=test"),
        ({"proxyPort": 1, "vipuProxy": {"proxyPort": 2}}, "vipuProxy.proxyPort"),
        ({"nodeSelector": {"a": "b"}, "vipuProxy": {"nodeSelector": {"c": "d"}}}, "vipuProxy.nodeSelector"),
        ({"pullSecrets": {"imagePullSecretData": "<encoded-key>"}}, "- pullSecrets.imagePullSecretData "),
        ({}, "set vipuControllers"),
        ({"ownNode": {"mode": "none"}}, "- ownNode: "),
        ({"nodeKeys": {"mode": "none"}}, "- nodeKeys: "),
        ({"namespace": {"create": False, "name": "ours"}}, "kubectl label --overwrite namespace ours pod-security"),
        ({"namespace": {"name": "default"}}, "kubectl label --overwrite namespace default"),
        ({"ownNode": {"mode": "webhook"}, "tainter": {"enabled": False}}, "- ownNode: "),
        ({"tainter": {"enabled": False}}, "- tainter.enabled is false: "),
        ({"agent": {"enabled": False}}, "- agent.enabled is false: "),
        ({"agent": {"hostNetwork": True}}, "- agent.hostNetwork is true: "),
        ({"controller": {"hostNetwork": True}}, "- controller.hostNetwork is true: "),
    ],
)
def test_the_notes_warn_of_a_value(helm: Helm, values: dict[str, Any], fact: str) -> None:
    assert fact in " ".join(helm.notes(values=values).split())


def test_the_notes_warn_of_nothing_else(helm: Helm) -> None:
    assert "WARNINGS" not in helm.notes(values={"vipuControllers": "a:1:k=v"})
    asks = {"agent": {"hostNetwork": True, "config": {"require_token": True}}}
    assert "- agent.hostNetwork " not in helm.notes(values=asks)
    neither = {"agent": {"enabled": False}, "tainter": {"enabled": False}}
    assert ".enabled is false: " not in helm.notes(values=neither)


@pytest.mark.parametrize("create", [True, False])
def test_the_notes_name_the_role_for_metrics_only_where_it_is(helm: Helm, create: bool) -> None:
    values = {"controller": {"rbac": {"create": create}}}
    role = "gc-metrics-reader"
    assert helm.template(values=values).has("ClusterRole", role) is create
    assert (f"--clusterrole={role} " in helm.notes(values=values)) is create


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("imgae.tag=x", "imgae"),
        ("imgae=x", "helm show values"),
        ("image.tga=x", "Additional property tga is not allowed"),
        ("vipuProxy.logLevel=7", "vipuProxy.logLevel: Must be less than or equal to 6"),
        ("vipuProxy.logLevel=high", "vipuProxy.logLevel: Invalid type. Expected: integer, given: string"),
        ("admissionWebhooks.failurePolicy=Maybe", 'must be one of the following: "Fail", "Ignore"'),
        ("controller.hostNetwork=perhaps", "controller.hostNetwork: Invalid type. Expected: boolean"),
        ("namespace.name=No_Name", "namespace.name: Does not match pattern"),
        ("repeat=soon", "repeat: Does not match pattern"),
        ("checks.pcibw.enabled=false", "Additional property pcibw is not allowed"),
        ("checks.ping.parameters.sampel=3", "Additional property sampel is not allowed"),
        ("agent.config.port=3", "Additional property port is not allowed"),
        # settings that the chart's roles and webhooks follow
        ("controller.config.quarantine=q", "Additional property quarantine is not allowed"),
        ("controller.config.quarantine_namespace=n", "Additional property quarantine_namespace is not allowed"),
        ("controller.config.ipu_pods=true", "Additional property ipu_pods is not allowed"),
        ("vipuProxy.config.quarantine=q", "Additional property quarantine is not allowed"),
        ("vipuProxy.config.quarantine_namespace=n", "Additional property quarantine_namespace is not allowed"),
        ("admissionWebhooks.patch.enabled=false", "set admissionWebhooks.certificateSecret"),
        ("vipuProxy.enabled=false", "the operator needs the V-IPU proxy"),
        ("admissionWebhooks.scope=A!", "expected namespace names"),
        ("admissionWebhooks.port=8081", "choose another port"),
        ("extendedScheduler.enabled=true,extendedScheduler.port=9443", "choose another port"),
        ("ipuVisibility.advertise=annotations", 'must be one of the following: "", "none", "labels", "resources"'),
        ("nameOverride=My_IPUs", "nameOverride: Does not match pattern"),
        ("image.repository=one two", "image.repository: Does not match pattern"),
        ("global.launcherImage=one two", "global.launcherImage: Does not match pattern"),
        ("repeat=9999", "repeat: Must be less than or equal to 8784"),
        ("agent.maxUnavailable=0", "agent.maxUnavailable: Must be greater than or equal to 1"),
        ("agent.maxUnavailable=some", "agent.maxUnavailable: Does not match pattern"),
        ("agent.podLabels.app=mine", 'Property name of "app" does not match'),
        ("ipuJobs.maxIPUs=48", "ipuJobs.maxIPUs must be one of the following: 1, 2, 4"),
        ("networkPolicy.apiServer={10.0.0.1}", "networkPolicy.apiServer.0: Does not match pattern"),
        ("vipuControllers=a:99999:k=v", "expected a port from 1 to 65535"),
        ("tainter.policy=rules: [", "tainter.policy is not valid YAML"),
    ],
)
def test_a_value_that_cannot_be_is_refused_and_named(helm: Helm, typed: str, said: str) -> None:
    with pytest.raises(Refused) as error:
        helm.template("--set", typed)

    assert said in str(error.value)


def test_a_release_whose_name_cannot_begin_a_services_is_told_what_to_add(helm: Helm) -> None:
    with pytest.raises(Refused, match=r"--set fullNameOverride=ipu-operator"):
        helm.template(release="1gc")

    assert helm.template("--set", "fullNameOverride=ipu-operator", release="1gc").has("Service", "ipu-operator-webhook")


@pytest.mark.parametrize("rule", ["ownNode", "nodeKeys"])
def test_a_rule_that_the_cluster_does_not_know_is_refused_with_what_does_the_same(helm: Helm, rule: str) -> None:
    with pytest.raises(Refused, match=rf"{rule}\.mode.*1\.30.*v1\.24\.0"):
        helm.template("--set", f"{rule}.mode=policy", version="1.24.0")


def test_one_account_for_both_ipu_parts_is_made_once(helm: Helm) -> None:
    both = {part: {"serviceAccount": {"name": "ours"}} for part in ("controller", "vipuProxy")}

    rendered = helm.template(values=both)

    made = [
        each for each in rendered.objects if each["kind"] == "ServiceAccount" and each["metadata"]["name"] == "ours"
    ]
    assert len(made) == 1
    assert rendered.pod("Deployment", MANAGER)["serviceAccountName"] == "ours"
    assert rendered.pod("Deployment", PROXY)["serviceAccountName"] == "ours"
