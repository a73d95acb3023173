"""Which instances of a job without launcher are replaced after a change of its template, and when.

An instance is replaced as a whole and in its place, because its workers share a partition and pod names are a contract.
The surge instances that maxSurge allows follow the last index, each with its own partition, until all other instances
have the new template and are available. The pods hold the state: the digest of their template, and the attempt, which
increases with each change, so that a partition is reset once between old and new pods. Behaviour 51.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UnsetType

from muster_operator.job.pod_outcome import SUCCEEDED
from muster_operator.job.snapshot import JobPod
from muster_operator.job.types import IPUJob, RollingUpdate, instances


@dataclass(frozen=True)
class RolloutLimits:
    """Maximum number of instances above jobInstances, and of missing instances."""

    surge: int
    unavailable: int


@dataclass(frozen=True)
class InstanceState:
    """An instance. old: it has pods of another template that are not being deleted, and has not succeeded. available:
    all its workers are ready or have succeeded."""

    index: int
    old: bool
    available: bool


@dataclass(frozen=True)
class Rollout:
    """replace: instances whose pods are deleted now. extras: indices of surge instances. done: instances that need
    nothing more; available: including extras. limits: None while nothing needs to be replaced."""

    replace: frozenset[int] = frozenset()
    extras: frozenset[int] = frozenset()
    done: int = 0
    available: int = 0
    limits: RolloutLimits | None = None


def recreates_pods(job: IPUJob) -> bool:
    strategy = job.spec.workers.strategy
    return not isinstance(strategy, UnsetType) and strategy.type == "Recreate"


def rollout_limits(job: IPUJob) -> RolloutLimits:
    """The same rule as for a Deployment: a share of jobInstances, surge rounded up, unavailable rounded down; if both
    come to 0, one may be missing."""
    strategy, count = job.spec.workers.strategy, instances(job.spec)
    rolling = RollingUpdate()
    if not isinstance(strategy, UnsetType) and not isinstance(strategy.rolling_update, UnsetType):
        rolling = strategy.rolling_update
    surge = math.ceil(_share(rolling.max_surge, count))
    unavailable = math.floor(_share(rolling.max_unavailable, count))
    return RolloutLimits(surge, min(count, unavailable if surge or unavailable else 1))


def _share(bound: int | str, count: int) -> float:
    return int(bound.removesuffix("%")) * count / 100 if isinstance(bound, str) else bound


def observe_instance(index: int, there: Sequence[JobPod], workers: int, *, current: bool) -> InstanceState:
    """there: its pods that are not being deleted. workers: the number it should have. current: all of them have the
    current template."""
    whole = len(there) == workers
    succeeded = whole and all(pod.status.phase == SUCCEEDED for pod in there)
    return InstanceState(
        index,
        old=not succeeded and not current,
        available=whole and all(_works(pod) for pod in there),
    )


def _works(pod: JobPod) -> bool:
    unready = any(each.type == "Ready" and each.status != "True" for each in pod.status.conditions)
    return pod.status.phase == SUCCEEDED or (pod.status.phase == "Running" and not unready)


def plan_rollout(slots: Sequence[InstanceState], extras: Sequence[InstanceState], limits: RolloutLimits) -> Rollout:
    """slots: every wanted instance; extras: surge instances with pods.

    Replaces as many as maxUnavailable allows: first instances that are not available, then from the highest index down.
    A new instance that is not available (yet) counts against the limit, so a failing template stops the rollout.
    """
    old = [each for each in (*slots, *extras) if each.old]
    missing = sum(not each.available for each in slots)
    done = sum(each.available and not each.old for each in slots)
    available = sum(each.available for each in (*slots, *extras))
    if not any(each.old for each in slots) and not (extras and missing):
        return Rollout(done=done, available=available)
    late = sum(not each.available and not each.old for each in (*slots, *extras))
    budget = max(0, limits.unavailable + len(extras) - late)
    order = sorted(old, key=lambda each: (each.available, -each.index))
    wanted = min(limits.surge, sum(each.old for each in slots))
    return Rollout(
        replace=frozenset(each.index for each in order[:budget]),
        extras=frozenset(range(len(slots), len(slots) + wanted)) | {each.index for each in extras},
        done=done,
        available=available,
        limits=limits,
    )
