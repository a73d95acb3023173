"""Which pods of a node hold a device: from the pods' claims and the claims' allocations. Pure functions.

Fields: pod ``status.resourceClaimStatuses``, ``status.extendedResourceClaimStatus`` and ``spec.resourceClaims``; claim
``status.allocation.devices.results`` and ``status.reservedFor`` (resource.k8s.io/v1). A result with ``adminAccess`` is
for monitoring: it uses no device up, so its pod does not hold it.
"""

import re
from collections.abc import Collection

from muster_kube.api.objects import Api, Metadata
from muster_tainter.faults.record.node_record import OurTaint
from muster_tainter.repair.drain_plan import DrainClaim, DrainPod, DrainPodSpec, DrainPodStatus, DrainToleration, covers

_FINISHED = ("Succeeded", "Failed")
# a pod's creator may write anything as the name of a claim; only what matches becomes part of an API path
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")

DeviceName = tuple[str, str, str]  # driver, pool, device


class ClaimReference(DrainClaim, frozen=True):
    resource_claim_name: str = ""


class HolderSpec(DrainPodSpec, frozen=True):
    resource_claims: tuple[ClaimReference, ...] = ()


class HolderStatus(DrainPodStatus, frozen=True):
    resource_claim_statuses: tuple[ClaimReference, ...] = ()
    extended_resource_claim_status: ClaimReference = ClaimReference()


class HolderPod(DrainPod, frozen=True):
    """A pod with its claims."""

    spec: HolderSpec = HolderSpec()
    status: HolderStatus = HolderStatus()


class AllocatedDevice(Api, frozen=True):
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool = False
    tolerations: tuple[DrainToleration, ...] = ()

    @property
    def named(self) -> DeviceName:
        return self.driver, self.pool, self.device


class _AllocatedDevices(Api, frozen=True):
    results: tuple[AllocatedDevice, ...] = ()


class _Allocation(Api, frozen=True):
    devices: _AllocatedDevices = _AllocatedDevices()


class _Consumer(Api, frozen=True):
    uid: str = ""


class _ClaimStatus(Api, frozen=True):
    allocation: _Allocation | None = None
    reserved_for: tuple[_Consumer, ...] = ()


class ResourceClaim(Api, frozen=True):
    metadata: Metadata
    status: _ClaimStatus = _ClaimStatus()


def claim_names(pod: HolderPod) -> tuple[str, ...]:
    """The ResourceClaims of a pod that has not ended, in its namespace."""
    if pod.status.phase in _FINISHED:
        return ()
    references = (
        *pod.spec.resource_claims,
        *pod.status.resource_claim_statuses,
        pod.status.extended_resource_claim_status,
    )
    names = dict.fromkeys(each.resource_claim_name for each in references)
    return tuple(name for name in names if _NAME.fullmatch(name))


def held_devices(claim: ResourceClaim, pod: HolderPod, devices: Collection[DeviceName]) -> tuple[AllocatedDevice, ...]:
    """Those of ``devices`` that are allocated to the claim, if it is reserved for the pod."""
    allocation = claim.status.allocation
    if allocation is None or all(each.uid != pod.metadata.uid for each in claim.status.reserved_for):
        return ()
    results = allocation.devices.results
    return tuple(each for each in results if each.named in devices and not each.admin_access)


def holds(claim: ResourceClaim, pod: HolderPod, devices: Collection[DeviceName]) -> bool:
    """Whether one of ``devices`` is allocated to the claim, and the claim is reserved for the pod."""
    return bool(held_devices(claim, pod, devices))


def tolerates(allocated: AllocatedDevice, taint: OurTaint) -> bool:
    """Its claim would be given the device again at once, and its tolerations allow that."""
    return any(covers(each, taint.key, taint.value, taint.effect) for each in allocated.tolerations)
