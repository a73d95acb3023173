"""Owners of a pod, as tenants can write them."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.kube.conftest import FakeApi, Reply

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.objects import Metadata, OwnerReference
from muster_tainter.events import pod_owners
from muster_tainter.events.pod_owners import DEPTH, PodOwners


def job(name: str) -> dict[str, Any]:
    return {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": f"uid-{name}", "controller": True}


@pytest.mark.parametrize(
    ("owned", "found"),
    [
        ({}, ["a"]),
        ({"a": "b"}, ["a", "b"]),
        ({"a": "a"}, ["a"]),
        ({"a": "b", "b": "a"}, ["a", "b"]),
        ({"a": "b", "b": "c", "c": "d", "d": "e", "e": "f"}, ["a", "b", "c", "d"]),
    ],
)
async def test_owners_of_each_other_are_named_once_and_no_chain_is_followed_to_its_end(
    monkeypatch: pytest.MonkeyPatch, owned: Mapping[str, str], found: list[str]
) -> None:
    steps = iter(range(2 * DEPTH))
    real = pod_owners.owner_reference

    def counted(owner: OwnerReference, namespace: str) -> Any:
        assert next(steps, None) is not None, found
        return real(owner, namespace)

    monkeypatch.setattr(pod_owners, "owner_reference", counted)
    api = FakeApi()
    await api.start()
    for name in "abcdef":
        above = [job(owned[name])] if name in owned else []
        metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", "ownerReferences": above}
        api.on("GET", f"/apis/batch/v1/namespaces/team/jobs/{name}", Reply(200, {"metadata": metadata}))
    pod = Metadata(name="p", namespace="team", owner_references=(_owner("a"),))
    config = ClusterConfig(origin="test", server=f"http://127.0.0.1:{api.port}")
    async with KubeClient(config, timeout_s=30.0) as client:
        named = [each.name for each in await PodOwners(client).of(pod)]
    await api.stop()
    assert named == found


def _owner(name: str) -> OwnerReference:
    return OwnerReference(kind="Job", name=name, uid=f"uid-{name}", api_version="batch/v1", controller=True)
