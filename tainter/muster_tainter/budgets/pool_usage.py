"""How much of a pool is taken, and whether one node more may be. Counting only: who is counted, and when, says
:mod:`muster_tainter.budgets.allocator`.

A pool's failure domains are the values of its domain label among its own nodes. Its nodes without that label are one
domain more, ``""``, under the same limits: nobody knows what they share, so it is taken for all the same.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from muster_kube.api.objects import Node
from muster_tainter.policy.budgets import Budget
from muster_tainter.policy.heavy_checks import AtOnce
from muster_tainter.policy.pools import Pool

What = Literal["tainted", "perDomain", "healthyPerDomain", "rate", "unknown"]

_KEEPS_WORK_OFF = ("NoSchedule", "NoExecute")


class BudgetedNode(NamedTuple):
    """A node as budgets see it.

    pools:      (pool, value of the pool's domain label or "") of every pool that chooses it
    blocked:    it has a NoSchedule or NoExecute taint, whoever set it
    ours:       the tainter's memory of it holds taints, even where somebody has just dropped them by mistake
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
    """ours, tainted_at: as the tainter's memory of the node says. A node that never said it is Ready is not."""
    labels = node.metadata.labels
    return BudgetedNode(
        pools=tuple((pool.name, pool.domain_of(labels)) for pool in pools if pool.selector.chooses(labels)),
        ready=any(condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions),
        schedulable=not node.spec.unschedulable,
        blocked=any(taint.effect in _KEEPS_WORK_OFF for taint in node.spec.taints),
        ours=ours,
        tainted_at=tainted_at,
    )


class Shortage(NamedTuple):
    """Why a node may not be tainted now.

    label:    the pool's domain label, domain: its value, where it is about one domain
    used:     nodes; of healthyPerDomain those that are healthy, else those that are taken
    limit:    of healthyPerDomain the fewest, else the most; ``share`` of ``nodes``
    within:   seconds, of a rate; for_worse: there is room, and worse nodes wait for it
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
        """For people; begins with the kind, ``budget``. Two shortages of the same figures read the same."""
        if self.for_worse:
            return f"budget: what pool {self.pool} has left ({self.what} {self.share}) is for worse nodes that wait"
        share = "" if self.share.percent is None else f" ({self.share} of {self.nodes})"
        count = f"{self.used} of {self.limit} nodes"
        match self.what:
            case "tainted":
                return f"budget: pool {self.pool} has {count} tainted{share}"
            case "perDomain":
                return f"budget: pool {self.pool} has {count} {self._where} tainted{share}"
            case "healthyPerDomain":
                return f"budget: pool {self.pool} has {self.used} healthy {self._where}, {self.limit} must stay{share}"
            case "rate":
                return f"budget: pool {self.pool} had {count} newly tainted within {self.within:g} s{share}"
            case "unknown":
                return "budget: the node is not known, nor are its pools"

    @property
    def _where(self) -> str:
        if self.domain:
            return f"in {self.label}={self.domain}"
        return f"without {self.label}" if self.label else "in all"


class BudgetUsage(NamedTuple):
    """A row for people. limit: None: no limit; left: how many more may be taken; waiting: nodes that are withheld."""

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
    """The counters of one pool. stamps: when its nodes that hold no promise were last tainted, sorted."""

    __slots__ = ("budget", "domains", "label", "name", "nodes", "promised", "stamps", "taken", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.label = ""
        self.budget = Budget()
        self.nodes = self.taken = self.promised = self.waiting = 0
        self.stamps: list[float] = []
        self.domains: dict[str, _Domain] = {}

    def add(self, domain: str, standing: BudgetedNode, held: bool) -> None:
        """held: a place is promised to the node, whatever comes of it."""
        if domain not in self.domains:
            self.domains[domain] = _Domain()
        self._count(domain, standing, held, 1)

    def remove(self, domain: str, standing: BudgetedNode, held: bool) -> None:
        """What was added with the same values."""
        self._count(domain, standing, held, -1)
        if not self.domains[domain].nodes:
            del self.domains[domain]

    def change(self, domain: str, standing: BudgetedNode, held: bool) -> None:
        """The place of a node that is counted is promised from here on, or no longer."""
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
            self.promised += sign  # for the rate it is tainted now: its time is not written yet
        elif standing.tainted_at and sign > 0:
            insort(self.stamps, standing.tainted_at)
        elif standing.tainted_at:
            del self.stamps[bisect_left(self.stamps, standing.tainted_at)]

    def _window(self, now: float) -> tuple[int, int]:
        """The stamps less than ``within`` away from now, also those ahead of it: the clock was set back."""
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
        """All that :meth:`shortage` of a node in the domain depends on, but the node."""
        part = self.domains[domain]
        return self.name, domain, self.nodes, self.taken, self._newly(now), part.nodes, part.taken, part.healthy

    def shortage(self, domain: str, standing: BudgetedNode, now: float) -> Shortage | None:
        """What keeps the node, which is counted here and takes no place yet, from taking one."""
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
        if budget.healthy_per_domain is not None and standing.healthy:  # who is not healthy takes no healthy place
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
        """When time alone makes room in the rate, seconds since the epoch; inf: there is some, or time does not."""
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
