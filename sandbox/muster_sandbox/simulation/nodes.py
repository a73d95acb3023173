"""Simulated nodes: Node objects, created together with their status.

They send no heartbeats; the control plane's long grace period keeps them Ready. Pods on them need a kubelet: see
:mod:`muster_sandbox.simulation.kubelets`.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, TypeVar

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import NotFound
from muster_kube.api.objects import Node

NODES = "/api/v1/nodes"
NODE_HEALTHS = "/apis/muster.dev/v1alpha1/nodehealths"
SIMULATED = "testbed.muster.dev/simulated"  # label of every node made here
NODES_A_RACK = 16
RACKS_A_ZONE = 8
CONCURRENCY = 24  # concurrent calls; more would only queue in the API server

Object = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class NodeShape:
    """The capacity of a simulated node, as Kubernetes quantities. ``gpus`` 0: no accelerator."""

    cpu: str = "64"
    memory: str = "512Gi"
    pods: int = 110
    gpus: int = 8
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    taints: Sequence[Mapping[str, str]] = ()


def node_object(name: str, index: int = 0, shape: NodeShape = NodeShape()) -> Object:
    """A Ready Node. ``index`` determines its address in 10.128.0.0/9, its rack (16 nodes) and zone (8 racks)."""
    rack = index // NODES_A_RACK
    capacity = {"cpu": shape.cpu, "memory": shape.memory, "pods": str(shape.pods)}
    if shape.gpus:
        capacity["nvidia.com/gpu"] = str(shape.gpus)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                # otherwise the controller-manager adds these two to every node, with two calls each
                "beta.kubernetes.io/os": "linux",
                "beta.kubernetes.io/arch": "amd64",
                "topology.kubernetes.io/region": "testbed",
                "topology.kubernetes.io/zone": f"zone-{rack // RACKS_A_ZONE}",
                "topology.muster.dev/rack": f"rack-{rack}",
                SIMULATED: "true",
                **shape.labels,
            },
        },
        "spec": {"taints": [dict(taint) for taint in shape.taints]} if shape.taints else {},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "addresses": [
                {"type": "InternalIP", "address": f"10.{128 + (index >> 16)}.{index >> 8 & 255}.{index & 255}"},
                {"type": "Hostname", "address": name},
            ],
            "conditions": [
                _condition("MemoryPressure", "False", "KubeletHasSufficientMemory", now),
                _condition("DiskPressure", "False", "KubeletHasNoDiskPressure", now),
                _condition("PIDPressure", "False", "KubeletHasSufficientPID", now),
                _condition("Ready", "True", "KubeletReady", now),
            ],
            "nodeInfo": {
                "architecture": "amd64",
                "operatingSystem": "linux",
                "osImage": "simulated",
                "kernelVersion": "6.1.0",
                "kubeletVersion": "v1.20.2",
                "kubeProxyVersion": "v1.20.2",
                "containerRuntimeVersion": "simulated://1",
                "machineID": name,
                "systemUUID": name,
                "bootID": name,
            },
        },
    }


class SimulatedNodes:
    """Simulated nodes of one test or sandbox, deleted together."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self.names: list[str] = []

    async def create(
        self,
        count: int,
        *,
        prefix: str = "node",
        shape: NodeShape = NodeShape(),
        first: int = 0,
    ) -> list[str]:
        """Create ``count`` nodes ``PREFIX-N``, N from ``first`` on; returns their names. Raises AlreadyExists, because
        an existing node belongs to another test."""
        names = [f"{prefix}-{number}" for number in range(first, first + count)]
        bodies = [node_object(name, first + index, shape) for index, name in enumerate(names)]

        async def create(body: Object) -> None:
            await self._client.create(NODES, body, type=Node)
            self.names.append(body["metadata"]["name"])  # only our own: delete() deletes these

        await for_each(bodies, create)
        return names

    async def delete(self, names: Iterable[str] | None = None) -> None:
        """Delete these (by default all) nodes and their NodeHealths, if they exist."""
        leaving = list(self.names if names is None else names)

        async def delete(path: str) -> None:
            with contextlib.suppress(NotFound):
                await self._client.delete(path)

        await for_each((f"{NODES}/{name}" for name in leaving), delete)
        gone = set(leaving)
        # read, not tried: where no tainter runs, no node has one
        healths = await self._health_names()
        await for_each((f"{NODE_HEALTHS}/{name}" for name in healths & gone), delete)
        self.names = [name for name in self.names if name not in gone]

    async def _health_names(self) -> set[str]:
        """Of all NodeHealths; none if the CRD is not installed."""
        try:
            found = await self._client.get(NODE_HEALTHS)
        except NotFound:
            return set()
        return {each["metadata"]["name"] for each in found["items"]}


async def for_each(items: Iterable[T], act: Callable[[T], Awaitable[None]], *, concurrency: int = CONCURRENCY) -> None:
    """Call ``act`` for every item, ``concurrency`` at a time. After an error it starts no more and raises it."""
    waiting = iter(items)
    failed = False

    async def worker() -> None:
        nonlocal failed
        for item in waiting:  # all workers share the iterator
            if failed:
                return
            try:
                await act(item)
            except BaseException:
                failed = True
                raise

    # running calls are not cancelled: one that is opening a connection would leak it
    ends = await asyncio.gather(*(worker() for _ in range(concurrency)), return_exceptions=True)
    for end in ends:
        if end is not None:
            raise end


def _condition(kind: str, status: str, reason: str, now: str) -> Object:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": "simulated",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
