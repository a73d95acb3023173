"""Reads which pods of a node hold a device: the node's pods, and their ResourceClaims."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import BadAnswer, NotFound
from muster_kube.controller.reflector import LIST_SILENCE_S
from muster_tainter.devices.api_versions import DeviceApi
from muster_tainter.devices.holders.claims import (
    AllocatedDevice,
    DeviceName,
    HolderPod,
    ResourceClaim,
    claim_names,
    held_devices,
)

PODS_LIMIT = 256  # of a node, unfinished and with claims; a kubelet runs 110 by default
CLAIMS_LIMIT = 64  # of a pod, that are read
_PODS = "/api/v1/pods"
_UNFINISHED = "status.phase!=Succeeded,status.phase!=Failed"


@dataclass(frozen=True)
class DeviceHolder:
    """held: what it holds of the devices in question; empty if it has more claims than are read, and none of those that
    were read has one of the devices."""

    pod: HolderPod
    held: tuple[AllocatedDevice, ...]


class TooManyPods(Exception):
    """More pods with claims than any kubelet runs: who holds the device cannot be told."""


class HolderReader:
    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._api: DeviceApi | None = None

    def use(self, api: DeviceApi) -> None:
        self._api = api

    async def holders(self, node: str, devices: Collection[DeviceName], *, fresh: bool = False) -> list[DeviceHolder]:
        """The pods that hold one of ``devices``, and have not ended. A pod with more claims than are read counts as a
        holder. fresh: not from the API server's cache. Raises ApiError; TooManyPods."""
        if self._api is None:  # rules are written only after the API was found
            raise LookupError("nothing is known yet of resource.k8s.io")
        found = []
        for pod in await self._pods_with_claims(node, fresh=fresh):
            names = claim_names(pod)
            held = await self._held(pod, names[:CLAIMS_LIMIT], devices, self._api)
            if held or len(names) > CLAIMS_LIMIT:
                found.append(DeviceHolder(pod, held))
        return found

    async def _pods_with_claims(self, node: str, *, fresh: bool) -> list[HolderPod]:
        """Finished pods are left out: a tenant can leave any number of them on a node."""
        params: dict[str, str | int | bool] = {"fieldSelector": f"spec.nodeName={node},{_UNFINISHED}"}
        if not fresh:
            params["resourceVersion"] = "0"  # served from the API server's cache, which indexes pods by node
        timeout_s = LIST_SILENCE_S if fresh else None  # otherwise it reads the pods of the whole cluster from etcd
        found: list[HolderPod] = []
        async for page in self._client.list_pages(_PODS, HolderPod, params=params, timeout_s=timeout_s):
            if page.undecodable:
                bad = page.undecodable[0]
                raise BadAnswer(200, f"cannot read pod {bad.key or '(no name)'}: {bad.error}", _PODS)
            found += [pod for pod in page.items if claim_names(pod)]
            if len(found) > PODS_LIMIT:
                raise TooManyPods(f"node {node} has more than {PODS_LIMIT} pods with ResourceClaims")
        return found

    async def _held(
        self, pod: HolderPod, names: Iterable[str], devices: Collection[DeviceName], api: DeviceApi
    ) -> tuple[AllocatedDevice, ...]:
        held: list[AllocatedDevice] = []
        for name in names:
            path = f"{api.claims(pod.metadata.namespace)}/{name}"
            try:
                held += held_devices(await self._client.get(path, type=ResourceClaim), pod, devices)
            except NotFound:
                continue
        return tuple(held)
