"""Who may change Muster's keys of a Node: the policy of Kubernetes 1.30 and later, as rendered, on requests as the API
server describes them. The webhook of earlier versions is asked the same, so both give the same answers."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from tests.chart.admission_policy import Policy
from tests.chart.helm_render import Helm

from muster_kube.api.reviews import Identity
from muster_kube.webhook.review import AdmissionRequest, Resource
from muster_tainter.agents.node_keys import NodeKeysRule

NAME = "muster-node-keys"
RIGHT = "patch nodehealths.muster.dev"
Object = dict[str, Any]
NODE: Object = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {
        "name": "gpu-1",
        "labels": {"kubernetes.io/hostname": "gpu-1", "muster.dev/health": "fail", "muster.dev/faulty": "true"},
        "annotations": {"muster.dev/faults": "{}", "volumes.kubernetes.io/controller-managed-attach-detach": "true"},
    },
    "spec": {
        "taints": [
            {"key": "dedicated", "value": "research", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"},
            {"key": "muster.dev/faulty", "value": "true", "effect": "NoSchedule"},
            {"key": "muster.dev/startup", "effect": "NoSchedule"},
        ]
    },
    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
}
DEDICATED, FAULTY, STARTUP = NODE["spec"]["taints"]
BARE: Object = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1"}, "spec": {}}


def changed(before: Object = NODE, *, taints: list[Object] | None = None, **metadata: dict[str, str | None]) -> Object:
    """A merge patch of labels and annotations; ``taints`` as a whole."""
    node: Object = json.loads(json.dumps(before))
    for kind, values in metadata.items():
        merged = {**node["metadata"].get(kind, {}), **values}
        node["metadata"][kind] = {key: value for key, value in merged.items() if value is not None}
    if taints is not None:
        node["spec"]["taints"] = taints
    return node


# (old, new, what is changed in our eyes)
WRITES: list[tuple[Object | None, Object, str]] = [
    (NODE, NODE, ""),
    (NODE, changed(labels={"example.com/x": "1"}, annotations={"a": "b"}), ""),
    (NODE, changed(labels={"mymuster.dev/x": "1", "muster.dev.example.com/y": "1"}), ""),
    (NODE, changed(taints=[FAULTY, STARTUP]), ""),
    (NODE, changed(taints=[STARTUP, FAULTY | {"timeAdded": "2026-01-01T00:00:00Z"}, DEDICATED]), ""),
    (BARE, changed(BARE, taints=[STARTUP]), ""),
    (None, changed(BARE, taints=[STARTUP | {"value": "true"}]), ""),
    (None, BARE, ""),
    (NODE, changed(labels={"muster.dev/managed": "false"}), "label"),
    (BARE, changed(BARE, labels={"muster.dev/managed": "false"}), "label"),
    (None, changed(BARE, labels={"muster.dev/managed": "false"}), "label"),
    (NODE, changed(labels={"muster.dev/faulty": None}), "label"),
    (NODE, changed(labels={"muster.dev/health": "pass"}), "label"),
    (NODE, changed(annotations={"muster.dev/faults": '{"ours":[{"key":"dedicated"}]}'}), "annotation"),
    (NODE, changed(annotations={"muster.dev/faults": None}), "annotation"),
    (BARE, changed(BARE, annotations={"muster.dev/faults": "{}"}), "annotation"),
    (None, changed(BARE, annotations={"muster.dev/faults": "{}"}), "annotation"),
    (NODE, BARE, "all of them"),
    (NODE, changed(taints=[DEDICATED, STARTUP]), "taint"),
    (NODE, changed(taints=[DEDICATED, STARTUP, FAULTY | {"value": "x"}]), "taint"),
    (NODE, changed(taints=[DEDICATED, STARTUP, FAULTY | {"effect": "PreferNoSchedule"}]), "taint"),
    (NODE, changed(taints=[DEDICATED, FAULTY]), "taint"),
    (NODE, changed(taints=[]), "taint"),
    (BARE, changed(BARE, taints=[FAULTY]), "taint"),
]
KUBELET = ("system:node:gpu-1", ["system:nodes", "system:authenticated"])
PERSON = ("ada", ["oncall", "system:authenticated"])


def given(old: Object | None, new: Object, user: tuple[str, list[str]], *rights: str, sub: str = "") -> Object:
    name, groups = user
    request = {
        "name": "gpu-1", "subResource": sub, "operation": "CREATE" if old is None else "UPDATE",
        "userInfo": {"username": name, "groups": groups},
    }  # fmt: skip
    return {"object": new, "oldObject": old, "request": request, "rights": list(rights)}


class Rights:
    """What the API server's SubjectAccessReview says."""

    def __init__(self, rights: list[str]) -> None:
        self._rights = rights

    async def may(self, identity: Identity, verb: str, group: str, resource: str) -> bool:
        return f"{verb} {resource}.{group}" in self._rights


