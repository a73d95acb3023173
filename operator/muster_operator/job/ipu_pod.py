"""A pod that has IPUs by its annotation ``graphcore.ai/ipus``, and not by an IPUJob.

The annotation and the label can be changed on a running pod. The volumes cannot, so what was admitted stands in the
name of the ConfigMap of one of them: ``muster-ipus-<IPUs>-<token>``.
"""

import re
from collections.abc import Iterable

import msgspec

from muster_kube.api.objects import Api, OwnerReference
from muster_kube.api.pods import PodPlacement
from muster_operator.job import names
from muster_operator.job.snapshot import JobPod
from muster_operator.job.types import GROUP, KIND, IPUJob, IPUJobSpec, JobMetadata, Workers

ANNOTATION = "graphcore.ai/ipus"
VOLUME = "muster-ipus"
_CONFIG_NAME = re.compile(rf"{VOLUME}-([1-9][0-9]{{0,8}})-[0-9a-f]{{16}}", re.ASCII)


class SchedulingGate(Api, frozen=True):
    name: str


class ConfigMapVolume(Api, frozen=True):
    name: str = ""


class PodVolume(Api, frozen=True):
    """config_map: None for volumes of other kinds."""

    name: str
    config_map: ConfigMapVolume | None = None


class IpuPodSpec(PodPlacement, frozen=True):
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    volumes: tuple[PodVolume, ...] = ()


class IpuPod(JobPod, frozen=True):
    spec: IpuPodSpec = IpuPodSpec()


def config_map_name(ipus: int, token: str) -> str:
    """token: 16 hexadecimal digits."""
    return f"{VOLUME}-{ipus}-{token}"


def config_map_of(pod: IpuPod) -> str:
    """The name of the pod's ConfigMap; empty if admission did not give it one."""
    found = [each.config_map.name for each in pod.spec.volumes if each.name == VOLUME and each.config_map]
    return found[0] if found and _CONFIG_NAME.fullmatch(found[0]) else ""


def project_pod(pod: IpuPod) -> IpuPod:
    """Without the volumes and annotations that nothing here reads: the ``transform`` of a reflector."""
    volumes = tuple(each for each in pod.spec.volumes if each.name == VOLUME)
    kept = {key: value for key, value in pod.metadata.annotations.items() if key == names.PARTITION}
    return msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(pod.metadata, annotations=kept),
        spec=msgspec.structs.replace(pod.spec, volumes=volumes),
    )


def is_gated(pod: IpuPod) -> bool:
    """Whether the scheduler still leaves the pod alone because of its IPUs."""
    return any(gate.name == names.IPUS for gate in pod.spec.scheduling_gates)


def as_job(pod: IpuPod) -> IPUJob | None:
    """What requests of partitions take the pod for: a job of one instance with one worker, named ``pod/NAME``. None if
    admission did not give it IPUs, or if it is an IPUJob's, which has its partitions already."""
    match = _CONFIG_NAME.fullmatch(config_map_of(pod))
    if match is None or is_of_a_job(pod.metadata.owner_references):
        return None
    meta = pod.metadata
    return IPUJob(
        metadata=JobMetadata(
            name=f"{names.POD_PREFIX}{meta.name}",
            namespace=meta.namespace,
            uid=meta.uid,
            resource_version=meta.resource_version,
            creation_timestamp=meta.creation_timestamp,
            deletion_timestamp=meta.deletion_timestamp,
        ),
        spec=IPUJobSpec(
            job_instances=1,
            ipus_per_job_instance=match[1],
            workers_per_job_instance="1",
            workers=Workers(template={"spec": {"nodeSelector": pod.spec.node_selector}}),
        ),
    )


def is_of_a_job(owners: Iterable[OwnerReference]) -> bool:
    """Whether an IPUJob controls the pod with these owners."""
    return any(
        owner.controller and owner.kind == KIND and owner.api_version.startswith(f"{GROUP}/") for owner in owners
    )
