"""Whose attempt a pod is: its controller, from the pod's own metadata. No right on any other kind is needed.

Everything here is the tenant's word: whoever can create a pod chooses its labels and owner references. So an
owner counts only together with the pod's namespace, which the API server guarantees. Within its namespace a tenant can
make up any number of owners.
"""

import sys

from muster_kube.api.objects import Metadata, OwnerReference

# labels that divide a job into roles, whose pods differ: Kubeflow's trainer, KubeRay
_ROLES = ("training.kubeflow.org/replica-type", "ray.io/group")
# the pods of a JobSet's replicated job belong to several Jobs of one template
_JOB_SET = "jobset.sigs.k8s.io/jobset-name"
_REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"


def owner_of(meta: Metadata) -> str:
    """The owner in whose pods nodes are compared: a controller and a role in its job. Empty: a static pod, which its
    node has created.

    Runs of one schedule or template are different owners: their programs may differ, and a user's retries go to the
    node that the last one has left free.
    """
    controller = _controller(meta)
    if controller is None:
        return sys.intern(f"Pod/{meta.name}")
    if controller.kind == "Node":
        return ""
    labels = meta.labels
    job_set = labels.get(_JOB_SET, "") if controller.kind == "Job" else ""
    if job_set:
        return sys.intern(f"JobSet/{job_set}/{labels.get(_REPLICATED_JOB, '')}")
    role = "".join(f"/{labels[key]}" for key in _ROLES if key in labels)
    return sys.intern(f"{controller.kind}/{controller.name}{role}/{controller.uid}")


def _controller(meta: Metadata) -> OwnerReference | None:
    owners = meta.owner_references
    return next((owner for owner in owners if owner.controller), owners[0] if owners else None)
