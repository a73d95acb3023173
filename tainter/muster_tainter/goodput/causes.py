"""What an accelerator-hour is booked to. Words that ``muster simulate`` also uses mean the same there."""

from enum import StrEnum


class Side(StrEnum):
    """WORK: a pod held the accelerator. NODE: no pod did."""

    WORK = "work"
    NODE = "node"


class Cause(StrEnum):
    """GOODPUT: work that was kept. OVERHEAD: starts of pods. The others are lost, or idle:

    FAULT: a fault of the node, or a node that is not Ready. INCIDENT: a fault that several nodes had at the same time.
    DRAIN: an eviction, by Muster or from a cordoned node. PREEMPTION: the scheduler made room for other pods.
    USER: the pod failed by itself, or its owner deleted it. UNKNOWN: nothing shows why.
    TEST: no finding is left, but the node is not proved yet. HOLD: proved and held down. CORDON: a person keeps pods
    off. SPARE: kept free for faults. IDLE: free, whether or not a job waits.
    """

    GOODPUT = "goodput"
    OVERHEAD = "overhead"
    FAULT = "fault"
    INCIDENT = "incident"
    DRAIN = "drain"
    PREEMPTION = "preemption"
    USER = "user"
    UNKNOWN = "unknown"
    TEST = "test"
    HOLD = "hold"
    CORDON = "cordon"
    SPARE = "spare"
    IDLE = "idle"


OF_WORK = (
    Cause.GOODPUT, Cause.OVERHEAD, Cause.FAULT, Cause.INCIDENT, Cause.DRAIN, Cause.PREEMPTION, Cause.USER,
    Cause.UNKNOWN,
)  # fmt: skip
OF_NODES = (Cause.FAULT, Cause.INCIDENT, Cause.TEST, Cause.HOLD, Cause.CORDON, Cause.SPARE, Cause.IDLE, Cause.UNKNOWN)
LOST = tuple(cause for cause in Cause if cause not in (Cause.GOODPUT, Cause.OVERHEAD, Cause.SPARE, Cause.IDLE))
INTERRUPTS = (Cause.FAULT, Cause.INCIDENT, Cause.DRAIN, Cause.PREEMPTION)
"""Ends of pods that count as interruptions of their job: not its own doing."""


class Via(StrEnum):
    """How the cause of a pod's end is known. NODE: from its own node. PEER: another pod of its owner ended for this
    cause at the same time; owners are the tenant's word. OWN: from the pod's own end."""

    NODE = "node"
    PEER = "peer"
    OWN = "own"
