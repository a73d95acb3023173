"""Assigns occurrence numbers to signs, based on the Node's annotation, so that a new leader assigns the same numbers.

A closed fault opens again only with a higher occurrence. A source that reads its lines again after a restart must not
take old lines for new occurrences. So open faults keep their number, and a line from before the end of a fault belongs
to that fault, whenever it is read.
"""

from muster_kube.api.times import seconds
from muster_tainter.faults.node_report import FaultKey
from muster_tainter.faults.record.node_record import NodeRecord


def last_ended(key: FaultKey, memory: NodeRecord) -> tuple[int, int]:
    """(highest number, time in milliseconds) of the recorded ends of ``key``; (0, 0) for none.

    A resolved fault that is held counts as ended.
    """
    number = at_ms = 0
    for closed in memory.closed:
        if closed.key == key:
            number, at_ms = max(number, closed.occurrence), max(at_ms, _ms(closed.closed_at))
    for fault in memory.open:
        if fault.key == key and fault.over:
            number, at_ms = max(number, fault.occurrence), max(at_ms, _ms(fault.over))
    return number, at_ms


def firing_number(key: FaultKey, at_ms: int, known: int, memory: NodeRecord) -> int:
    """The occurrence that a sign at ``at_ms`` belongs to; 0 if that has ended.

    known: the number that this process last reported for ``key``; 0: none
    """
    number, ended_ms = last_ended(key, memory)
    if known > number:
        return known
    for fault in memory.open:
        if fault.key == key and not fault.over and fault.occurrence > number:
            return fault.occurrence
    if at_ms <= max(number, ended_ms):
        return 0
    return at_ms


def _ms(text: str) -> int:
    return int(seconds(text) * 1000)
