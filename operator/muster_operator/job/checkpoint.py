"""How a job saves its state before it moves: by a hook of its pods, which their kubelets carry out."""

from typing import Any

from msgspec import UnsetType

from muster_operator.job.types import Checkpoint, HealthPolicy, IPUJob


def hook(job: IPUJob) -> dict[str, Any] | None:
    """The ``lifecycle`` of a container whose state is to be saved before it ends: the kubelet carries it out within the
    pod's grace period, whether an operator lives or not. None: SIGTERM alone, which every pod gets."""
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
    # one of five names; SIGTERM would follow at once if this ended before the process does
    send = f"kill -s {checkpoint.signal.removeprefix('SIG')} 1"
    return ["/bin/sh", "-c", f"{send}; while kill -0 1 2>/dev/null; do sleep 1; done"]


def policy_of(job: IPUJob) -> HealthPolicy:
    return HealthPolicy() if isinstance(job.spec.health_policy, UnsetType) else job.spec.health_policy


def grace_s(job: IPUJob) -> int | None:
    said = policy_of(job).grace_period_seconds
    return None if isinstance(said, UnsetType) else said
