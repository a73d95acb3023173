"""Suspends a Job (batch/v1) with a slow pod if its owner asks for that: its pods end, and a person can resume it.

Whoever creates a pod may name any Job of the namespace as its owner. So the Job itself has to ask, in its pod template.
"""

import logging

import msgspec

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, Conflict, NotFound
from muster_kube.api.objects import Api, Metadata
from muster_tainter.events.affected_pods import controller_of, is_middleman
from muster_tainter.step_times.owner_policy import OnStraggler, owner_policy

log = logging.getLogger(__name__)

_GONE = "its Job is gone"


class _TemplateMetadata(Api, frozen=True):
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class _Template(Api, frozen=True):
    metadata: _TemplateMetadata = _TemplateMetadata()


class _JobSpec(Api, frozen=True):
    suspend: bool = False
    template: _Template = _Template()


class _Job(Api, frozen=True):
    metadata: Metadata
    spec: _JobSpec = _JobSpec()


async def suspend_job(client: KubeClient, pod: Metadata) -> str:
    """Why the pod's Job was not suspended; empty if it was. Raises ApiError if it cannot be read."""
    owner = controller_of(pod)
    if owner is None or owner.kind != "Job" or not is_middleman(owner):
        return "only a Job can be suspended"
    path = f"/apis/{owner.api_version}/namespaces/{pod.namespace}/jobs/{owner.name}"
    try:
        job = await client.get(path, type=_Job)
    except NotFound:
        return _GONE
    if job.metadata.uid != owner.uid:
        return _GONE
    above = controller_of(job.metadata)
    if above is not None and (above.api_version.partition("/")[0], above.kind) != ("batch", "CronJob"):
        return f"its Job belongs to {above.kind} {above.name}, which would resume it"
    if owner_policy(job.spec.template.metadata.annotations)[0] is not OnStraggler.STOP:
        return "the pod template of its Job does not ask for it"
    try:
        job = await client.patch(path, {"metadata": {"uid": owner.uid}, "spec": {"suspend": True}}, type=_Job)
    except (Conflict, NotFound):
        return _GONE
    except ApiError as error:  # such as 403 without the right
        return f"{error.reason}: {error.message}"
    if not job.spec.suspend:
        return "this API server cannot suspend Jobs (Kubernetes 1.22 can)"
    log.info("suspended Job %s/%s", pod.namespace, owner.name)
    return ""
