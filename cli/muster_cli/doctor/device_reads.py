"""Reads what the area ``devices`` is judged by: ResourceSlices, DeviceTaintRules and the scheduler's pods."""

from typing import TypeVar

from muster_cli.doctor.bounded_reads import BoundedReader
from muster_cli.doctor.facts import (
    ApiGroup,
    ApiResources,
    ControlPlanePod,
    DeviceRule,
    DeviceSlice,
    ServerVersion,
)
from muster_cli.doctor.findings import ReadFailure
from muster_cli.doctor.judges.devices import SCHEDULER, DeviceState
from muster_kube.api.objects import Object

GROUP = "/apis/resource.k8s.io"
SLICES, RULES = "resourceslices", "devicetaintrules"
# kubeadm and the distributions that follow it label the static pods of the control plane so
_SCHEDULERS = "/api/v1/namespaces/kube-system/pods"
L = TypeVar("L", bound=Object)


async def read_devices(reader: BoundedReader, wanted: str, now: float) -> DeviceState:
    """wanted: the active policy's ``devices.quarantine``. now: by the clock of the API server."""
    served = await _served_versions(reader)
    slices = await _list(reader, served, SLICES, DeviceSlice)
    rules = await _list(reader, served, RULES, DeviceRule)
    if not slices and not rules:
        return DeviceState(wanted, served=served.get(RULES, ""), slices=slices, rules=rules)
    server = await reader.read("/version", ServerVersion)
    return DeviceState(
        wanted,
        server=server.git_version if isinstance(server, ServerVersion) else "",
        served=served.get(RULES, ""),
        slices=slices,
        rules=rules,
        schedulers=await reader.list(_SCHEDULERS, ControlPlanePod, {"labelSelector": f"component={SCHEDULER}"}),
        now=now,
    )


async def _served_versions(reader: BoundedReader) -> dict[str, str]:
    """The preferred API version of each resource of the group."""
    group = await reader.read(GROUP, ApiGroup)
    versions = [each.group_version for each in group.versions] if isinstance(group, ApiGroup) else []
    served: dict[str, str] = {}
    for version in versions:
        listed = await reader.read(f"/apis/{version}", ApiResources)
        for each in listed.resources if isinstance(listed, ApiResources) else ():
            served.setdefault(each.name, version)
    return served


async def _list(reader: BoundedReader, served: dict[str, str], resource: str, kind: type[L]) -> list[L] | ReadFailure:
    return await reader.list(f"/apis/{served[resource]}/{resource}", kind) if resource in served else []
