"""Which instances of a job without launcher are replaced when its template has changed, and when.

An instance is replaced as a whole, in its place: its workers share a partition, and names are a contract. The extra
ones that maxSurge allows stand behind the last index, each with a partition of its own, until all others are of the
changed template and work. What is to be known of it is on the pods: their template's digest, and the attempt, which
rises with each change, so that a partition is reset once between old pods and new ones. Behaviour 51.
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
    """Instances above jobInstances, and missing, at most."""

    surge: int
    unavailable: int


@dataclass(frozen=True)
class InstanceState:
    """An instance. old: it has pods of another template that are not on their way out, and has not succeeded.
    available: all its workers work, or have succeeded."""

    index: int
    old: bool
    available: bool


@dataclass(frozen=True)
class Rollout:
    """replace: instances whose pods go now. extras: indices that stand in. done, of: instances that need nothing more,
    and all; available: extras counted. limits: None while nothing is to be replaced."""

    replace: frozenset[int] = frozenset()
    extras: frozenset[int] = frozenset()
    done: int = 0
    available: int = 0
    limits: RolloutLimits | None = None


def recreates_pods(job: IPUJob) -> bool:
    strategy = job.spec.workers.strategy
    return not isinstance(strategy, UnsetType) and strategy.type == "Recreate"


def rollout_limits(job: IPUJob) -> RolloutLimits:
    """As a Deployment's: a share of jobInstances, surge rounded up, unavailable rounded down; where both come to 0 one
    may be missing."""
    strategy, count = job.spec.workers.strategy, instances(job.spec)
    rolling = RollingUpdate()
    if not isinstance(strategy, UnsetType) and not isinstance(strategy.rolling_update, UnsetType):
        rolling = strategy.rolling_update
    surge = math.ceil(_share(rolling.max_surge, count))
    unavailable = math.floor(_share(rolling.max_unavailable, count))
    return RolloutLimits(surge, min(count, unavailable if surge or unavailable else 1))


def _share(said: int | str, count: int) -> float:
    return int(said.removesuffix("%")) * count / 100 if isinstance(said, str) else said


def observe_instance(index: int, there: Sequence[JobPod], workers: int, *, current: bool) -> InstanceState:
    """there: its pods that are not on their way out. workers: how many it should have. current: all of them are of the
    template as it is now."""
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
    """slots: every instance that is wanted; extras: those that stand in and have pods.

    As many go as leave all but maxUnavailable at work, those first that do not work anyway, then the highest. One that
    is new and does not work (yet) counts against them: a template that fails stops there.
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
