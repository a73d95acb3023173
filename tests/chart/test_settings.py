"""What the chart writes for a part is what that part takes, and each value arrives where it acts."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.chart.helm_render import Helm, Rendered
from tests.docs.document_commands import ROOT

from muster_agent import settings as agent
from muster_checks.containerlog import ContainerlogParameters
from muster_checks.registry import load_registry
from muster_operator import settings as operator
from muster_operator.admission.configurations import WebhookAddress, webhook_configurations
from muster_operator.job.partition_api import PROXY_AUDIENCE
from muster_operator.proxy import settings as proxy
from muster_tainter import settings as tainter
from muster_tainter.policy.file import load_policy


@pytest.fixture(scope="session")
def defaults(helm: Helm) -> Rendered:
    return helm.template()


def stored(rendered: Rendered, name: str, key: str, folder: Path) -> Path:
    file = folder / key
    file.write_text(rendered.one("ConfigMap", name)["data"][key])
    return file


def test_the_agent_takes_its_settings(helm: Helm, tmp_path: Path) -> None:
    rendered = helm.template(values={"repeat": "30m", "PCIeBW": 8, "checks": {"ping": {"period": "2m"}}})
    found = agent.load_agent_settings(stored(rendered, "muster-agent", "agent.yaml", tmp_path), {}, {})

    assert (found.repeat, found.root, found.run_as) == (1800, Path("/host"), "65534")
    assert (found.namespace, found.service) == ("autopilot", "autopilot-healthchecks")
    assert found.tainter_url == "http://muster-tainter.autopilot.svc:3334"
    assert found.checks["ping"].period == 120
    checks = load_registry(plug_ins=[])
    assert agent.check_parameters(found, checks)["pciebw"].model_dump()["min_bandwidth_gb_per_s"] == 8
    assert agent.check_periods(found, checks)["pciebw"] == 1800


def test_the_logs_of_pods_are_mounted_only_where_they_are_read(helm: Helm, defaults: Rendered, tmp_path: Path) -> None:
    check = {"enabled": True, "parameters": {"patterns": [{"name": "A", "pattern": "x", "class": "reset"}]}}
    only = {name: {"enabled": False} for name in load_registry(())} | {"containerlog": check}
    rendered = helm.template(values={"checks": only})
    pod, default = rendered.agent["spec"]["template"]["spec"], defaults.agent["spec"]["template"]["spec"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "pod-logs"]
    (mount,) = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "pod-logs"]
    assert volume["hostPath"]["path"] == mount["mountPath"] == "/var/log/pods"
    assert mount["readOnly"] is True
    assert "pod-resources" in {each["name"] for each in pod["volumes"]}
    # it needs neither a privileged container nor a further capability
    assert pod["containers"][0]["securityContext"]["capabilities"] == {
        "drop": ["ALL"],
        "add": ["CHOWN", "SETGID", "SETPCAP", "SETUID"],
    }
    assert "pod-logs" not in {each["name"] for each in default["volumes"]}
    assert [each for each in rendered.objects if each["kind"] == "ClusterRole"] == [
        each for each in defaults.objects if each["kind"] == "ClusterRole"
    ]
    found = agent.load_agent_settings(stored(rendered, "muster-agent", "agent.yaml", tmp_path), {}, {})
    parameters = agent.check_parameters(found, load_registry(()))["containerlog"]
    assert parameters == ContainerlogParameters.model_validate(check["parameters"])
    assert "containerlog" not in agent.check_parameters(agent.AgentSettings(), load_registry(()))


def test_without_a_tainter_agents_plan_by_themselves(helm: Helm) -> None:
    settings = helm.template(values={"tainter": {"enabled": False}}).settings("muster-agent", "agent.yaml")

    assert settings["plan"] == "local"
    assert "tainter_url" not in settings


def test_the_tainter_takes_its_settings_and_the_built_in_policy(defaults: Rendered, tmp_path: Path) -> None:
    found = tainter.load(stored(defaults, "muster-tainter", "tainter.yaml", tmp_path), {}, {})

    assert (found.namespace, found.agent_selector) == ("autopilot", "app=muster-agent")
    assert load_policy(stored(defaults, "muster-policy", "policy.yaml", tmp_path)).rules


@pytest.mark.parametrize("own", [[], [{"key": "gpu", "operator": "Exists"}]])
def test_the_tainter_starts_on_nodes_that_have_just_registered(helm: Helm, own: list[Any]) -> None:
    """Nobody else removes their taint."""
    pod = helm.template(values={"tainter": {"tolerations": own}}).pod("Deployment", "muster-tainter")
    assert pod["tolerations"] == [{"key": "muster.dev/startup", "operator": "Exists"}, *own]


def test_the_token_of_a_source_can_be_mounted(helm: Helm, defaults: Rendered) -> None:
    volume = {"name": "loki", "secret": {"secretName": "loki"}}
    mount = {"name": "loki", "mountPath": "/etc/muster/loki", "readOnly": True}
    given = {"extraVolumes": [volume], "extraVolumeMounts": [mount]}
    pod = helm.template(values={"tainter": given}).pod("Deployment", "muster-tainter")
    default = defaults.pod("Deployment", "muster-tainter")
    assert pod["volumes"] == [*default["volumes"], volume]
    (container,), (without,) = pod["containers"], default["containers"]
    assert container["volumeMounts"] == [*without["volumeMounts"], mount]


@pytest.mark.parametrize("form", [lambda policy: policy, json.dumps])
def test_a_policy_is_yaml_or_a_string_of_it(helm: Helm, form: Any, tmp_path: Path) -> None:
    policy = {"rules": [{"name": "all", "match": {"check": "*"}, "action": "event"}]}
    rendered = helm.template(values={"tainter": {"policy": form(policy)}})

    assert [rule.name for rule in load_policy(stored(rendered, "muster-policy", "policy.yaml", tmp_path)).rules] == [
        "all"
    ]


def test_the_operator_takes_its_settings(helm: Helm, tmp_path: Path) -> None:
    rendered = helm.template(
        values={
            "global": {"kubectlVersion": ["1.32.0"], "launcherImage": "l:1", "launcherImagePullPolicy": "Always"},
            "admissionWebhooks": {"scope": "b, a", "port": 9999},
            "controller": {"develLogs": False, "service": {"port": 8444}},
            "ipuJobs": {"hostNetwork": False, "maxIPUs": 16},
        }
    )
    found = operator.load(stored(rendered, "gc-ipu-operator-controller-manager", "operator.yaml", tmp_path), {}, {})

    assert (found.kubectl_version, found.launcher_image, found.launcher_image_pull_policy) == (
        "1.32.0",
        "l:1",
        "Always",
    )
    assert (found.scope, found.webhook_port, found.metrics_port) == (("a", "b"), 9999, 8444)
    assert (found.devel_logs, found.host_network, found.max_ipus) == (False, False, 16)
    container = rendered.container("Deployment", "gc-ipu-operator-controller-manager")
    assert {port["name"]: port["containerPort"] for port in container["ports"]}["webhook"] == 9999


def test_the_operator_has_a_token_for_the_proxy_alone(defaults: Rendered, tmp_path: Path) -> None:
    name = "gc-ipu-operator-controller-manager"
    file = operator.load(stored(defaults, name, "operator.yaml", tmp_path), {}, {}).proxy_token
    pod = defaults.pod("Deployment", name)
    [mount] = [each for each in pod["containers"][0]["volumeMounts"] if Path(each["mountPath"]) == file.parent]
    [volume] = [each for each in pod["volumes"] if each["name"] == mount["name"]]
    [source] = volume["projected"]["sources"]
    token = source["serviceAccountToken"]
    assert (token["path"], token["audience"], mount["readOnly"]) == (file.name, PROXY_AUDIENCE, True)
    assert token["expirationSeconds"] <= 3600


def test_the_pods_of_jobs_are_ordinary_pods_by_default(helm: Helm, defaults: Rendered, tmp_path: Path) -> None:
    name = "gc-ipu-operator-controller-manager"
    found = operator.load(stored(defaults, name, "operator.yaml", tmp_path), {}, {})
    assert (found.host_network, found.privileged, found.limits().allow) == (False, False, frozenset())

    line = "--set ipuJobs.hostNetwork=true,ipuJobs.privileged=true"
    assert line in helm.notes()
    for page in ("install.md", "ipujob.md"):
        assert line in (ROOT / "docs" / page).read_text()
    rdma = helm.template(*line.split())
    found = operator.load(stored(rdma, name, "operator.yaml", tmp_path), {}, {})
    assert (found.host_network, found.privileged) == (True, True)
    assert line not in helm.notes(values={"ipuJobs": {"hostNetwork": True, "privileged": True}})


def test_exceptions_for_templates_reach_the_operator(helm: Helm, tmp_path: Path) -> None:
    allow = ["hostIPC", "capability:IPC_LOCK", "serviceAccount:trainer"]
    rendered = helm.template(values={"ipuJobs": {"allow": allow}})
    found = operator.load(stored(rendered, "gc-ipu-operator-controller-manager", "operator.yaml", tmp_path), {}, {})
    assert found.limits().allow == frozenset(allow)


@pytest.mark.parametrize(
    ("given", "image", "policy"),
    [
        ({}, "localhost:5000/muster:0.1.0", "Always"),
        ({"image": {"repository": "r/muster", "tag": "7"}}, "r/muster:7", "Always"),
        ({"controller": {"image": {"repository": "r/op", "pullPolicy": "IfNotPresent"}}}, "r/op:0.1.0", "IfNotPresent"),
        ({"global": {"launcherImage": "launcher:latest"}}, "launcher:latest", "Never"),
        ({"global": {"launcherImagePullPolicy": "Never"}}, "localhost:5000/muster:0.1.0", "Never"),
    ],
)
def test_launchers_run_the_operators_image_unless_another_is_named(
    helm: Helm, tmp_path: Path, given: dict[str, Any], image: str, policy: str
) -> None:
    rendered = helm.template(values=given)
    found = operator.load(stored(rendered, "gc-ipu-operator-controller-manager", "operator.yaml", tmp_path), {}, {})

    assert (found.launcher_image, found.launcher_image_pull_policy) == (image, policy)


def test_the_proxy_takes_its_settings(helm: Helm, tmp_path: Path) -> None:
    given = {
        "backend": "sim",
        "logLevel": 6,
        "proxyPort": 8088,
        "proxyReadTimeoutSeconds": 1,
        "proxyWriteTimeoutSeconds": 2,
        "proxyIdleTimeoutSeconds": 3,
        "proxyPartitionTrackerConfigMap": "ours",
    }
    rendered = helm.template(values={"vipuProxy": given})
    found = proxy.load(stored(rendered, "gc-ipu-operator-vipu-proxy", "proxy.yaml", tmp_path), {}, {})

    assert (found.backend, found.log_level, found.port, found.tracker) == ("sim", 6, 8088, "ours")
    assert (found.read_timeout, found.write_timeout, found.idle_timeout) == (1, 2, 3)
    assert found.allowed == ("default/gc-ipu-operator-controller-manager",)
    container = rendered.container("Deployment", "gc-ipu-operator-vipu-proxy")
    assert container["ports"][0]["containerPort"] == 8088
    manager = operator.load(stored(rendered, "gc-ipu-operator-controller-manager", "operator.yaml", tmp_path), {}, {})
    assert manager.tracker == "ours"


@pytest.mark.parametrize("minor", [20, 24, 30, 36])
@pytest.mark.parametrize(("scope", "ipu_pods"), [("", False), ("b,a", False), ("", True), ("b,a", True)])
def test_the_webhooks_are_those_that_the_operator_tells_of(helm: Helm, minor: int, scope: str, ipu_pods: bool) -> None:
    given = {"scope": scope, "failurePolicy": "Ignore", "timeoutSeconds": 9, "service": {"servicePort": 8443}}
    values = {"admissionWebhooks": given, "ipuPods": {"enabled": ipu_pods}}
    rendered = helm.template(values=values, version=f"1.{minor}.0")
    called = WebhookAddress(namespace="default", service="gc-ipu-operator-webhook", port=8443)
    names = [name for name in scope.split(",") if name]

    told = webhook_configurations(
        "gc-ipu-operator-webhook",
        called,
        minor=minor,
        scope=names,
        failure_policy="Ignore",
        timeout_s=9,
        ipu_pods=ipu_pods,
    )

    for expected in told:
        assert rendered.one(expected["kind"], "gc-ipu-operator-webhook")["webhooks"] == expected["webhooks"]
