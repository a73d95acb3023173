"""Reads which pods of a node hold a device: the node's pods, and their ResourceClaims."""

from collections.abc import Collection
from dataclasses import dataclass

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import NotFound
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

PODS_LIMIT = 256  # of a node; a kubelet runs 110 by default
CLAIMS_LIMIT = 64  # of a pod


@dataclass(frozen=True)
class DeviceHolder:
    """held: what it holds of the devices in question."""

    pod: HolderPod
    held: tuple[AllocatedDevice, ...]


class TooManyPods(Exception):
    """More pods than any kubelet runs, or more claims than any pod has: who holds the device cannot be told."""


class HolderReader:
    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._api: DeviceApi | None = None

    def use(self, api: DeviceApi) -> None:
        self._api = api

    async def holders(self, node: str, devices: Collection[DeviceName], *, fresh: bool = False) -> list[DeviceHolder]:
        """The pods that hold one of ``devices``, and have not ended. fresh: not from the API server's cache. Raises
        ApiError; TooManyPods."""
        if self._api is None:  # rules are written only after the API was found
            raise LookupError("nothing is known yet of resource.k8s.io")
        params: dict[str, str | int | bool] = {"fieldSelector": f"spec.nodeName={node}"}
        if not fresh:
            params["resourceVersion"] = "0"  # served from the API server's cache, which indexes pods by node
        timeout_s = LIST_SILENCE_S if fresh else None  # otherwise it reads the pods of the whole cluster from etcd
        page = await self._client.list_page("/api/v1/pods", HolderPod, params=params, timeout_s=timeout_s)
        if len(page.items) > PODS_LIMIT:
            raise TooManyPods(f"node {node} has {len(page.items)} pods, more than {PODS_LIMIT}")
        found = []
        for pod in page.items:
            held = await self._held(pod, devices, self._api)
            if held:
                found.append(DeviceHolder(pod, held))
        return found

    async def _held(
        self, pod: HolderPod, devices: Collection[DeviceName], api: DeviceApi
    ) -> tuple[AllocatedDevice, ...]:
        held: list[AllocatedDevice] = []
        names = claim_names(pod)
        if len(names) > CLAIMS_LIMIT:
            what = f"pod {pod.metadata.namespace}/{pod.metadata.name}"
            raise TooManyPods(f"{what} has {len(names)} ResourceClaims, more than {CLAIMS_LIMIT}")
        for name in names:
            path = f"{api.claims(pod.metadata.namespace)}/{name}"
            try:
                held += held_devices(await self._client.get(path, type=ResourceClaim), pod, devices)
            except NotFound:
                continue
        return tuple(held)
