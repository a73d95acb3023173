"""Time limits of a job. Each is computed from times in its status, so a new leader continues with the same clock."""

from msgspec import UnsetType

from muster_kube.api import times
from muster_operator.job.types import IPUJob

WARNED_BEFORE_S = 300.0  # before the end of a session, or a tenth of its ttl if that is less


def deadline(job: IPUJob) -> float | None:
    """When a running job exceeds its deadline, in seconds since the epoch; None: never (behaviour 45)."""
    limit_s = job.spec.active_deadline_seconds
    return None if isinstance(limit_s, UnsetType) else _after(job.status.start_time, limit_s)


def expiry(job: IPUJob) -> float | None:
    """When a finished job must be deleted; None: never (behaviour 45)."""
    ttl_s = job.spec.ttl_seconds_after_finished
    return None if isinstance(ttl_s, UnsetType) else _after(job.status.completion_time, ttl_s)


def session_end(job: IPUJob) -> float | None:
    """When an interactive job that has run must end; None: not known yet (behaviour 46)."""
    session = job.spec.interactive
    return None if isinstance(session, UnsetType) else _after(job.status.first_running_time, session.ttl)


def session_warning(job: IPUJob) -> float | None:
    """When to warn the users of a session of its end."""
    session, end = job.spec.interactive, session_end(job)
    if end is None or isinstance(session, UnsetType):
        return None
    return end - min(WARNED_BEFORE_S, session.ttl / 10)


def instance_delay_s(job: IPUJob, instance: int, now: float, limit_s: float) -> float:
    """Seconds until an instance that restarts alone begins again; 0 if that is longer than any delay, limit_s, which
    means that the clock was set back."""
    restart = job.status.instance_restarts.get(str(instance))
    left_s = times.seconds(restart.start_time) - now if restart is not None else 0.0
    return left_s if 0 < left_s <= limit_s + 1 else 0.0


def next_s(now: float, *moments: float | None) -> float | None:
    """Seconds until the first of these moments that is still to come; None if there is none."""
    return min((moment - now for moment in moments if moment is not None and moment > now), default=None)


def _after(start: str | None, delay_s: float) -> float | None:
    at = times.seconds(start) if start else 0.0
    return at + delay_s if at else None
