"""How many devices of a pool, and of each of its failure domains, are kept out of use: the pools' budgets of devices.

A place is reserved between the decision and its write. What has no room waits, and is decided again when room appears.
"""

from collections.abc import Callable, Iterator, Mapping

from muster_kube.api.objects import Node
from muster_tainter.faults.device_isolation import isolated_components
from muster_tainter.faults.record.node_record import ANNOTATION, read_record
from muster_tainter.policy.pools import Pool
from muster_tainter.policy.rules import Policy
from muster_tainter.policy.sections.heavy_checks import AtOnce

_TOTALS_FOR_S = 5.0  # how long the number of a pool's devices is kept: counting them visits every node


class DeviceBudget:
    """nodes: all, with the labels that the policy uses; devices_on: number of a node's devices; wake: called with nodes
    that may try again, the longest waiting first; clock: monotonic seconds."""

    def __init__(
        self,
        policy: Callable[[], Policy],
        node: Callable[[str], Node | None],
        names: Callable[[], list[str]],
        devices_on: Callable[[str], int],
        wake: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._policy = policy
        self._node = node
        self._names = names
        self._devices_on = devices_on
        self._wake = wake
        self._clock = clock
        self._taken: dict[str, frozenset[str]] = {}
        self._reserved: dict[str, frozenset[str]] = {}
        self._waiting: dict[str, frozenset[str]] = {}  # in the order in which they came
        self._totals: dict[tuple[str, str], tuple[float, int]] = {}

    @property
    def waiting(self) -> Mapping[str, frozenset[str]]:
        """The components that wait, by node."""
        return self._waiting

    def note(self, name: str, node: Node | None) -> None:
        """Record what the node's record says."""
        about = node is not None and ANNOTATION in node.metadata.annotations
        taken = isolated_components(read_record(node)) if node is not None and about else frozenset[str]()
        before = self._held(name)
        self._reserved.pop(name, None)
        if taken:
            self._taken[name] = taken
        else:
            self._taken.pop(name, None)
        if node is None:
            self._waiting.pop(name, None)
        if before - taken:
            self.look_again()

    def look_again(self) -> None:
        """There may be room."""
        for name in list(self._waiting):
            self._wake(name)

    def reserve(self, name: str, node: Node, new: frozenset[str], wanted: frozenset[str]) -> str | None:
        """Reserve places for the components ``new`` of a node. Returns why there are none, or None.

        wanted: with those that wait for another reason, such as a pause
        """
        self._reserved.pop(name, None)
        self._waiting.pop(name, None)
        if not new:
            if wanted:
                self._waiting[name] = wanted
            return None
        for pool in self._policy().pools_of(node.metadata.labels):
            why = self._shortage(pool, node, len(new))
            if why:
                self._waiting[name] = new
                return why
        self._reserved[name] = new
        return None

    def _shortage(self, pool: Pool, node: Node, more: int) -> str:
        budget = pool.budget
        limits: list[tuple[AtOnce, str | None]] = []
        if budget.devices is not None:
            limits.append((budget.devices, None))
        if budget.devices_per_domain is not None:
            limits.append((budget.devices_per_domain, pool.domain_of(node.metadata.labels)))
        for share, domain in limits:
            used = sum(len(self._held(name)) for name in self._members(pool, domain, {*self._taken, *self._reserved}))
            limit = share.count if share.percent is None else share.of(self._total(pool, domain))
            if used + more > limit:
                where = "" if domain is None else f" in {pool.domain}={domain}" if domain else " without a domain"
                return f"budget: pool {pool.name} has {used} of {limit} devices{where} quarantined"
        return ""

    def _held(self, name: str) -> frozenset[str]:
        return self._taken.get(name, frozenset()) | self._reserved.get(name, frozenset())

    def _members(self, pool: Pool, domain: str | None, names: set[str]) -> Iterator[str]:
        for name in names:
            node = self._node(name)
            if node is None or not pool.selector.chooses(node.metadata.labels):
                continue
            if domain is None or pool.domain_of(node.metadata.labels) == domain:
                yield name

    def _total(self, pool: Pool, domain: str | None) -> int:
        key, now = (pool.name, "\0" if domain is None else domain), self._clock()
        at, known = self._totals.get(key, (-_TOTALS_FOR_S, 0))
        if now - at >= _TOTALS_FOR_S:
            known = sum(self._devices_on(name) for name in self._members(pool, domain, set(self._names())))
            self._totals[key] = now, known
        return known
