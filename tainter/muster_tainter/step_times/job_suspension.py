"""Suspends the job of a slow pod if its owner asks for that: its pods end, and a person can resume it.

Whoever creates a pod may name any object of the namespace as its owner. So the job itself has to ask: in its
annotations, in a Job's pod template, or in an IPUJob's healthPolicy. The policy names the kinds that may be suspended.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, Conflict, NotFound
from muster_kube.api.objects import Api, Metadata, OwnerReference
from muster_tainter.events.affected_pods import controller_of, is_path_safe
from muster_tainter.step_times.owner_policy import OnStraggler, owner_policy

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobKind:
    """field: the path to ``suspend`` below ``spec``; None: only read, on the way to its owner. through: kinds that are
    between its pods and it, besides Job. source: of the field's name."""

    name: str
    group: str
    plural: str
    field: tuple[str, ...] | None
    source: str
    through: tuple[str, ...] = ()


KINDS = {
    (each.group, each.name): each
    for each in (
        JobKind("Job", "batch", "jobs", ("suspend",), "Kubernetes, batch/v1, JobSpec"),
        JobKind("JobSet", "jobset.x-k8s.io", "jobsets", ("suspend",), "JobSet v1alpha2, JobSetSpec"),
        JobKind(
            "TrainJob", "trainer.kubeflow.org", "trainjobs", ("suspend",),
            "Kubeflow Trainer v1alpha1, TrainJobSpec", through=("JobSet",),
        ),
        JobKind(
            "PyTorchJob", "kubeflow.org", "pytorchjobs", ("runPolicy", "suspend"),
            "Kubeflow Training Operator v1, RunPolicy",
        ),
        JobKind("MPIJob", "kubeflow.org", "mpijobs", ("runPolicy", "suspend"), "MPI Operator v2beta1, RunPolicy"),
        JobKind("RayJob", "ray.io", "rayjobs", ("suspend",), "KubeRay v1, RayJobSpec", through=("RayCluster",)),
        JobKind("RayCluster", "ray.io", "rayclusters", None, ""),
        JobKind("IPUJob", "graphcore.ai", "ipujobs", ("suspend",), "Muster's CustomResourceDefinition"),
    )
}  # fmt: skip

DEPTH = 4  # pod, Job, JobSet, TrainJob
_CRON_JOB = ("batch", "CronJob")
_GONE = "its job is gone"


class _TemplateMetadata(Api, frozen=True):
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class _Template(Api, frozen=True):
    metadata: _TemplateMetadata = _TemplateMetadata()


class _RunPolicy(Api, frozen=True):
    suspend: bool | None = None


class _HealthPolicy(Api, frozen=True):
    on_straggler: str = ""


class _JobSpec(Api, frozen=True):
    suspend: bool | None = None
    run_policy: _RunPolicy = _RunPolicy()
    template: _Template = _Template()
    health_policy: _HealthPolicy = _HealthPolicy()


class _Job(Api, frozen=True):
    metadata: Metadata
    spec: _JobSpec = _JobSpec()


@dataclass(frozen=True)
class _Found:
    kind: JobKind
    path: str
    job: _Job


class _Stays(Exception):
    """The job is not suspended; the message says why."""


async def suspend_job(client: KubeClient, pod: Metadata, kinds: Collection[str]) -> str:
    """Why the pod's job was not suspended; empty if it was. kinds: names that the policy allows.

    Raises ApiError if an owner cannot be read.
    """
    try:
        top = await _outermost(client, pod, kinds)
        await _suspend(client, top, kinds)
    except _Stays as why:
        return str(why)
    log.info("suspended %s %s/%s", top.kind.name, pod.namespace, top.job.metadata.name)
    return ""


async def _outermost(client: KubeClient, pod: Metadata, kinds: Collection[str]) -> _Found:
    """The object that nothing else would resume."""
    readable = {"Job", *kinds, *(each for kind in KINDS.values() if kind.name in kinds for each in kind.through)}
    owner, below = controller_of(pod), "pod"
    for _ in range(DEPTH):
        if owner is None:
            raise _Stays("it belongs to no job")
        kind = _known(owner)
        if kind is None or kind.name not in readable:
            belongs = f"its {below} belongs to {owner.kind} {owner.name}"
            raise _Stays(f"{belongs}, which the policy does not allow to suspend (sources.stepTimes.suspend)")
        path = f"/apis/{owner.api_version}/namespaces/{pod.namespace}/{kind.plural}/{owner.name}"
        try:
            job = await client.get(path, type=_Job)
        except NotFound:
            raise _Stays(_GONE) from None
        if job.metadata.uid != owner.uid:
            raise _Stays(_GONE)
        above = controller_of(job.metadata)
        if above is None or (above.api_version.partition("/")[0], above.kind) == _CRON_JOB:
            return _Found(kind, path, job)
        owner, below = above, owner.kind
    raise _Stays(f"it has more than {DEPTH} owners, one above the other")


async def _suspend(client: KubeClient, top: _Found, kinds: Collection[str]) -> None:
    if top.kind.field is None or top.kind.name not in kinds:
        raise _Stays(f"the policy does not allow to suspend a {top.kind.name} (sources.stepTimes.suspend)")
    if not _asks(top):
        raise _Stays(f"the {top.kind.name} itself does not ask for it in its annotations")
    value: dict[str, object] | bool = True
    for key in reversed(top.kind.field):
        value = {key: value}
    try:
        job = await client.patch(top.path, {"metadata": {"uid": top.job.metadata.uid}, "spec": value}, type=_Job)
    except (Conflict, NotFound):
        raise _Stays(_GONE) from None
    except ApiError as error:  # such as 403 without the right
        raise _Stays(f"{error.reason}: {error.message}") from None
    if not (job.spec.run_policy if len(top.kind.field) > 1 else job.spec).suspend:
        raise _Stays(f"this cluster cannot suspend a {top.kind.name}: expected a version with spec.suspend")


def _known(owner: OwnerReference) -> JobKind | None:
    return KINDS.get((owner.api_version.partition("/")[0], owner.kind)) if is_path_safe(owner) else None


def _asks(top: _Found) -> bool:
    spec = top.job.spec
    if top.kind.name == "IPUJob" and spec.health_policy.on_straggler == OnStraggler.STOP:
        return True
    given = [top.job.metadata.annotations]
    if top.kind.name == "Job":
        given.append(spec.template.metadata.annotations)
    return any(owner_policy(each)[0] is OnStraggler.STOP for each in given)
