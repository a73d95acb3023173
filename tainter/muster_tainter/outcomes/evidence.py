"""What the test of a node's evidence takes and gives. evidence_tracker.py describes the test."""

import math
from dataclasses import dataclass

HOUR_S = 3600.0
WEEK_S = 7 * 24 * HOUR_S
YEAR_S = 365.25 * 24 * HOUR_S


@dataclass(frozen=True, slots=True)
class Attempt:
    """How one pod ended, or that it does not start.

    node, owner, namespace: an owner is identified by (namespace, owner). Two owners are independent witnesses only if
    their namespaces differ.
    pod: the pod's UID, which the API server chooses. Of an owner's pods that run on one node at a time, only one
    counts: the one that started first, and of several the one with the smallest UID, so nobody can choose it.
    kind: why it failed. Ignored if ``failed`` is false: a success is a success for all kinds.
    started: when the API server created the pod, in seconds. It must not be a time that a tenant can write.
    at: when it ended, or when it was seen not to start. Seconds of the same clock; the caller limits it to now.
    Raises ValueError for a time that is not finite, and for a failure without a kind.
    """

    node: str
    owner: str
    namespace: str
    kind: str
    failed: bool
    at: float
    started: float
    pod: str

    def __post_init__(self) -> None:
        if not (math.isfinite(self.at) and math.isfinite(self.started)):
            raise ValueError(f"times of pod {self.pod!r}: {self.started!r}, {self.at!r}: must be finite numbers")
        if self.failed and not self.kind:
            raise ValueError(f"pod {self.pod!r} failed without a kind: name one of the kinds of failures")


@dataclass(frozen=True, slots=True)
class EvidenceSettings:
    """host_kinds: no tenant can cause them; they may be proven from the pods of one owner.
    tenant_kinds: a tenant may cause them; they take pods of two namespaces. Failures of other kinds are not counted.
    false_alarms_per_node_year: bound on the expected number of verdicts per node and year without a cause, over all
    kinds together.
    round_s: how long a round waits for the ends of its pods (evidence_rounds.py).
    spacing_s: of a host kind, attempts on one node that end within this time count once.
    round_records, nodes: bounds on memory, over the fleet.
    Raises ValueError.
    """

    host_kinds: frozenset[str]
    tenant_kinds: frozenset[str]
    false_alarms_per_node_year: float = 0.01
    round_s: float = 6 * HOUR_S
    spacing_s: float = 10.0
    round_records: int = 50_000
    nodes: int = 20_000

    def __post_init__(self) -> None:
        if not self.host_kinds | self.tenant_kinds:
            raise ValueError("no kinds of failures: name at least one")
        if both := sorted(self.host_kinds & self.tenant_kinds):
            raise ValueError(f"kinds {both}: a kind is either of the host or of the tenant")
        for name, low, high in (
            ("false_alarms_per_node_year", 1e-9, 1.0),
            ("round_s", 1.0, WEEK_S),
            ("spacing_s", 0.0, HOUR_S),
            ("round_records", 100, 10_000_000),
            ("nodes", 1, 1_000_000),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name}: {value!r}: must be from {low:g} to {high:g}")

    @property
    def threshold(self) -> float:
        """A value at or above it is a proof. 1 / threshold: chance of a false one per node, kind and week."""
        kinds = len(self.host_kinds) + len(self.tenant_kinds)
        return max(kinds * YEAR_S / WEEK_S / self.false_alarms_per_node_year, 1.0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The evidence that ``node`` makes attempts fail with ``kind``.

    value: at least 0; proven means that it has reached ``threshold`` and, for a tenant's kind, with enough witnesses.
    attempts, failures, expected_rate: those counted on this node ``since``, and the share of them that would have
    failed on other nodes. since: time of the attempt with which the evidence begins to grow.
    witnesses: namespaces that add to the value. ``None`` where all evidence has gone.
    """

    node: str
    kind: str
    proven: bool
    value: float
    threshold: float
    attempts: int
    failures: int
    witnesses: int
    expected_rate: float
    since: float
