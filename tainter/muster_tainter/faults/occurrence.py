"""Which of two occurrences of a check is the later one.

Agents count, so their numbers are compared with :func:`muster_kube.nodehealth.is_later`. The tainter's own sources
number by time, in seconds or milliseconds since the epoch: such numbers may lie far apart and still belong together.
"""

from muster_kube.nodehealth import CLOSING_GAP, OCCURRENCE_GAP, is_later
from muster_tainter.policy.recovery import SOURCE_CHECKS

REST = "*"  # component and reason of the fault that counts the rest; its check, if it counts those of all checks
LOST_CHECK = "muster"  # a fault of the tainter itself: the unknown reason of a taint whose record is lost

_NUMBERED_BY_TIME = SOURCE_CHECKS | {LOST_CHECK, REST}
_TIME_GAP = 1 << 37  # 4,000 years of seconds, less than to the year 9999 of a forged time; 4 years of milliseconds


def is_counted(check: str) -> bool:
    """Whether an agent counts the occurrences of ``check``."""
    return check not in _NUMBERED_BY_TIME


def is_jump(check: str, occurrence: int, last: int) -> bool:
    """Whether ``occurrence`` is so far above the ``last`` one that it does not belong to the same count."""
    return occurrence - last > (OCCURRENCE_GAP if is_counted(check) else _TIME_GAP)


def is_later_firing(check: str, occurrence: int, other: int) -> bool:
    return is_later(occurrence, other, CLOSING_GAP if is_counted(check) else _TIME_GAP)


def closes(check: str, closed: int, occurrence: int) -> bool:
    """Whether closing the number ``closed`` closes ``occurrence`` too."""
    return not is_later_firing(check, occurrence, closed)
