"""Pods of jobs that the real scheduler places on simulated nodes, and that end as a test says."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from tests.tainter.outcomes.pod_objects import GPU_LOST

from muster_kube.api.client import KubeClient
from muster_kube.api.objects import Pod
from muster_sandbox.simulation.nodes import for_each

Object = dict[str, Any]
NO_LABELS: Mapping[str, str] = MappingProxyType({})


def rejected(at: float) -> Object:
    """As a kubelet writes it whose device plug-in has lost a GPU."""
    return _status("Failed", at, reason="UnexpectedAdmissionError", message=GPU_LOST)


def succeeded(at: float) -> Object:
    return _status("Succeeded", at, containers=[_ended("Completed", 0, at)])


def failed(at: float) -> Object:
    return _status("Failed", at, containers=[_ended("Error", 1, at)])


def no_image(at: float) -> Object:
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
    return _status("Pending", at, containers=[_container({"waiting": waiting})])


def running(at: float, *, failed: bool) -> Object:
    """failed: its container was started again after an error."""
    container = _container({"running": {"startedAt": _stamp(at)}})
    last = {"terminated": {"reason": "Error", "exitCode": 1, "finishedAt": _stamp(at)}}
    return _status("Running", at, containers=[container | ({"lastState": last, "restartCount": 1} if failed else {})])


def _ended(reason: str, exit_code: int, at: float) -> Object:
    return _container({"terminated": {"reason": reason, "exitCode": exit_code, "finishedAt": _stamp(at)}})


def _container(state: Object) -> Object:
    return {"name": "main", "image": "", "imageID": "", "ready": False, "restartCount": 0, "state": state}


def _status(phase: str, at: float, *, containers: list[Object] | None = None, **more: str) -> Object:
    bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": _stamp(at)}
    return {"phase": phase, "conditions": [bound], "containerStatuses": containers or [], **more}


def _stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Jobs:
    """Jobs without a controller of their own: a ConfigMap owns their pods, so nothing creates or deletes any."""

    api: KubeClient
    now: Callable[[], float]
    number: int = 0

    async def create(
        self,
        namespace: str,
        name: str,
        pods: int,
        labels: Mapping[str, str] = NO_LABELS,
        gpus: int = 1,
        nodes: Sequence[str] = (),
    ) -> list[Pod]:
        """Its pods, bound by the scheduler, one at most on a node with ``labels``. nodes: on these alone, if given."""
        maps = f"/api/v1/namespaces/{namespace}/configmaps"
        owner = await self.api.create(maps, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
        reference = {
            "apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": owner["metadata"]["uid"], "controller": True,
        }  # fmt: skip
        return await self.create_pods(namespace, reference, pods, labels, gpus, nodes)

    async def create_pods(
        self,
        namespace: str,
        owner: Object,
        pods: int,
        labels: Mapping[str, str],
        gpus: int = 1,
        nodes: Sequence[str] = (),
    ) -> list[Pod]:
        first, self.number = self.number, self.number + pods
        names = [f"{owner['name']}-{first + i}" for i in range(pods)]
        apart = {
            "labelSelector": {"matchLabels": {"job": owner["name"]}}, "topologyKey": "kubernetes.io/hostname",
        }  # fmt: skip
        limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
        affinity: Object = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
        if nodes:
            names_of_nodes = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}
            there = {"nodeSelectorTerms": [{"matchExpressions": [names_of_nodes]}]}
            affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": there}

        async def create(name: str) -> None:
            await self.api.create(
                f"/api/v1/namespaces/{namespace}/pods",
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": name, "labels": {"job": owner["name"]}, "ownerReferences": [owner]},
                    "spec": {
                        "restartPolicy": "Never",
                        "terminationGracePeriodSeconds": 0,
                        "automountServiceAccountToken": False,
                        "nodeSelector": dict(labels),
                        "affinity": affinity,
                        "containers": [
                            {"name": "main", "image": "muster.invalid/job", "resources": {"limits": limits}}
                        ],
                    },
                },
            )

        await for_each(names, create)
        path, wanted = f"/api/v1/namespaces/{namespace}/pods", set(names)
        selector = {"labelSelector": f"job={owner['name']}", "fieldSelector": "spec.nodeName!="}
        while True:
            page = await self.api.list_page(path, Pod, params=selector)
            bound = [pod for pod in page.items if pod.metadata.name in wanted]
            if len(bound) == pods:
                return bound
            await asyncio.sleep(0.1)

    async def end(self, pods: list[Pod], ends: Callable[[str], Object]) -> None:
        """``ends``: the status of a pod on a node."""

        async def write(pod: Pod) -> None:
            meta = pod.metadata
            path = f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}/status"
            await self.api.patch(path, {"status": ends(pod.spec.node_name)}, kind="strategic")

        await for_each(pods, write)
