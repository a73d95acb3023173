"""Reads the workers' pod template. It belongs to the user and is never modified in place."""

import hashlib
import json
from typing import Any

from muster_operator.job.types import IPUJob

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"


def pod_spec(job: IPUJob) -> dict[str, Any]:
    """The spec without null values, which count as absent, as in the API server."""
    found = job.spec.workers.template.get("spec")
    return {key: value for key, value in found.items() if value is not None} if isinstance(found, dict) else {}


def pod_metadata(job: IPUJob, key: str) -> dict[str, str]:
    """key: ``labels`` or ``annotations``."""
    metadata = job.spec.workers.template.get("metadata")
    found = metadata.get(key) if isinstance(metadata, dict) else None
    return dict(found) if isinstance(found, dict) else {}


def main_container(job: IPUJob) -> dict[str, Any]:
    """The container that MPI processes run in: kubectl's default container, otherwise the first (behaviour 18)."""
    containers: list[dict[str, Any]] = pod_spec(job)["containers"]
    wanted = pod_metadata(job, "annotations").get(DEFAULT_CONTAINER)
    return next((each for each in containers if each.get("name") == wanted), containers[0])


def digest(job: IPUJob) -> str:
    """Digest of the whole template, which each pod has as the label ``muster.dev/template``, so that a change is
    detected."""
    text = json.dumps(job.spec.workers.template, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
