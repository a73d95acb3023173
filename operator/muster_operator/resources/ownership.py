"""How an object is marked as a job's: the owner that Kubernetes goes by, our labels, and the digest of its content."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from muster_kube.api.objects import Metadata
from muster_operator.job import names
from muster_operator.job.types import API_VERSION, KIND, IPUJob

CONTENT = "muster.dev/content"
Body = dict[str, Any]


def is_owned(metadata: Metadata, job: IPUJob) -> bool:
    """By the controlling owner's uid: labels can be anybody's, and a job of that name may have been another one."""
    return any(owner.controller and owner.uid == job.metadata.uid for owner in metadata.owner_references)


def labels(job: IPUJob) -> dict[str, str]:
    return {names.MANAGED_BY: names.MANAGER, names.JOB: job.metadata.name, names.JOB_UID: job.metadata.uid}


def owner_references(job: IPUJob) -> list[Body]:
    return [
        {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": job.metadata.name,
            "uid": job.metadata.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def build_owned(job: IPUJob, api_version: str, kind: str, name: str, content: Mapping[str, Any]) -> Body:
    """An object of ours with ``content`` beside its metadata, and the digest of that in the annotation CONTENT."""
    text = json.dumps(content, sort_keys=True)
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": job.metadata.namespace,
            "labels": labels(job),
            "annotations": {CONTENT: hashlib.blake2b(text.encode(), digest_size=8).hexdigest()},
            "ownerReferences": owner_references(job),
        },
        **content,
    }
