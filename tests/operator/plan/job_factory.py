"""IPUJobs, partitions and pods as values, written down shortly."""

from typing import Any

import msgspec

from muster_operator.job import names
from muster_operator.job.partition_api import PartitionEntry
from muster_operator.job.snapshot import JobPod
from muster_operator.job.status_types import IPUJobStatus
from muster_operator.job.types import FINALIZER, IPUJob, ipus_per_instance, workers_per_instance

NOW = 1_700_000_000.0
MPIRUN = {"command": ["mpirun", "-np", "2", "python3", "train.py"]}


def template(**spec: Any) -> dict[str, Any]:
    """One container called main, unless ``spec`` has others."""
    return {"spec": {"containers": [{"name": "main", "image": "poplar:3"}], **spec}}


def make_job(
    name: str = "train",
    namespace: str = "default",
    *,
    launcher: bool = True,
    instances: int = 1,
    workers: int = 1,
    ipus: int = 4,
    pods: dict[str, Any] | None = None,
    finalizers: tuple[str, ...] = (FINALIZER,),
    deleted: bool = False,
    status: IPUJobStatus | None = None,
    generation: int = 1,
    **spec: Any,
) -> IPUJob:
    """pods: the template; spec: more fields, as in YAML."""
    wanted: dict[str, Any] = {
        "jobInstances": instances,
        "ipusPerJobInstance": str(ipus),
        "workersPerJobInstance": str(workers),
        "workers": {"template": pods or template()},
        **({"launcher": MPIRUN} if launcher else {}),
        **spec,
    }
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": f"uid-{namespace}-{name}",
        "generation": generation,
        "finalizers": list(finalizers),
        **({"deletionTimestamp": "2023-11-14T22:13:20Z"} if deleted else {}),
    }
    job = msgspec.convert({"metadata": metadata, "spec": wanted}, IPUJob)
    return job if status is None else msgspec.structs.replace(job, status=status)


def make_entry(job: IPUJob, instance: int = 0, state: str = "active", **fields: Any) -> PartitionEntry:
    return msgspec.convert(
        {
            "job": job.metadata.uid,
            "namespace": job.metadata.namespace,
            "name": job.metadata.name,
            "instance": instance,
            "size": ipus_per_instance(job.spec),
            "gcds": workers_per_instance(job.spec),
            "controller": "10.21.21.129:8090",
            "selector": "ipunode=node1",
            "state": state,
            **fields,
        },
        PartitionEntry,
    )


def partition_of(job: IPUJob, instance: int = 0) -> str:
    return names.partition(job.metadata.namespace, job.metadata.name, instance)


def make_pod(
    job: IPUJob, name: str, phase: str = "Running", *, labels: dict[str, str] | None = None, **status: Any
) -> JobPod:
    """A pod of the job: ``<job>-worker-<n>`` or ``<job>-launcher``, of attempt 0."""
    is_launcher = name.endswith("-launcher")
    marks = {
        names.MANAGED_BY: names.MANAGER,
        names.JOB: job.metadata.name,
        names.JOB_UID: job.metadata.uid,
        names.ROLE: names.LAUNCHER if is_launcher else names.WORKER,
        names.ATTEMPT: "0",
        **({} if is_launcher else {names.INSTANCE: name.rpartition("-")[2]}),
        **(labels or {}),
    }
    owner = {
        "apiVersion": "graphcore.ai/v1alpha1",
        "kind": "IPUJob",
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
    }
    metadata = {
        "name": name,
        "namespace": job.metadata.namespace,
        "uid": f"pod-{name}",
        "labels": marks,
        "ownerReferences": [owner],
    }
    return msgspec.convert(
        {"metadata": metadata, "spec": {"nodeName": "node1"}, "status": {"phase": phase, **status}}, JobPod
    )


def ended_container(name: str = "main", exit_code: int = 1, **fields: Any) -> dict[str, Any]:
    return {"name": name, "state": {"terminated": {"exitCode": exit_code, **fields}}}
