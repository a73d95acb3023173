"""`muster run` in a pod: the hook of `helm test`, and the ConfigMap that Jobs are made from."""

from typing import Any

import pytest
import yaml
from tests.chart import kubernetes_schemas
from tests.chart.helm_render import Helm, Object, Refused, Rendered
from tests.chart.test_rights import rights

from muster_cli.command_table import whole_parser
from muster_cli.commands.run import query_of

HEAVY = {"heavyChecks": True}
ACCOUNTS = ["muster-test", "muster-run"]
MAY = {("muster-run", "cluster", "muster.dev", "nodehealths", "", verb) for verb in ("list", "patch")}


def job(rendered: Rendered) -> Object:
    """The spec of the Jobs."""
    found: Object = made_from(rendered)["spec"]
    return found


def made_from(rendered: Rendered) -> Object:
    """The Job in the ConfigMap."""
    found: Object = yaml.safe_load(rendered.one("ConfigMap", "muster-run")["data"]["job"])
    return found


def pods(rendered: Rendered) -> list[Object]:
    return [rendered.one("Pod", "muster-test")["spec"], job(rendered)["template"]["spec"]]


def query(pod: Object) -> dict[str, str]:
    """What the pod's command asks the agents. Fails on arguments that the command does not take."""
    (container,) = pod["containers"]
    assert container["command"] == ["muster"]
    parser, _ = whole_parser()
    return query_of(parser.parse_args(container["args"]))


def test_by_default_they_have_no_token_and_no_right(helm: Helm) -> None:
    rendered = helm.template()
    assert [pod["serviceAccountName"] for pod in pods(rendered)] == ACCOUNTS
    for pod in pods(rendered):
        assert pod["automountServiceAccountToken"] is False
        assert not pod.get("volumes")
        assert query(pod) == {}
    assert not {right[0] for right in rights(rendered.objects, {})} & set(ACCOUNTS)


def test_heavy_checks_bring_an_account_that_may_prove_its_right_and_no_other(helm: Helm) -> None:
    rendered = helm.template(values={"run": HEAVY})
    assert {right for right in rights(rendered.objects, {}) if right[0] in ACCOUNTS} == MAY
    test, run = pods(rendered)
    assert not test.get("volumes")
    assert rendered.one("ServiceAccount", "muster-run")["metadata"]["namespace"] == "autopilot"
    (source, *_) = run["volumes"][0]["projected"]["sources"]
    assert source["serviceAccountToken"]["expirationSeconds"] <= 3607


@pytest.mark.parametrize("run", [{}, HEAVY])
def test_checks_nodes_and_arguments_reach_the_command(helm: Helm, run: dict[str, Any]) -> None:
    nodes, args = ["node-1", "node-2.example"], ["--nodelabel", "a=b", "--r=2"]
    chosen = {"checks": ["pciebw", "dcgm"], "nodes": nodes, "args": args}
    rendered = helm.template(values={"run": chosen | run, "helmTest": {"args": ["--check=ping", "node-3"]}})
    test, job_pod = pods(rendered)
    assert query(job_pod) == {"check": "pciebw,dcgm", "host": ",".join(nodes), "nodelabel": "a=b", "r": "2"}
    assert query(test) == {"check": "ping", "host": "node-3"}