def webhook_refusal(asked: Object) -> str:
    """The webhook's message; empty if it lets the write through."""
    user = asked["request"]["userInfo"]
    rule = NodeKeysRule(Rights(asked["rights"]), tell=lambda _: None, clock=lambda: 0.0)  # type: ignore[arg-type]
    request = AdmissionRequest(
        uid="1",
        user_info=Identity(user=user["username"], groups=tuple(user["groups"])),
        resource=Resource(version="v1", resource="nodes"),
        sub_resource=asked["request"]["subResource"],
        name="gpu-1",
        operation=asked["request"]["operation"],
        object=msgspec.Raw(json.dumps(asked["object"]).encode()),
        old_object=msgspec.Raw(json.dumps(asked["oldObject"]).encode()),
    )
    answer = asyncio.run(rule.review(request))
    return "" if answer.allowed else answer.message


@pytest.fixture(scope="module")
def policy(helm: Helm) -> Policy:
    return Policy(helm.template(version="1.30.0").one("ValidatingAdmissionPolicy", NAME))


@pytest.mark.parametrize("sub", ["", "status"])
@pytest.mark.parametrize("write", WRITES, ids=lambda write: write[2])
def test_a_kubelet_changes_no_key_of_ours_whatever_its_rights(
    policy: Policy, write: tuple[Object | None, Object, str], sub: str
) -> None:
    old, new, ours = write
    asked = given(old, new, KUBELET, RIGHT, sub=sub)
    refusals = policy.refusals(asked)
    assert [refusal.reason for refusal in refusals] == (["Forbidden"] if ours else [])
    assert all(KUBELET[0] in refusal.message and "muster.dev/" in refusal.message for refusal in refusals)
    said = webhook_refusal(asked)
    assert (KUBELET[0] in said and "muster.dev/" in said) is bool(ours)


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write[2])
def test_others_change_them_only_with_the_right_to_patch_node_healths(
    policy: Policy, write: tuple[Object | None, Object, str]
) -> None:
    old, new, ours = write
    for rights, refused in (([RIGHT], False), ([], bool(ours)), (["patch nodes", "patch nodehealths"], bool(ours))):
        asked = given(old, new, PERSON, *rights)
        assert bool(policy.refusals(asked)) is refused, rights
        assert bool(webhook_refusal(asked)) is refused, rights


def test_what_cannot_be_judged_is_refused(policy: Policy) -> None:
    asked = given(NODE, changed(labels={"muster.dev/managed": "false"}), PERSON)
    del asked["request"]["userInfo"]["username"]
    [refusal] = policy.refusals(asked)
    assert "username" in refusal.message


def test_a_user_without_groups_is_judged_by_its_rights(policy: Policy) -> None:
    asked = given(NODE, changed(labels={"muster.dev/managed": "false"}), PERSON, RIGHT)
    del asked["request"]["userInfo"]["groups"]
    assert policy.refusals(asked) == []
