"""The attempts of a job's instances, from its status.

Each has a number, which only increases. Without a launcher, an instance that has moved or restarted alone is ahead of
the others (:mod:`muster_operator.plan.move`, :mod:`muster_operator.plan.instance_restart`), and during a rolling update
instances that are not replaced yet are behind.
"""

from collections.abc import Iterable, Mapping

from muster_operator.job.partition_api import PartitionEntry
from muster_operator.job.status_types import InstanceRestart, IPUJobStatus


def attempt_of(status: IPUJobStatus, instance: int) -> int:
    """The attempt that the instance should be in."""
    moves = status.instance_moves.get(str(instance), 0)
    return status.attempt + moves + last_restart(status, instance).count


def last_restart(status: IPUJobStatus, instance: int) -> InstanceRestart:
    """The latest restart of the instance alone; all 0 if there was none."""
    return status.instance_restarts.get(str(instance), InstanceRestart())


def moved_instances(status: IPUJobStatus) -> tuple[int, ...]:
    """Instances that move, or have moved, alone in this attempt: those of the last move."""
    move = status.last_move
    return move.instances if move is not None and move.attempt == status.attempt else ()


def has_restarted(status: IPUJobStatus, instance: int) -> bool:
    """Whether the instance's attempt has begun with a restart of this instance alone."""
    restart = last_restart(status, instance)
    return bool(restart.count) and restart.attempt == attempt_of(status, instance)


def former_attempts(status: IPUJobStatus, entries: Iterable[PartitionEntry]) -> Mapping[str, str]:
    """Earlier attempts whose pods and partitions may still be used, by instance, as in the labels. Those that a move or
    a restart of the instance alone has ended may not."""
    moved = moved_instances(status)
    return {
        str(entry.instance): str(entry.attempt)
        for entry in entries
        if entry.state != "deleting" and entry.instance not in moved
        if last_restart(status, entry.instance).attempt <= entry.attempt < attempt_of(status, entry.instance)
    }
