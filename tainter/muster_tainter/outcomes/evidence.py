"""What the test of a node's evidence takes and gives. evidence_tracker.py describes the test."""

import math
from dataclasses import dataclass

HOUR_S = 3600.0
WEEK_S = 7 * 24 * HOUR_S
YEAR_S = 365.25 * 24 * HOUR_S


@dataclass(frozen=True, slots=True)
class Attempt:
    """How one pod ended, or that it does not start.

    node, owner, namespace: an owner is identified by (namespace, owner). Owners of one namespace are not independent
    witnesses: whoever may create pods there can name owners at will.
    pod: the pod's UID, which the API server chooses. Of an owner's pods that run on one node at a time, only one
    counts: the one that started first, and of several the one with the smallest UID. So its result does not matter.
    kind: why it failed. Ignored if ``failed`` is false.
    passed: the host kinds for which it is a success, as it got past them: a pod without a device says nothing about
    the allocation of devices. For the tenants' kinds, a pod that did not fail is a success.
    at: when it ended, or was seen not to start. Seconds of the clock of ``started``; the caller limits it to now.
    started: when the API server created the pod. It must not be a time that a tenant can write.
    Raises ValueError for a time that is not finite, and for an empty node or kind.
    """

    node: str
    owner: str
    namespace: str
    kind: str
    failed: bool
    at: float
    started: float
    pod: str
    passed: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not (math.isfinite(self.at) and math.isfinite(self.started)):
            raise ValueError(f"pod {self.pod!r}: started {self.started!r}, at {self.at!r}: times must be finite")
        if not self.node or (self.failed and not self.kind):
            raise ValueError(f"pod {self.pod!r}: node {self.node!r}, kind {self.kind!r}: must not be empty")


@dataclass(frozen=True, slots=True)
class EvidenceSettings:
    """host_kinds: no tenant can cause them; they may be proven from the pods of one owner.
    tenant_kinds: a tenant may cause them; the proof must hold without the pods of any one namespace.
    Failures of other kinds are ignored.
    false_alarms_per_node_year: bound on the expected number of proofs per node and year without a cause, all kinds
    together.
    round_s: how long a round waits for the ends of its pods (evidence_rounds.py).
    spacing_s: of a host kind, failures on a node that are closer than this count once.
    records, nodes: bounds on memory: pods in open rounds, and nodes.
    Raises ValueError.
    """

    host_kinds: frozenset[str]
    tenant_kinds: frozenset[str]
    false_alarms_per_node_year: float = 0.01
    round_s: float = 6 * HOUR_S
    spacing_s: float = 10.0
    records: int = 50_000
    nodes: int = 20_000

    def __post_init__(self) -> None:
        if not self.host_kinds | self.tenant_kinds:
            raise ValueError("host_kinds and tenant_kinds are empty: name at least one kind of failure")
        if both := sorted(self.host_kinds & self.tenant_kinds):
            raise ValueError(f"host_kinds and tenant_kinds: both have {both}: a kind belongs to one of them")
        for name, low, high in (
            ("false_alarms_per_node_year", 1e-9, 1.0),
            ("round_s", 1.0, WEEK_S),
            ("spacing_s", 0.0, HOUR_S),
            ("records", 100, 10_000_000),
            ("nodes", 1, 1_000_000),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name}: {value!r}: must be from {low:g} to {high:g}")

    @property
    def threshold(self) -> float:
        """A value that reaches it is a proof. Its inverse: expected number of false ones per node, kind and week."""
        kinds = len(self.host_kinds) + len(self.tenant_kinds)
        return kinds * YEAR_S / WEEK_S / self.false_alarms_per_node_year


@dataclass(frozen=True, slots=True)
class Verdict:
    """The evidence that attempts on ``node`` fail with ``kind`` more often than they should.

    proven: ``value``, at least 0, has reached ``threshold``. For a tenant's kind it is what remains of the value
    without the namespace that adds most.
    attempts, failures: those counted on this node ``since`` the evidence began to grow.
    expected_rate: the share of these attempts that would have failed, and as early, on other nodes.
    namespaces: of the pods of these failures; at most 8 are counted.
    """

    node: str
    kind: str
    proven: bool
    value: float
    threshold: float
    attempts: int
    failures: int
    namespaces: int
    expected_rate: float
    since: float
