"""The health of devices in the status of pods (``allocatedResourcesStatus``, KEP-4680). Pure functions.

Device plug-ins and drivers of dynamic resource allocation report it to the kubelet, which writes it for the containers
that hold the device (feature gate ``ResourceHealthStatus``, on by default from Kubernetes 1.36 on). The
kubelet of the pod's node is the only writer: with the Node authorizer, a kubelet can write the status of its own pods
only, and no default role of users allows to write it. So a false report concerns the reporter's own node.

``name`` is a resource (``nvidia.com/gpu``) or ``claim:NAME`` or ``claim:NAME/REQUEST``; ``resourceID`` is the
plug-in's ID of the device, or of a claim's device its first CDI ID, or DRIVER/POOL/DEVICE if it has none
(pkg/kubelet/cm/dra/manager.go).
"""

import sys
from typing import Final, NamedTuple

import msgspec

from muster_checks.base.vocabulary import shorten
from muster_kube.api.objects import Api, Metadata
from muster_tainter.devices.device_states import cards_of
from muster_tainter.devices.slices.device_map import NodeDevice, NodeDevices
from muster_tainter.faults.device_isolation import device_identity

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"  # the third, Unknown, says nothing
CLAIM: Final = "claim:"
DEVICES_LIMIT = 128  # of a pod
_TEXT_LIMIT = 120  # characters of a name, an ID or a message
_KINDS = (("gpu", ("gpu",)), ("nic", ("rdma", "nic", "hca", "sriov", "dra.net")))
_NOTHING: dict[str, str] = {}


class ResourceHealth(Api, frozen=True):
    resource_id: str = msgspec.field(default="", name="resourceID")
    health: str = ""
    message: str = ""


class ResourceStatus(Api, frozen=True):
    name: str = ""
    resources: tuple[ResourceHealth, ...] = ()


class HolderContainerStatus(Api, frozen=True):
    allocated_resources_status: tuple[ResourceStatus, ...] = ()


class DevicePodSpec(Api, frozen=True):
    node_name: str = ""


class DevicePodStatus(Api, frozen=True):
    start_time: str = ""
    container_statuses: tuple[HolderContainerStatus, ...] = ()
    init_container_statuses: tuple[HolderContainerStatus, ...] = ()


class HeldDevice(NamedTuple):
    """A device of a pod. resource: the name; healthy: False for Unhealthy."""

    resource: str
    id: str
    healthy: bool
    message: str


class DevicePod(Api, frozen=True):
    """held: from the statuses, which are dropped; no field of the API. Devices of unknown health are left out."""

    metadata: Metadata
    spec: DevicePodSpec = DevicePodSpec()
    status: DevicePodStatus = DevicePodStatus()
    held: tuple[HeldDevice, ...] = ()


def slim_pod(pod: DevicePod) -> DevicePod:
    """The reflector's ``transform``: the stored part."""
    meta, status = pod.metadata, pod.status
    held: dict[tuple[str, str], HeldDevice] = {}
    for container in (*status.init_container_statuses, *status.container_statuses):
        for resource in container.allocated_resources_status:
            for each in resource.resources:
                if each.health not in (HEALTHY, UNHEALTHY) or not each.resource_id:
                    continue
                key = resource.name[:_TEXT_LIMIT], each.resource_id[:_TEXT_LIMIT]
                if len(held) >= DEVICES_LIMIT and key not in held:
                    continue
                healthy = each.health == HEALTHY and held.get(key, _GOOD).healthy
                held[key] = HeldDevice(sys.intern(key[0]), key[1], healthy, each.message[:_TEXT_LIMIT])
    slim = Metadata(
        name=meta.name,
        namespace=sys.intern(meta.namespace),
        uid=meta.uid,
        resource_version=meta.resource_version,
        labels=_NOTHING,
        annotations=_NOTHING,
    )
    return DevicePod(
        metadata=slim,
        spec=DevicePodSpec(sys.intern(pod.spec.node_name)),
        status=DevicePodStatus(start_time=status.start_time),
        held=tuple(held.values()),
    )


_GOOD = HeldDevice("", "", healthy=True, message="")


def component_of(held: HeldDevice, devices: NodeDevices) -> str:
    """``gpu/GPU-…``, ``gpu/0000:3b:00.0``, ``nic/…``; ``device/ID`` for one that neither its ID nor the node's
    ResourceSlices name. devices: of the pod's node."""
    identity = device_identity(held.id)
    if identity is not None and (kind := _kind(f"{held.resource} {held.id}")):
        return f"{kind}/{identity}"
    if held.resource.startswith(CLAIM):
        found = _find_card(held.id, devices)
        if found is not None:
            key, card = found
            return f"{_kind(card.driver) or 'device'}/{key}"
    return f"device/{shorten(held.id, _TEXT_LIMIT)}"


def message_of(held: HeldDevice, pod: DevicePod) -> str:
    """With the names of a pod, its namespace and its claim, which its owner has chosen."""
    meta = pod.metadata
    said = f": {held.message}" if held.message else ""
    return shorten(f"{held.resource} {held.id} of pod {meta.namespace}/{meta.name} is reported as unhealthy{said}")


def _kind(text: str) -> str:
    lower = text.lower()
    return next((kind for kind, words in _KINDS if any(word in lower for word in words)), "")


def _find_card(device_id: str, devices: NodeDevices) -> tuple[str, NodeDevice] | None:
    """(its address or UUID, the card); None if no device has this ID, or several have."""
    vendor, is_cdi, name = device_id.partition("=")
    found: list[tuple[int, str, NodeDevice]] = []
    for keys, card in cards_of(devices):
        for each in card.names:
            if device_id == f"{card.driver}/{card.pool}/{each}":
                return keys[0], card
            # NVIDIA's driver: k8s.gpu.nvidia.com/claim=UID-gpu-0
            if is_cdi and (name == each or name.endswith(f"-{each}")):
                found.append((len(each), keys[0], card))
    if len({card.driver for _, _, card in found}) > 1:
        found = [each for each in found if vendor.partition("/")[0].endswith(each[2].driver)]
    longest = max((length for length, _, _ in found), default=0)
    best = {(key, card) for length, key, card in found if length == longest}
    return best.pop() if len(best) == 1 else None
