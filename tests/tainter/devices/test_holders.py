"""Pods that hold a device which is kept out of use get an Event; no other pod does."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from tests.tainter.devices.device_world import API, DRIVER, finding, health, world

from muster_kube.api.errors import AlreadyExists, Gone, NotFound
from muster_kube.api.list_decoder import ListPage, UndecodableObject
from muster_tainter.devices.holders.claims import HolderPod, claim_names
from muster_tainter.devices.holders.notifier import REASON, HolderNotifier
from muster_tainter.devices.holders.reader import CLAIMS_LIMIT, HolderReader
from muster_tainter.fleet.replica import Replica

JOB_SET = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "set", "uid": "u2", "controller": True}
JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "u1", "controller": True}


def pod(name: str, claim: str = "", **status: Any) -> dict[str, Any]:
    statuses = [{"name": "gpu", "resourceClaimName": claim}] if claim else []
    return {
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}"},
        "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]},
        "status": {"phase": "Running", "resourceClaimStatuses": statuses} | status,
    }


def greedy_pod(name: str) -> dict[str, Any]:
    """It names one claim more than are read of a pod."""
    made = pod(name)
    claims = [{"name": f"r{n}", "resourceClaimName": f"{name}-{n}"} for n in range(CLAIMS_LIMIT + 1)]
    made["spec"]["resourceClaims"] = claims
    return made


def claim(name: str, holder: str, device: str, **result: Any) -> dict[str, Any]:
    allocated = {"driver": DRIVER, "pool": "n1", "device": device, "request": "gpu"} | result
    return {
        "metadata": {"name": name},
        "status": {
            "allocation": {"devices": {"results": [allocated]}},
            "reservedFor": [{"resource": "pods", "name": holder, "uid": f"uid-{holder}"}],
        },
    }


@dataclass
class Api:
    """page_size: pods; gone: the pages after the first are not served; unreadable: objects that match no type."""

    pods: list[dict[str, Any]]
    claims: list[dict[str, Any]]
    events: dict[str, Any] = field(default_factory=dict)
    page_size: int = 500
    gone: bool = False
    unreadable: list[UndecodableObject] = field(default_factory=list)

    async def list_pages(self, path: str, type: Any, *, params: Any, **_: Any) -> AsyncIterator[Any]:
        node, *phases = params["fieldSelector"].split(",")
        assert (path, node) == ("/api/v1/pods", "spec.nodeName=n1")
        left_out = {each.removeprefix("status.phase!=") for each in phases}
        items = [msgspec.convert(each, type) for each in self.pods if each["status"]["phase"] not in left_out]
        for start in range(0, max(1, len(items)), self.page_size):
            if start and self.gone:
                raise Gone(410, "Expired", "", path)
            yield ListPage(items[start : start + self.page_size], "1", undecodable=self.unreadable)

    async def get(self, path: str, *, type: Any) -> Any:
        place, _, name = path.rpartition("/")
        if place == "/apis/batch/v1/namespaces/team/jobs":
            return msgspec.convert({"metadata": {"name": name, "ownerReferences": [JOB_SET]}}, type)
        assert place == "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims"
        for each in self.claims:
            if each["metadata"]["name"] == name:
                return msgspec.convert(each, type)
        raise NotFound(404, "NotFound", name, path)

    async def create(self, path: str, body: Any, *, type: Any) -> Any:
        if body.metadata.name in self.events:
            raise AlreadyExists(409, "AlreadyExists", "", path)
        self.events[body.metadata.name] = body

    @property
    def told(self) -> list[tuple[str, str]]:
        return sorted((each.involved_object.name, each.reason) for each in self.events.values())


async def told(api: Api) -> list[tuple[str, str]]:
    leader = world()
    await leader.settle(health(finding(1)))
    reader = HolderReader(api)  # type: ignore[arg-type]
    reader.use(API)
    notifier = HolderNotifier(api, leader.fleet, Replica(lambda: True), leader.store, reader)  # type: ignore[arg-type]
    await notifier.notify("n1", finding(1).component)
    await notifier.notify("n1", finding(1).component)  # as another leader does
    return api.told


async def test_the_pod_that_holds_the_device_is_told_once_and_its_neighbours_are_not() -> None:
    pods = [pod("sick", "c1"), pod("well", "c2"), pod("none"), pod("gone", "c9")]
    claims = [claim("c1", "sick", "gpu-1"), claim("c2", "well", "gpu-2")]
    assert await told(Api(pods, claims)) == [("sick", REASON)]


async def test_the_owners_of_pods_with_the_device_are_told_once_for_all_their_pods() -> None:
    pods = [pod(name, f"c-{name}") for name in ("a", "b", "c")]
    for each in pods[:2]:
        each["metadata"]["ownerReferences"] = [JOB]
    claims = [claim(f"c-{name}", name, "gpu-1") for name in ("a", "b", "c")]
    api = Api(pods, claims)
    assert await told(api) == [(name, REASON) for name in ("a", "b", "c", "job", "set")]
    kinds = {each.involved_object.name: each.involved_object.kind for each in api.events.values()}
    assert (kinds["job"], kinds["set"]) == ("Job", "JobSet")


async def test_the_owner_of_a_pod_without_the_device_is_not_told() -> None:
    sick, well = pod("sick", "c1"), pod("well", "c2")
    well["metadata"]["ownerReferences"] = [JOB]
    claims = [claim("c1", "sick", "gpu-1"), claim("c2", "well", "gpu-2")]
    assert await told(Api([sick, well], claims)) == [("sick", REASON)]


@pytest.mark.parametrize(
    ("pods", "claims"),
    [
        ([pod("ended", "c1", phase="Succeeded")], [claim("c1", "ended", "gpu-1")]),
        ([pod("thief", "c1")], [claim("c1", "owner", "gpu-1")]),
        ([pod("far", "c1")], [claim("c1", "far", "gpu-1", pool="n2")]),
        ([pod("other", "c1")], [claim("c1", "other", "gpu-1", driver="other.example.com")]),
        ([pod("early", "c1")], [{"metadata": {"name": "c1"}}]),
        ([pod("monitor", "c1")], [claim("c1", "monitor", "gpu-1", adminAccess=True)]),
    ],
)
async def test_no_other_pod_is_told(pods: list[dict[str, Any]], claims: list[dict[str, Any]]) -> None:
    assert await told(Api(pods, claims)) == []


async def test_a_claim_that_the_scheduler_made_for_an_extended_resource_counts() -> None:
    extended = pod("sick", extendedResourceClaimStatus={"resourceClaimName": "c1"})
    assert await told(Api([extended], [claim("c1", "sick", "gpu-1")])) == [("sick", REASON)]


async def test_a_pod_with_more_claims_than_are_read_hides_no_holder_and_gets_no_event() -> None:
    pods = [greedy_pod("greedy"), pod("sick", "c1")]
    assert await told(Api(pods, [claim("c1", "sick", "gpu-1")])) == [("sick", REASON)]


@pytest.mark.parametrize("name", ["../../secrets/x", "a/b", "A", "", "x" * 254])
def test_a_name_that_is_no_name_never_becomes_part_of_a_path(name: str) -> None:
    assert claim_names(msgspec.convert(pod("bad", name), HolderPod)) == ()
