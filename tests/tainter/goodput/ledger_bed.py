"""Pods and nodes as the ledger sees them, and sums of what it booked."""

from collections import Counter
from typing import Any

from muster_tainter.goodput.books import Figure, split_account
from muster_tainter.goodput.causes import Cause, Side
from muster_tainter.goodput.ledger import Ledger
from muster_tainter.goodput.observed_node import ObservedNode, Outage
from muster_tainter.goodput.pods.attribution import FaultSpan, NodeEvidence
from muster_tainter.goodput.pods.pod_facts import End, PodFacts

HOUR = 3600.0
START = 1_800_000_000.0 // HOUR * HOUR
NEVER = float("inf")


def pod(uid: str = "p1", *, node: str = "n1", devices: int = 8, bound: float = START, **fields: Any) -> PodFacts:
    values: dict[str, Any] = {
        "namespace": "team-a", "gang": "", "on_node": True, "service": False, "checkpoint": 0.0, "started": 0.0,
        "ended": 0.0, "end": End.NONE, "why": "",
    } | fields  # fmt: skip
    return PodFacts(uid=uid, node=node, devices=devices, bound=bound, **values)


def node(*spans: FaultSpan, state: Cause = Cause.IDLE, tainted: float = 0.0, capacity: int = 8, **more: Any) -> Any:
    evidence = NodeEvidence(spans, tainted, more.get("cordoned", False), more.get("lost", False))
    outage = Outage(spans[0].began, 0.0, spans[0].reason) if spans and spans[0].until == NEVER else None
    return ObservedNode(0, capacity, state, evidence, outage)


def fault(began: float, until: float = NEVER, *, incident: bool = False) -> FaultSpan:
    return FaultSpan(began, until, incident, "Xid79")


def ledger(since: float = START, resumed_from: float = 0.0) -> Ledger:
    made = Ledger(HOUR, since, resumed_from)
    made.books.place("pool", "H100")
    made.books.team("team-a")
    return made


def advance(books: Ledger, now: float) -> None:
    for _ in books.advance(now):
        pass


def booked(books: Ledger, side: Side = Side.WORK) -> Counter[Cause]:
    """Accelerator-seconds by cause, of all places."""
    total: Counter[Cause] = Counter()
    for bucket in books.books.buckets():
        for row in bucket.rows.values():
            for name, value in row.items():
                parts = split_account(name)
                if parts is not None and parts[0] is side:
                    total[parts[1]] += value
    return Counter({cause: round(value, 3) for cause, value in total.items() if value > 0.0005})


def figure(books: Ledger, name: str) -> float:
    return sum(row.get(name, 0.0) for bucket in books.books.buckets() for row in bucket.rows.values())


def interruptions(books: Ledger) -> dict[str, float]:
    return {cause: number for cause in Cause if (number := figure(books, Figure.INTERRUPTIONS + cause))}
