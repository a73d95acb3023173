"""Saves the state of a job before it moves, through a preStop hook that the kubelet runs."""

from typing import Any

from msgspec import UnsetType

from muster_operator.job.types import Checkpoint, HealthPolicy, IPUJob


def hook(job: IPUJob) -> dict[str, Any] | None:
    """The ``lifecycle`` of a container whose state must be saved before it ends. The kubelet runs it within the pod's
    grace period, even if no operator runs. None: only SIGTERM, which every pod gets."""
    policy = policy_of(job)
    if policy.on_fault != "Move" or isinstance(policy.checkpoint, UnsetType):
        return None
    words = _words(policy.checkpoint)
    return {"preStop": {"exec": {"command": words}}} if words else None


def _words(checkpoint: Checkpoint) -> list[str]:
    if not isinstance(checkpoint.command, UnsetType):
        return list(checkpoint.command)
    if isinstance(checkpoint.signal, UnsetType) or checkpoint.signal == "SIGTERM":
        return []
    # the signal is one of five names; SIGTERM would follow at once if this command ended before the process does
    send = f"kill -s {checkpoint.signal.removeprefix('SIG')} 1"
    return ["/bin/sh", "-c", f"{send}; while kill -0 1 2>/dev/null; do sleep 1; done"]


def policy_of(job: IPUJob) -> HealthPolicy:
    return HealthPolicy() if isinstance(job.spec.health_policy, UnsetType) else job.spec.health_policy


def grace_s(job: IPUJob) -> int | None:
    seconds = policy_of(job).grace_period_seconds
    return None if isinstance(seconds, UnsetType) else seconds
