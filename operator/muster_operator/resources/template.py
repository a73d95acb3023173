"""What the workers' pod template says. It is the user's: read here, copied elsewhere, never changed in place."""

import hashlib
import json
from typing import Any

from muster_operator.job.types import IPUJob

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"


def pod_spec(job: IPUJob) -> dict[str, Any]:
    """What is null there is left open, as for the API server."""
    found = job.spec.workers.template.get("spec")
    return {key: value for key, value in found.items() if value is not None} if isinstance(found, dict) else {}


def pod_metadata(job: IPUJob, key: str) -> dict[str, str]:
    """key: ``labels`` or ``annotations``."""
    metadata = job.spec.workers.template.get("metadata")
    found = metadata.get(key) if isinstance(metadata, dict) else None
    return dict(found) if isinstance(found, dict) else {}


def main_container(job: IPUJob) -> dict[str, Any]:
    """The one that MPI processes run in: the one that kubectl takes by default, else the first (behaviour 18)."""
    containers: list[dict[str, Any]] = pod_spec(job)["containers"]
    wanted = pod_metadata(job, "annotations").get(DEFAULT_CONTAINER)
    return next((each for each in containers if each.get("name") == wanted), containers[0])


def digest(job: IPUJob) -> str:
    """Of the whole template, in the label ``muster.dev/template`` of every pod: a change shows, whoever saw it."""
    text = json.dumps(job.spec.workers.template, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
