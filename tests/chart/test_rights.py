"""Each part's account has exactly the rights with which the tests of the cluster try it, and no other."""

from importlib import resources
from typing import Any

import pytest
import yaml
from tests.chart.helm_render import Helm, Object

Right = tuple[str, ...]
# names of the test bed and of the chart, which has the IPU parts carry their release's
BED = {"muster-operator": "operator", "muster-vipu-proxy": "vipu-proxy", "muster-ipujob": "webhook"}
ELSEWHERE = {  # roles in another namespace than the account's
    # the tainter's word, in its namespace
    *(("autopilot", f"gc-ipu-operator-{part}-quarantine") for part in ("vipu-proxy", "controller-manager")),
    ("muster-repairs", "muster-repairs"),
    ("muster-trials", "muster-trials"),
}
EVERYTHING = {
    "tainter": {
        "allow": {"drain": True, "repairJobs": True, "suspendJobs": True, "trials": True, "devices": True},
    },
    "ipuPods": {"enabled": True},
}
JOBS = "gc-ipu-operator-controller-manager-jobs"
CHART = {
    "gc-ipu-operator-controller-manager": "operator",
    "gc-ipu-operator-vipu-proxy": "vipu-proxy",
    "gc-ipu-operator-webhook": "webhook",
    "muster-operator": "operator",  # the Lease
    "gc-ipu-operator-vipu-controllers": "vipu-controllers",
}


def rights(objects: tuple[Object, ...], renamed: dict[str, str]) -> set[Right]:
    """(account, cluster or its own namespace, group, resource or path, name, verb)"""
    roles = {
        (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]): each.get("rules", [])
        for each in objects
        if each["kind"] in ("Role", "ClusterRole")
    }
    found: set[Right] = set()
    for binding in (each for each in objects if each["kind"] in ("RoleBinding", "ClusterRoleBinding")):
        namespace = binding["metadata"].get("namespace")
        name, kind = binding["roleRef"]["name"], binding["roleRef"]["kind"]
        rules = roles.get((kind, namespace if kind == "Role" else None, name))
        for subject in binding["subjects"]:
            account = renamed.get(subject["name"], subject["name"])
            assert namespace in (None, subject["namespace"]) or (namespace, name) in ELSEWHERE or name == JOBS
            where = "cluster" if namespace is None else "namespace"
            if rules is None:  # one of Kubernetes' own
                found.add((account, where, "ClusterRole", name))
                continue
            for rule in rules:
                found |= {
                    (account, where, group, resource, renamed.get(named, named), verb)
                    for group in rule["apiGroups"]
                    for resource in rule["resources"]
                    for named in rule.get("resourceNames", [""])
                    for verb in rule["verbs"]
                }
    return found


@pytest.fixture(scope="session")
def bed() -> tuple[Object, ...]:
    text = resources.files("muster_sandbox").joinpath("rbac.yaml").read_text()
    return tuple(yaml.safe_load_all(text))


def test_they_are_those_of_the_test_bed(helm: Helm, bed: tuple[Object, ...]) -> None:
    rendered = rights(helm.template(values=EVERYTHING, version="1.20.0").objects, CHART)
    of_jobs = {right for right in rendered if right[0] == "muster-release"}

    assert rendered - of_jobs == rights(bed, BED)


@pytest.mark.parametrize(
    ("values", "lacks"),
    [
        ({}, {"pods/eviction", "persistentvolumeclaims", "storageclasses"}),
        (
            {"ownNode": {"mode": "none"}, "nodeKeys": {"mode": "none"}, "controller": {"enabled": False}},
            {"secrets", "validatingwebhookconfigurations"},
        ),
        (
            {
                "admissionWebhooks": {"patch": {"enabled": False}, "certificateSecret": "s"},
                "ownNode": {"mode": "none"},
                "nodeKeys": {"mode": "none"},
            },
            {"secrets", "mutatingwebhookconfigurations", "validatingwebhookconfigurations"},
        ),
        ({"controller": {"rbac": {"create": False}}}, {"ipujobs", "pods/exec", "roles"}),
    ],
)
def test_what_is_turned_off_needs_no_right(helm: Helm, values: dict[str, Any], lacks: set[str]) -> None:
    everything = {right[3] for right in rights(helm.template(values=EVERYTHING, version="1.20.0").objects, CHART)}
    left = {right[3] for right in rights(helm.template(values=values, version="1.20.0").objects, CHART)}

    assert lacks <= everything
    assert not lacks & left


def test_nobody_may_do_anything_at_all(helm: Helm) -> None:
    for right in rights(helm.template(values=EVERYTHING, version="1.20.0").objects, CHART):
        assert "*" not in right
        assert right[-1] not in ("impersonate", "bind", "escalate")


def test_no_token_is_mounted_that_is_not_bound_to_its_pod(helm: Helm) -> None:
    for each in helm.template().objects:
        if each["kind"] in ("Deployment", "DaemonSet", "Job"):
            assert each["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
        if each["kind"] == "ServiceAccount":
            assert each["automountServiceAccountToken"] is False


OPERATOR_OF_ALL = {"muster.dev": {"nodehealths"}, "": {"nodes"}}


def test_with_a_scope_the_operator_touches_no_other_namespace(helm: Helm) -> None:
    """Its roles, service accounts and pods/exec, with which it could take over any namespace."""
    rendered = helm.template(values={"admissionWebhooks": {"scope": "team-a, team-b"}}, version="1.20.0")
    operator = [right for right in rights(rendered.objects, CHART) if right[0] == "operator"]
    everywhere: dict[str, set[str]] = {}
    for _, _, group, resource, name, _ in (right for right in operator if right[1] == "cluster" and len(right) == 6):
        if not name:
            everywhere.setdefault(group, set()).add(resource)
    assert everywhere == OPERATOR_OF_ALL
    bound = [
        each["metadata"]["namespace"]
        for each in rendered.objects
        if each["kind"] in ("RoleBinding", "ClusterRoleBinding") and each["roleRef"]["name"] == JOBS
    ]
    assert sorted(bound) == ["team-a", "team-b"]


def test_the_operator_reads_and_changes_its_own_lease_secrets_and_config_maps_only(helm: Helm) -> None:
    """Beside the ConfigMaps of jobs, whose names nobody knows before."""
    for right in rights(helm.template(version="1.20.0").objects, CHART):
        account, where, _, resource, name, verb = (*right, "", "")[:6]
        if account == "operator" and where == "namespace" and resource in ("leases", "secrets", "configmaps"):
            assert name or verb == "create", right
