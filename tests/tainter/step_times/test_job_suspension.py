"""Which job is suspended, at whose wish, and what is never changed."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, get_args

import pytest
from tests.kube.conftest import FakeApi, Reply

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.objects import Metadata, OwnerReference
from muster_tainter.policy.sections.sources import SuspendedKind
from muster_tainter.step_times.job_suspension import DEPTH, KINDS, suspend_job
from muster_tainter.step_times.owner_policy import ANNOTATION

STOP = {ANNOTATION: "stop"}
VERSIONS = {
    "batch": "v1",
    "jobset.x-k8s.io": "v1alpha2",
    "trainer.kubeflow.org": "v1alpha1",
    "kubeflow.org": "v1",
    "ray.io": "v1",
    "graphcore.ai": "v1alpha1",
}
BY_NAME = {kind.name: kind for kind in KINDS.values()}


def reference(kind: str, name: str, **fields: Any) -> dict[str, Any]:
    group = BY_NAME[kind].group if kind in BY_NAME else "example.com"
    version = f"{group}/{VERSIONS.get(group, 'v1')}"
    return {"apiVersion": version, "kind": kind, "name": name, "uid": f"uid-{name}", "controller": True, **fields}


class Cluster:
    def __init__(self, api: FakeApi, client: KubeClient) -> None:
        self.api, self.client = api, client

    def path(self, kind: str, name: str) -> str:
        known = BY_NAME[kind]
        return f"/apis/{known.group}/{VERSIONS[known.group]}/namespaces/ml/{known.plural}/{name}"

    def job(
        self,
        kind: str,
        name: str,
        owner: dict[str, Any] | None = None,
        *,
        annotations: dict[str, str] | None = None,
        spec: dict[str, Any] | None = None,
        **metadata: Any,
    ) -> None:
        meta = {"name": name, "namespace": "ml", "uid": f"uid-{name}", "annotations": annotations or {}, **metadata}
        if owner is not None:
            meta["ownerReferences"] = [owner]
        self.api.on("GET", self.path(kind, name), Reply(200, {"metadata": meta, "spec": spec or {}}))
        field = BY_NAME[kind].field or ("suspend",)
        suspended: Any = True
        for key in reversed(field):
            suspended = {key: suspended}
        self.api.on("PATCH", self.path(kind, name), Reply(200, {"metadata": meta, "spec": suspended}))

    async def suspend(self, owner: dict[str, Any], *kinds: str) -> str:
        names = {"api_version": owner["apiVersion"], **{key: owner[key] for key in ("kind", "name", "uid")}}
        pod = Metadata(name="p", namespace="ml", owner_references=(OwnerReference(**names, controller=True),))
        return await suspend_job(self.client, pod, kinds)

    @property
    def patches(self) -> list[tuple[str, Any]]:
        return [(asked.path, json.loads(asked.body)) for asked in self.api.asked_for("PATCH")]


@asynccontextmanager
async def _cluster() -> AsyncIterator[Cluster]:
    api = FakeApi()
    await api.start()
    config = ClusterConfig(server=f"http://127.0.0.1:{api.port}", namespace="x", origin="test")
    async with KubeClient(config, user_agent="test", timeout_s=30.0) as client:
        yield Cluster(api, client)
    await api.stop()


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with _cluster() as found:
        yield found


def test_the_policy_names_the_kinds_that_can_be_suspended() -> None:
    assert set(get_args(SuspendedKind)) == {kind.name for kind in KINDS.values() if kind.field is not None}
    assert all(set(kind.through) <= BY_NAME.keys() for kind in KINDS.values())


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("Job", {"suspend": True}),
        ("JobSet", {"suspend": True}),
        ("TrainJob", {"suspend": True}),
        ("PyTorchJob", {"runPolicy": {"suspend": True}}),
        ("MPIJob", {"runPolicy": {"suspend": True}}),
        ("RayJob", {"suspend": True}),
        ("IPUJob", {"suspend": True}),
    ],
)
async def test_each_kind_is_suspended_by_its_own_field(cluster: Cluster, kind: str, spec: dict[str, Any]) -> None:
    cluster.job(kind, "train", annotations=STOP)
    assert await cluster.suspend(reference(kind, "train"), kind) == ""
    assert cluster.patches == [(cluster.path(kind, "train"), {"metadata": {"uid": "uid-train"}, "spec": spec})]


@pytest.mark.parametrize(
    ("kinds", "chain"),
    [
        (("JobSet",), ("Job", "JobSet")),
        (("TrainJob",), ("Job", "JobSet", "TrainJob")),
        (("RayJob",), ("RayCluster", "RayJob")),
        (("MPIJob",), ("Job", "MPIJob")),
    ],
)
async def test_the_outermost_owner_is_suspended(
    cluster: Cluster, kinds: tuple[str, ...], chain: tuple[str, ...]
) -> None:
    for inner, outer in zip(chain, (*chain[1:], None), strict=True):
        cluster.job(inner, inner.lower(), None if outer is None else reference(outer, outer.lower()), annotations=STOP)
    assert await cluster.suspend(reference(chain[0], chain[0].lower()), *kinds) == ""
    assert [path for path, _ in cluster.patches] == [cluster.path(chain[-1], chain[-1].lower())]


async def test_an_ipujobs_health_policy_asks_for_it(cluster: Cluster) -> None:
    cluster.job("IPUJob", "train", spec={"healthPolicy": {"onStraggler": "stop"}})
    assert await cluster.suspend(reference("IPUJob", "train"), "IPUJob") == ""
    cluster.job("IPUJob", "other", spec={"healthPolicy": {"onStraggler": "checkpoint-and-move"}})
    assert await cluster.suspend(reference("IPUJob", "other"), "IPUJob")
    assert len(cluster.patches) == 1


@pytest.mark.parametrize("kind", ["JobSet", "RayJob", "PyTorchJob"])
async def test_a_kind_that_the_policy_does_not_name_is_not_even_read(cluster: Cluster, kind: str) -> None:
    cluster.job(kind, "train", annotations=STOP)
    assert await cluster.suspend(reference(kind, "train"), "Job")
    cluster.job("Job", "part", reference(kind, "train"), annotations=STOP)
    assert await cluster.suspend(reference("Job", "part"), "Job")
    assert [asked.path for asked in cluster.api.asked_for("GET")] == [cluster.path("Job", "part")]
    assert cluster.patches == []


async def test_an_owner_that_did_not_ask_is_left_alone(cluster: Cluster) -> None:
    """Whoever creates a pod or a Job may name somebody else's JobSet as its controller."""
    template = {"template": {"metadata": {"annotations": STOP}}}
    cluster.job("JobSet", "victim", annotations={ANNOTATION: "notify"}, spec=template)
    cluster.job("Job", "mine", reference("JobSet", "victim"), annotations=STOP)
    assert await cluster.suspend(reference("Job", "mine"), "Job", "JobSet")
    assert cluster.patches == []


