"""The own-node rule of Kubernetes 1.30 and later, as rendered, on requests as the API server describes them."""

from typing import Any

import pytest
from tests.chart.admission_policy import CelError, Policy
from tests.chart.helm_render import Helm, Object
from tests.wording.facts import missing_facts

NAME = "muster-own-node"
NODE = "authentication.kubernetes.io/node-name"
AGENT = "system:serviceaccount:autopilot:muster-agent"
# of a token that the kubelet has made for an agent's pod
OF_POD = {
    "authentication.kubernetes.io/credential-id": ["JTI=7b3c9d6e-0c1f-4a9a-8f0e-d2b9f4c5a111"],
    NODE: ["gpu-1"],
    "authentication.kubernetes.io/node-uid": ["e6f0a4a8-5a0b-4a43-9a52-0f6ce37a2222"],
    "authentication.kubernetes.io/pod-name": ["muster-agent-x7k2p"],
    "authentication.kubernetes.io/pod-uid": ["0a4f7c1e-8f1d-4d6c-9c55-8d4ab8d13333"],
}
OF_NO_POD = {key: value for key, value in OF_POD.items() if key.endswith("credential-id")}
UNBOUND = "serviceAccountToken"
NOT_ITS_OWN = "node gpu-1"


@pytest.fixture(scope="module")
def body(helm: Helm) -> Object:
    return helm.template(version="1.30.0").one("ValidatingAdmissionPolicy", NAME)


def write(health: str, user: str = AGENT, extra: dict[str, list[str]] | None = None) -> dict[str, Any]:
    """A PATCH of the status of NodeHealth ``health``: an UPDATE, to admission. extra: None: the token says nothing."""
    kind = {"group": "muster.dev", "version": "v1alpha1", "kind": "NodeHealth"}
    resource = {"group": "muster.dev", "version": "v1alpha1", "resource": "nodehealths"}
    info = {"username": user, "uid": "5", "groups": ["system:authenticated"]}
    seen = {"apiVersion": "muster.dev/v1alpha1", "kind": "NodeHealth", "metadata": {"name": health}}
    return {
        "object": {**seen, "status": {"verdict": "PASS"}},
        "oldObject": seen,
        "request": {
            "uid": "9", "kind": kind, "resource": resource, "subResource": "status", "requestKind": kind,
            "requestResource": resource, "requestSubResource": "status", "name": health, "operation": "UPDATE",
            "userInfo": info if extra is None else {**info, "extra": extra}, "dryRun": False,
            "options": {"apiVersion": "meta.k8s.io/v1", "kind": "PatchOptions"},
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    "given",
    [
        write("gpu-1", extra=OF_POD),
        write("gpu-2", user="system:serviceaccount:autopilot:muster-tainter", extra=OF_POD),
        write("gpu-2", user="system:serviceaccount:elsewhere:muster-agent", extra=OF_POD),
        write("gpu-2", user="ada"),
    ],
    ids=["an agent on its node", "the tainter", "an account of another namespace", "a person"],
)
def test_it_lets_through(body: Object, given: dict[str, Any]) -> None:
    assert Policy(body).refusals(given) == []


@pytest.mark.parametrize(
    ("given", "fact"),
    [
        (write("gpu-2", extra=OF_POD), NOT_ITS_OWN),
        (write("gpu-1", extra=OF_NO_POD), UNBOUND),
        (write("gpu-1", extra={}), UNBOUND),
        (write("gpu-1"), UNBOUND),
    ],
    ids=["another node's", "a token of kubectl create token", "a token that says nothing more", "a Secret's token"],
)
def test_it_refuses_and_says_why(body: Object, given: dict[str, Any], fact: str) -> None:
    [refusal] = Policy(body).refusals(given)
    assert refusal.reason == "Forbidden"
    assert not missing_facts(refusal.message, fact)


def test_the_account_is_the_one_of_the_charts_namespace(helm: Helm) -> None:
    values = {"namespace": {"name": "elsewhere"}}
    policy = Policy(helm.template(values=values, version="1.30.0").one("ValidatingAdmissionPolicy", NAME))

    assert policy.refusals(write("gpu-2", extra=OF_POD)) == []
    of_elsewhere = write("gpu-2", user="system:serviceaccount:elsewhere:muster-agent", extra=OF_POD)
    [refusal] = policy.refusals(of_elsewhere)
    assert not missing_facts(refusal.message, NOT_ITS_OWN)


def test_what_cannot_be_judged_is_refused(body: Object) -> None:
    """A name of a field that requests do not have would show itself so, too."""
    given = write("gpu-1", extra=OF_POD)
    del given["request"]["name"]

    [refusal] = Policy(body).refusals(given)
    assert not missing_facts(refusal.message, '"name"')


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("variables.nod == ''", "undeclared reference"),
        ("variables.node ==", "Syntax error"),
        ("variables.node", "BOOL"),
    ],
)
def test_an_expression_that_the_api_server_would_not_take_is_found(body: Object, wrong: str, said: str) -> None:
    spec = body["spec"]
    validations = [*spec["validations"], {"expression": wrong, "reason": "Forbidden", "message": "m"}]

    with pytest.raises(CelError, match=said):
        Policy(body | {"spec": spec | {"validations": validations}})
