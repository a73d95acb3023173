"""What is seen of a job, and what is decided by it, written down shortly."""

from typing import Any

import msgspec
from tests.operator.plan.job_factory import (
    NOW,
    make_entry,
    make_pod,
    partition_of,
)

from muster_operator.job import names
from muster_operator.job.partition_api import PartitionEntry
from muster_operator.job.snapshot import (
    Action,
    CreateObject,
    JobPlan,
    JobPod,
    JobSetup,
    OwnedObject,
    RecordEvent,
    Snapshot,
)
from muster_operator.job.types import IPUJob
from muster_operator.plan.phase_table import plan
from muster_operator.plan.workload import small_objects


def entries(job: IPUJob, *instances: int, **fields: Any) -> dict[str, PartitionEntry]:
    return {partition_of(job, number): make_entry(job, number, **fields) for number in instances}


def objects(job: IPUJob) -> dict[tuple[str, str], OwnedObject]:
    return {(body["kind"], body["metadata"]["name"]): msgspec.convert(body, OwnedObject) for body in small_objects(job)}


def workers(job: IPUJob, *phases: str) -> dict[str, JobPod]:
    """One for each phase; None of the labels but the instance differ, as for one worker an instance."""
    return {
        names.worker_pod(job.metadata.name, number): make_pod(job, names.worker_pod(job.metadata.name, number), phase)
        for number, phase in enumerate(phases)
    }


def launcher(job: IPUJob, phase: str = "Running", **status: Any) -> dict[str, JobPod]:
    name = names.launcher_pod(job.metadata.name)
    return {name: make_pod(job, name, phase, **status)}


def decide(job: IPUJob, setup: JobSetup | None = None, now: float = NOW, **seen: Any) -> JobPlan:
    return plan(job, Snapshot(now=now, **seen), setup or JobSetup())


def created_objects(decided: JobPlan) -> list[str]:
    return [f"{each.kind} {each.name}" for each in decided.actions if isinstance(each, CreateObject)]


def last_message(decided: JobPlan) -> str:
    assert decided.status is not None
    return decided.status.last_message


def printed_columns(decided: JobPlan) -> tuple[str, int, int, str]:
    """The columns of `kubectl get ipujobs`."""
    found = decided.status
    assert found is not None
    return found.launcher_status, found.current_replicas, found.desired_replicas, found.last_message


def with_status(job: IPUJob, decided: JobPlan) -> IPUJob:
    assert decided.status is not None
    return msgspec.structs.replace(job, status=decided.status)


def running_snapshot(job: IPUJob, *phases: str) -> dict[str, Any]:
    """What is seen of a job all of whose things are there; the phases of its workers."""
    count = len(phases)
    is_launched = not isinstance(job.spec.launcher, msgspec.UnsetType)
    return {
        "entries": entries(job, *range(count)),
        "objects": objects(job) if is_launched else {},
        "pods": workers(job, *phases) | (launcher(job) if is_launched else {}),
    }


def actions_but_events(decided: JobPlan) -> tuple[Action, ...]:
    return tuple(each for each in decided.actions if not isinstance(each, RecordEvent))
