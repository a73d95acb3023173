"""The webhook that guards Muster's keys of Nodes: what it asks, counts and says. Which writes it refuses, and that the
API server's own policy refuses the same ones: tests/chart/test_node_keys_policy.py."""

import asyncio
import json
from typing import Any, cast

import msgspec
import pytest
from msgspec import structs

from muster_kube.api.errors import Unreachable
from muster_kube.api.reviews import Identity, Reviews
from muster_kube.webhook.review import AdmissionRequest, Resource, ReviewAnswer
from muster_tainter.agents.node_keys import NodeKeysRule

OLD: dict[str, Any] = {"metadata": {"name": "n1", "labels": {"a": "b"}}, "spec": {}}
NEW: dict[str, Any] = {"metadata": {"name": "n1", "labels": {"a": "b", "muster.dev/managed": "false"}}, "spec": {}}


class Rights:
    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.answer: bool | Unreachable = True

    async def may(self, identity: Identity, verb: str, group: str, resource: str) -> bool:
        self.asked.append((identity.user, verb, group, resource))
        if isinstance(self.answer, Unreachable):
            raise self.answer
        return self.answer


def request(old: object = OLD, new: object = NEW, *groups: str) -> AdmissionRequest:
    return AdmissionRequest(
        uid="1",
        user_info=Identity(user="ada", groups=groups),
        resource=Resource(version="v1", resource="nodes"),
        name="n1",
        operation="UPDATE",
        object=msgspec.Raw(json.dumps(new).encode()),
        old_object=msgspec.Raw(json.dumps(old).encode()),
    )


class Judge:
    def __init__(self) -> None:
        self.rights = Rights()
        self.told: list[str] = []
        self._rule = NodeKeysRule(cast("Reviews", self.rights), tell=self.told.append, clock=lambda: 0.0)

    def of(self, asked: AdmissionRequest) -> ReviewAnswer:
        return asyncio.run(self._rule.review(asked))


@pytest.fixture
def judge() -> Judge:
    return Judge()


def test_a_write_that_changes_no_key_of_ours_asks_and_counts_nothing(judge: Judge) -> None:
    for asked in (request(OLD, OLD), request(NEW, NEW), request(None, OLD)):
        assert judge.of(asked).allowed
    assert (judge.rights.asked, judge.told) == ([], [])


@pytest.mark.parametrize(
    ("old", "new", "outdated"),
    [("8", "7", True), ("8", "8", False), ("8", "08", False), ("8", "0", False), ("8", "", False), ("", "8", False)],
)
def test_a_write_of_an_outdated_copy_is_left_to_the_api_server(
    judge: Judge, old: str, new: str, outdated: bool
) -> None:
    """It rejects the write with a conflict; it reads versions as numbers, and takes 0 for none."""

    def versioned(node: dict[str, Any], version: str) -> dict[str, Any]:
        return node | {"metadata": node["metadata"] | {"resourceVersion": version}}

    asked = request(versioned(OLD, old), versioned(NEW, new), "system:nodes")
    assert judge.of(asked).allowed is outdated


def test_the_right_is_to_patch_node_healths(judge: Judge) -> None:
    assert judge.of(request()).allowed
    judge.rights.answer = False
    refused = judge.of(request())
    assert (refused.allowed, refused.code) == (False, 403)
    assert all(fact in refused.message for fact in ("ada", "muster.dev/managed", "patch nodehealths.muster.dev"))
    assert judge.rights.asked == [("ada", "patch", "muster.dev", "nodehealths")] * 2
    assert judge.told == ["allowed", "refused"]


def test_a_kubelet_is_refused_unasked(judge: Judge) -> None:
    refused = judge.of(request(OLD, NEW, "system:nodes"))
    assert (refused.code, judge.rights.asked, judge.told) == (403, [], ["refused"])


def test_while_rights_cannot_be_looked_up_the_write_is_refused_and_may_be_tried_again(judge: Judge) -> None:
    judge.rights.answer = Unreachable("not within 1 s", "/apis")
    refused = judge.of(request())
    assert (refused.allowed, refused.code, judge.told) == (False, 503, ["undecided"])


@pytest.mark.parametrize("new", [7, {"metadata": {"labels": 3}}, {"metadata": {"labels": {"a": ["b"]}}}])
def test_what_is_no_node_is_refused(judge: Judge, new: object) -> None:
    refused = judge.of(request(OLD, new))
    assert (refused.allowed, refused.code) == (False, 400)


def test_other_resources_are_none_of_its_business(judge: Judge) -> None:
    pods = structs.replace(request(), resource=Resource(version="v1", resource="pods"))
    assert judge.of(pods).allowed


def test_many_changed_keys_are_counted(judge: Judge) -> None:
    judge.rights.answer = False
    labels = {f"muster.dev/k{number}": "x" for number in range(50)}
    refused = judge.of(request(OLD, {"metadata": {"labels": labels}}))
    assert "47 more" in refused.message
    assert len(refused.message) < 400