def test_a_run_is_not_repeated_and_the_end_of_its_log_is_in_the_pods_status(helm: Helm) -> None:
    rendered = helm.template()
    assert job(rendered)["backoffLimit"] == 0
    for pod in pods(rendered):
        assert pod["restartPolicy"] == "Never"
        assert pod["containers"][0]["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_the_hook_is_where_helm_reads_logs_and_ends_before_helm_stops_waiting(helm: Helm) -> None:
    pod = helm.template(namespace="ops").one("Pod", "muster-test")
    assert pod["metadata"]["namespace"] == "ops"
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    # helm 3.17 deletes a pod with hook-succeeded before it reads the log
    assert pod["metadata"]["annotations"]["helm.sh/hook-delete-policy"] == "before-hook-creation"
    assert "--timeout=240" in pod["spec"]["containers"][0]["args"]


def test_the_pods_reach_the_agents_whatever_the_network_policies(helm: Helm) -> None:
    rendered = helm.template()
    made = [rendered.one("Pod", "muster-test")["metadata"], job(rendered)["template"]["metadata"]]
    for policy in rendered.kind("NetworkPolicy").values():
        assert policy["spec"]["policyTypes"] == ["Ingress"]
        selected = policy["spec"]["podSelector"]["matchLabels"].items()
        assert not [metadata for metadata in made if selected <= metadata["labels"].items()]
    ingress = rendered.one("NetworkPolicy", "muster-agent")["spec"]["ingress"]
    assert {"ports": [{"port": 3333, "protocol": "TCP"}]} in ingress


@pytest.mark.parametrize(
    ("values", "left"),
    [
        ({"helmTest": {"enabled": False}}, {"muster-run"}),
        ({"run": {"enabled": False, **HEAVY}}, {"muster-test"}),
        ({"agent": {"enabled": False}, "run": HEAVY}, set()),
    ],
)
def test_each_can_be_left_out(helm: Helm, values: dict[str, Any], left: set[str]) -> None:
    rendered = helm.template(values=values)
    assert set(ACCOUNTS) & (rendered.kind("Pod").keys() | rendered.kind("ConfigMap").keys()) == left
    assert set(ACCOUNTS) & rendered.kind("ServiceAccount").keys() == left
    assert "muster-run" not in {right[0] for right in rights(rendered.objects, {})}


@pytest.mark.parametrize("own", [[], [{"key": "gpu", "operator": "Exists"}]])
def test_they_also_run_where_all_nodes_are_tainted_and_rather_elsewhere(helm: Helm, own: list[Object]) -> None:
    rendered = helm.template(values={"admissionWebhooks": {"patch": {"tolerations": own}}})
    ours = [{"key": f"muster.dev/{name}", "operator": "Exists"} for name in ("faulty", "startup")]
    for pod in pods(rendered):
        assert pod["tolerations"] == [*ours, *own]
        (preferred,) = pod["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        assert preferred["preference"]["matchExpressions"] == [{"key": "muster.dev/faulty", "operator": "DoesNotExist"}]
    assert rendered.pod("Job", "muster-release")["tolerations"] == [*ours, *own]


@pytest.mark.parametrize("values", [{}, {"controller": {"enabled": False}, "vipuProxy": {"enabled": False}}])
def test_a_private_image_can_be_pulled_in_both_namespaces(helm: Helm, values: dict[str, Any]) -> None:
    rendered = helm.template(values=values | {"pullSecrets": {"imagePullSecretData": "e30="}}, namespace="ops")
    secrets = [each["metadata"] for each in rendered.objects if each["kind"] == "Secret"]
    there = {each["namespace"] for each in secrets if each["name"] == "autopilot-pull-secret"}
    assert there == {"ops", "autopilot"}
    for pod in pods(rendered):
        assert pod["imagePullSecrets"] == [{"name": "autopilot-pull-secret"}]


@pytest.mark.parametrize("version", ["1.20", "1.36"])
@pytest.mark.parametrize("run", [{}, HEAVY])
def test_the_job_is_one_that_the_version_knows(helm: Helm, run: dict[str, Any], version: str) -> None:
    made = made_from(helm.template(values={"run": run}, version=f"{version}.0"))
    kubernetes_schemas.validate(made, version)
    assert (made["metadata"]["namespace"], "name" in made["metadata"]) == ("autopilot", False), "each has a new name"


@pytest.mark.parametrize(
    ("run", "facts"),
    [
        ({"checks": ["a,b"]}, ["run.checks.0"]),
        ({"checks": "pciebw"}, ["run.checks", "array"]),
        ({"nodes": ["--force"]}, ["run.nodes.0"]),
        ({"heavy": True}, ["run", "heavy"]),
    ],
)
def test_a_wrong_value_is_refused_by_name(helm: Helm, run: dict[str, Any], facts: list[str]) -> None:
    with pytest.raises(Refused) as refused:
        helm.template(values={"run": run})
    assert not [fact for fact in facts if fact not in str(refused.value)]