@pytest.mark.parametrize(
    "owner",
    [
        reference("Job", "train", uid="another"),
        reference("Job", "../secrets/x"),
        reference("Job", "train", apiVersion="batch/v1/../../core"),
        reference("Job", "train", apiVersion="v1"),
        reference("RayCluster", "train"),
        reference("Notebook", "train"),
    ],
)
async def test_an_owner_that_is_no_job_or_another_one_is_left_alone(cluster: Cluster, owner: dict[str, Any]) -> None:
    for kind in ("Job", "RayCluster"):
        cluster.job(kind, "train", annotations=STOP)
    assert await cluster.suspend(owner, *get_args(SuspendedKind))
    assert cluster.patches == []


async def test_owners_in_a_circle_end(cluster: Cluster) -> None:
    cluster.job("Job", "a", reference("JobSet", "b"))
    cluster.job("JobSet", "b", reference("Job", "a"))
    assert await cluster.suspend(reference("Job", "a"), "Job", "JobSet")
    assert len(cluster.api.asked_for("GET")) == DEPTH


@pytest.mark.parametrize(
    "reply",
    [
        Reply(403, {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no right"}),
        Reply(404, {"kind": "Status", "code": 404, "reason": "NotFound", "message": "gone"}),
        Reply(409, {"kind": "Status", "code": 409, "reason": "Conflict", "message": "another one"}),
        Reply(200, {"metadata": {"name": "train"}, "spec": {}}),  # the field is not known there
    ],
)
async def test_a_refusal_is_the_reason_and_no_error(cluster: Cluster, reply: Reply) -> None:
    cluster.job("PyTorchJob", "train", annotations=STOP)
    cluster.api.on("PATCH", cluster.path("PyTorchJob", "train"), reply)
    assert await cluster.suspend(reference("PyTorchJob", "train"), "PyTorchJob")
