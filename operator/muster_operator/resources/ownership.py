"""Marks objects as a job's: owner reference, labels, and a digest of the content."""

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
    """Checks the uid of the controlling owner: anyone can set labels, and an earlier job may have had the same name."""
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
    """An object of the operator with ``content`` beside its metadata, and a digest of it in the annotation CONTENT."""
    metadata = {"name": name, "namespace": job.metadata.namespace, "labels": labels(job)}
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": metadata | {"annotations": annotate_content(content), "ownerReferences": owner_references(job)},
        **content,
    }


def annotate_content(content: Mapping[str, Any]) -> dict[str, str]:
    text = json.dumps(content, sort_keys=True)
    return {CONTENT: hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}
