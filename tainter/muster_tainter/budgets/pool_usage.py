"""Counts how much of a pool's budget is used, and whether one more node may be tainted. Which nodes are counted, and
when, is up to :mod:`muster_tainter.budgets.allocator`.

A pool's failure domains are the values of its domain label among its nodes. Nodes without that label form one more
domain, ``""``, with the same limits: what they share is unknown, so the worst case is assumed.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from muster_kube.api.objects import Node
from muster_tainter.policy.budgets import Budget
from muster_tainter.policy.pools import Pool
from muster_tainter.policy.rules import SPARE_KEY
from muster_tainter.policy.sections.heavy_checks import AtOnce

What = Literal["tainted", "perDomain", "healthyPerDomain", "rate", "unknown"]

_KEEPS_WORK_OFF = ("NoSchedule", "NoExecute")


class BudgetedNode(NamedTuple):
    """A node as budgets see it.

    pools:      (pool, value of the pool's domain label or "") of every pool that selects it
    blocked:    it has a NoSchedule or NoExecute taint, from any source, except that of a spare, which is at hand
    ours:       the node record holds taints, even if somebody has just removed them by mistake
    tainted_at: seconds since the epoch when it last got its first taint of ours, which may be gone since; 0: never
    """

    pools: tuple[tuple[str, str], ...] = ()
    ready: bool = True
    schedulable: bool = True
    blocked: bool = False
    ours: bool = False
    tainted_at: float = 0.0

    @property
    def healthy(self) -> bool:
        return self.ready and self.schedulable and not self.blocked


def budgeted_node(node: Node, pools: Iterable[Pool], *, ours: bool, tainted_at: float) -> BudgetedNode:
    """ours, tainted_at: from the node record. A node without a Ready condition counts as not ready."""
    labels = node.metadata.labels
    return BudgetedNode(
        pools=tuple((pool.name, pool.domain_of(labels)) for pool in pools if pool.selector.chooses(labels)),
        ready=any(condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions),
        schedulable=not node.spec.unschedulable,
        blocked=any(taint.effect in _KEEPS_WORK_OFF for taint in node.spec.taints if taint.key != SPARE_KEY),
        ours=ours,
        tainted_at=tainted_at,
    )


class Shortage(NamedTuple):
    """Why a node may not be tainted now.

    label:    the pool's domain label, domain: its value, for a limit on one domain
    used:     number of nodes; healthy ones for healthyPerDomain, else tainted ones
    limit:    the minimum for healthyPerDomain, else the maximum; ``share`` of ``nodes``
    within:   seconds, for a rate; for_worse: there is room, but it is reserved for more severe nodes that wait
    """

    pool: str
    what: What
    used: int
    limit: int
    share: AtOnce
    nodes: int
    label: str = ""
    domain: str = ""
    within: float = 0.0
    for_worse: bool = False

    @property
    def reason(self) -> str:
        """A message that begins with ``budget``. Equal figures give equal text."""
        if self.for_worse:
            return (
                f"budget: pool {self.pool}: the room left ({self.what} {self.share}) is reserved for nodes with more "
                "severe faults"
            )
        share = "" if self.share.percent is None else f" ({self.share} of {self.nodes})"
        count = f"{self.used} of {self.limit} nodes"
        match self.what:
            case "tainted":
                return f"budget: pool {self.pool} has {count} tainted{share}"
            case "perDomain":
                return f"budget: pool {self.pool} has {count} {self._where} tainted{share}"
            case "healthyPerDomain":
                return (
                    f"budget: pool {self.pool} has {self.used} healthy nodes {self._where}, "
                    f"at least {self.limit} must stay healthy{share}"
                )
            case "rate":
                return f"budget: pool {self.pool} had {count} newly tainted within {self.within:g} s{share}"
            case "unknown":
                return "budget: the node and its pools are not known yet"

    @property
    def _where(self) -> str:
        if self.domain:
            return f"in {self.label}={self.domain}"
        return f"without {self.label}" if self.label else "in total"


class BudgetUsage(NamedTuple):
    """One row for display. limit: None for no limit; left: how many more nodes fit; waiting: withheld nodes."""

    pool: str
    domain: str
    what: What
    used: int
    limit: int | None
    left: int | None
    waiting: int


class _Domain:
    __slots__ = ("healthy", "nodes", "taken", "waiting")

    def __init__(self) -> None:
        self.nodes = self.taken = self.healthy = self.waiting = 0


class PoolUsage:
    """The counters of one pool. stamps: sorted times at which its nodes without a reservation were last tainted."""

    __slots__ = ("budget", "domains", "label", "name", "nodes", "promised", "stamps", "taken", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.label = ""
        self.budget = Budget()
        self.nodes = self.taken = self.promised = self.waiting = 0
        self.stamps: list[float] = []
        self.domains: dict[str, _Domain] = {}

    def add(self, domain: str, standing: BudgetedNode, held: bool) -> None:
        """held: a place is reserved for the node, whether or not its write succeeds."""
        if domain not in self.domains:
            self.domains[domain] = _Domain()
        self._count(domain, standing, held, 1)

    def remove(self, domain: str, standing: BudgetedNode, held: bool) -> None:
        """Undo ``add`` with the same values."""
        self._count(domain, standing, held, -1)
        if not self.domains[domain].nodes:
            del self.domains[domain]

    def change(self, domain: str, standing: BudgetedNode, held: bool) -> None:
        """Mark the place of a counted node as reserved, or no longer reserved."""
        self._count(domain, standing, not held, -1)
        self._count(domain, standing, held, 1)

    def add_waiting(self, domain: str, sign: int) -> None:
        self.waiting += sign
        self.domains[domain].waiting += sign

    def _count(self, domain: str, standing: BudgetedNode, held: bool, sign: int) -> None:
        part = self.domains[domain]
        self.nodes += sign
        part.nodes += sign
        if standing.ours or held:
            self.taken += sign
            part.taken += sign
        if standing.healthy and not held:
            part.healthy += sign
        if held and not standing.ours:
            self.promised += sign  # counts as tainted now: its time is not written yet
        elif standing.tainted_at and sign == 1:
            insort(self.stamps, standing.tainted_at)
        elif standing.tainted_at:
            del self.stamps[bisect_left(self.stamps, standing.tainted_at)]

    def _window(self, now: float) -> tuple[int, int]:
        """The stamps less than ``within`` away from now, including future ones (the clock was set back)."""
        rate = self.budget.rate
        if rate is None:
            return 0, 0
        within = rate.within
        return (
            bisect_right(self.stamps, now, key=lambda at: at + within),
            bisect_left(self.stamps, now, key=lambda at: at - within),
        )

    def _newly(self, now: float) -> int:
        first, end = self._window(now)
        return end - first + self.promised

    def figures(self, domain: str, now: float) -> tuple[int | str, ...]:
        """Everything that :meth:`shortage` of a node in the domain depends on, except the node itself."""
        part = self.domains[domain]
        return self.name, domain, self.nodes, self.taken, self._newly(now), part.nodes, part.taken, part.healthy

    def shortage(self, domain: str, standing: BudgetedNode, now: float) -> Shortage | None:
        """Why the node, which is counted here but holds no place yet, cannot get one; None if it can."""
        budget, part = self.budget, self.domains[domain]
        if budget.tainted is not None:
            limit = budget.tainted.of(self.nodes)
            if self.taken >= limit:
                return Shortage(self.name, "tainted", self.taken, limit, budget.tainted, self.nodes)
        if budget.per_domain is not None:
            limit = budget.per_domain.of(part.nodes)
            if part.taken >= limit:
                return Shortage(
                    self.name, "perDomain", part.taken, limit, budget.per_domain, part.nodes, self.label, domain
                )
        if budget.healthy_per_domain is not None and standing.healthy:  # an unhealthy node costs no healthy place
            share = budget.healthy_per_domain
            limit = share.of(part.nodes)
            if part.healthy <= limit:
                return Shortage(
                    self.name, "healthyPerDomain", part.healthy, limit, share, part.nodes, self.label, domain
                )
        if budget.rate is not None:
            limit, within = budget.rate.nodes.of(self.nodes), budget.rate.within
            newly = self._newly(now)
            at = standing.tainted_at
            if at and at - within < now < at + within:
                newly -= 1  # one node counts once
            if newly >= limit:
                return Shortage(self.name, "rate", newly, limit, budget.rate.nodes, self.nodes, within=within)
        return None

    def rate_room_at(self, now: float) -> float:
        """When time alone makes room in the rate, in seconds since the epoch; inf if there is room or it cannot."""
        rate = self.budget.rate
        if rate is None:
            return float("inf")
        first, end = self._window(now)
        too_many = end - first + self.promised - rate.nodes.of(self.nodes)
        place = first + too_many
        return self.stamps[place] + rate.within if too_many >= 0 and place < end else float("inf")

    def usage(self, now: float) -> Iterator[BudgetUsage]:
        """A row for ``tainted``, and one for each limit and domain."""
        budget = self.budget
        yield self._row("", "tainted", self.taken, budget.tainted, self.nodes, self.waiting)
        if budget.rate is not None:
            yield self._row("", "rate", self._newly(now), budget.rate.nodes, self.nodes, self.waiting)
        for domain, part in sorted(self.domains.items()):
            if budget.per_domain is not None:
                yield self._row(domain, "perDomain", part.taken, budget.per_domain, part.nodes, part.waiting)
            if budget.healthy_per_domain is not None:
                fewest = budget.healthy_per_domain.of(part.nodes)
                left = max(part.healthy - fewest, 0)
                yield BudgetUsage(self.name, domain, "healthyPerDomain", part.healthy, fewest, left, part.waiting)

    def _row(self, domain: str, what: What, used: int, share: AtOnce | None, nodes: int, waiting: int) -> BudgetUsage:
        limit = None if share is None else share.of(nodes)
        left = None if limit is None else max(limit - used, 0)
        return BudgetUsage(self.name, domain, what, used, limit, left, waiting)
