"""On OpenShift, the constraints of each service account allow the pods of the chart, and no more is granted.

How OpenShift decides is described at
https://docs.openshift.com/container-platform/latest/authentication/managing-security-context-constraints.html: of the
constraints that the pod's account may use, one must allow all of it.
"""

from typing import Any

import pytest
from tests.chart.helm_render import Helm, Object, Rendered
from tests.chart.openshift_api import API, NONROOT, OPTIONAL, REQUIRED, STRATEGIES, VOLUMES
from tests.chart.test_rendering import CASES


def rendered_on_openshift(helm: Helm, values: dict[str, Any]) -> Rendered:
    """As an upgrade, which also runs the Job that applies CRDs."""
    return helm.template("--is-upgrade", values=values, apis=(API,))


@pytest.fixture(scope="module", params=CASES)
def on_openshift(helm: Helm, request: pytest.FixtureRequest) -> Rendered:
    return rendered_on_openshift(helm, CASES[request.param])


def usable(rendered: Rendered, namespace: str, account: str) -> list[Object]:
    """The constraints that an account may use."""
    user = f"system:serviceaccount:{namespace}:{account}"
    found = [each for each in rendered.kind("SecurityContextConstraints").values() if user in each["users"]]
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    for each in rendered.kind("RoleBinding").values():
        if each["roleRef"]["name"] == "system:openshift:scc:nonroot-v2" and subject in each["subjects"]:
            assert each["metadata"]["namespace"] == namespace
            found.append(NONROOT)
    return found


def excess(constraints: Object, pod: Object) -> set[str]:
    """What the pod asks for and the constraints do not allow."""
    asked = {"hostNetwork": "allowHostNetwork", "hostPID": "allowHostPID"}
    found = {field for field, allowed in asked.items() if pod.get(field) and not constraints[allowed]}
    if pod.get("hostNetwork") and not constraints["allowHostPorts"]:
        found.add("hostPorts")  # the API server gives every port of a container on the host network a host port
    for volume in pod.get("volumes", ()):
        (kind,) = volume.keys() - {"name"}
        if kind not in constraints["volumes"] or (kind == "hostPath" and not constraints["allowHostDirVolumePlugin"]):
            found.add(kind)
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        context = {**pod.get("securityContext", {}), **container.get("securityContext", {})}
        if context.get("privileged") and not constraints["allowPrivilegedContainer"]:
            found.add("privileged")
        if context.get("allowPrivilegeEscalation") is not False and not constraints["allowPrivilegeEscalation"]:
            found.add("allowPrivilegeEscalation")
        more = set(context.get("capabilities", {}).get("add", ())) - set(constraints["allowedCapabilities"])
        found |= more if "*" not in constraints["allowedCapabilities"] else set()
        if constraints["runAsUser"]["type"] == "MustRunAsNonRoot" and not context.get("runAsUser"):
            found.add("root")
        if constraints.get("readOnlyRootFilesystem") and not context.get("readOnlyRootFilesystem"):
            found.add("writable root")
    return found


def test_every_pod_is_allowed(on_openshift: Rendered) -> None:
    for each in on_openshift.objects:
        if each["kind"] in ("DaemonSet", "Deployment", "Job", "Pod"):
            pod = each["spec"] if each["kind"] == "Pod" else each["spec"]["template"]["spec"]
            may_use = usable(on_openshift, each["metadata"]["namespace"], pod["serviceAccountName"])
            found = [excess(constraints, pod) for constraints in may_use]
            assert set() in found, (each["metadata"]["name"], found)


def test_the_fields_are_those_of_the_api(on_openshift: Rendered) -> None:
    for made in on_openshift.kind("SecurityContextConstraints").values():
        fields = made.keys() - {"apiVersion", "kind", "metadata"}
        assert REQUIRED.keys() <= fields <= REQUIRED.keys() | OPTIONAL.keys()
        for field in fields:
            assert isinstance(made[field], (REQUIRED | OPTIONAL)[field]), field
        for field, types in STRATEGIES.items():
            assert made[field].keys() == {"type"}
            assert made[field]["type"] in types
        assert set(made["volumes"]) <= VOLUMES
        assert not made["groups"], "no account but the component's own"
        assert len(made["users"]) == 1


def test_a_privileged_pod_is_allowed_to_the_agent_alone(helm: Helm) -> None:
    made = rendered_on_openshift(helm, CASES["everything set"]).kind("SecurityContextConstraints")

    assert {name for name, each in made.items() if each["allowPrivilegedContainer"]} == {"muster-agent"}
    assert made["muster-agent"]["users"] == ["system:serviceaccount:autopilot:muster-agent"]
    assert {name for name, each in made.items() if each["allowHostNetwork"]} == {
        "muster-agent",
        "gc-n-controller-manager",
    }


def test_with_defaults_only_the_agent_needs_constraints_of_its_own(helm: Helm) -> None:
    made = rendered_on_openshift(helm, {}).kind("SecurityContextConstraints")

    assert set(made) == {"muster-agent"}
    assert not any(made["muster-agent"][field] for field in ("allowHostNetwork", "allowHostPID", "allowHostPorts"))


def test_elsewhere_there_is_nothing_of_it(helm: Helm) -> None:
    rendered = helm.template()

    assert not rendered.kind("SecurityContextConstraints")
    assert not [each for each in rendered.kind("RoleBinding").values() if "openshift" in each["roleRef"]["name"]]
