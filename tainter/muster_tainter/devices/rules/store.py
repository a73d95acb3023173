"""Muster's DeviceTaintRules by node, what could not be written, and which rules people have removed or edited."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from muster_tainter.devices.rules.taint_rule import DeviceTaintRule

RETRY_S = 600.0  # after a write that the API server rejects: meanwhile the node is tainted
_DELETED_LIMIT = 4096

NodeComponent = tuple[str, str]


@dataclass(frozen=True)
class _Failure:
    why: str
    until: float


@dataclass(frozen=True)
class VanishedRule:
    """noted: when this process noticed that it is gone, monotonic."""

    name: str
    noted: float


class RuleStore:
    """clock: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_node: dict[str, dict[str, DeviceTaintRule]] = {}
        self._deleted: OrderedDict[str, None] = OrderedDict()  # uids of rules that this process deletes
        self._failures: dict[NodeComponent, _Failure] = {}
        self._missing: dict[NodeComponent, float] = {}
        self.vanished: dict[NodeComponent, VanishedRule] = {}
        """Rules that were there and are not: to be verified before it counts as a person's decision."""
        self.released: dict[NodeComponent, str] = {}
        """Who deleted or edited the rule of a component."""

    def of(self, node: str) -> Mapping[str, DeviceTaintRule]:
        """The node's rules, by name."""
        return self._by_node.get(node, {})

    def for_component(self, node: str, component: str) -> list[DeviceTaintRule]:
        return [rule for rule in self.of(node).values() if rule.component == component]

    def devices(self, node: str, component: str) -> set[tuple[str, str, str]]:
        """Driver, pool and device of each of the component's rules."""
        selectors = (rule.spec.device_selector for rule in self.for_component(node, component))
        return {(each.driver, each.pool, each.device) for each in selectors if each is not None}

    def nodes(self) -> list[str]:
        return list(self._by_node)

    def note(self, old: DeviceTaintRule | None, new: DeviceTaintRule | None) -> set[str]:
        """Record a change. Returns the nodes that it concerns."""
        nodes = set()
        if old is not None and old.node:
            name = old.metadata.name
            self._by_node.get(old.node, {}).pop(name, None)
            if not self._by_node.get(old.node):
                self._by_node.pop(old.node, None)
            nodes.add(old.node)
            if (new is None or new.node != old.node) and old.metadata.uid not in self._deleted:
                self.vanished[old.node, old.component] = VanishedRule(name, self._clock())
        if new is not None and new.node:
            self._by_node.setdefault(new.node, {})[new.metadata.name] = new
            self._failures.pop((new.node, new.component), None)
            nodes.add(new.node)
        return nodes

    def will_delete(self, rule: DeviceTaintRule) -> None:
        self._deleted[rule.metadata.uid] = None
        while len(self._deleted) > _DELETED_LIMIT:
            self._deleted.popitem(last=False)

    def forget_people(self) -> None:
        """What a former leader did looks like a person's decision: only what this leader has seen counts."""
        self.vanished.clear()
        self.released.clear()

    def vanished_s(self, node: str, component: str) -> float | None:
        """For how long a rule of the component has been gone without a verdict; None if there is none."""
        gone = self.vanished.get((node, component))
        return None if gone is None else self._clock() - gone.noted

    def settle(self, node: str, staged: Mapping[str, object]) -> None:
        """Drop what no longer concerns an open fault of the node. staged: its components that are to have rules."""
        for kept in (self.released, self.vanished, self._missing):
            for key in [key for key in kept if key[0] == node and key[1] not in staged]:
                del kept[key]

    def fail(self, node: str, component: str, why: str) -> None:
        self._failures[node, component] = _Failure(why, self._clock() + RETRY_S)

    def failure(self, node: str, component: str) -> str:
        """Why its rules cannot be written; empty if that is unknown, or worth another attempt."""
        failure = self._failures.get((node, component))
        return "" if failure is None or failure.until <= self._clock() else failure.why

    def retry_in_s(self, node: str) -> float | None:
        """When a rejected write of the node is worth another attempt; None if there is none."""
        until = [failure.until for key, failure in self._failures.items() if key[0] == node]
        return max(0.0, min(until) - self._clock()) if until else None

    def drop_expired(self) -> list[str]:
        """Nodes whose rules are worth another attempt."""
        now = self._clock()
        expired = [key for key, failure in self._failures.items() if failure.until <= now]
        for key in expired:
            del self._failures[key]
        return [node for node, _ in expired]

    def missing_s(self, node: str, component: str) -> float:
        """For how long no slice has named the device, as far as observed."""
        return self._clock() - self._missing.setdefault((node, component), self._clock())

    def is_named(self, node: str, component: str) -> None:
        self._missing.pop((node, component), None)
