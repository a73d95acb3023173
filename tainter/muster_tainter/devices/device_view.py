"""What a decision about a node is told of its devices, from ResourceSlices, DeviceTaintRules and failed writes."""

from collections.abc import Iterator, Mapping

from muster_kube.api.objects import Node
from muster_tainter.devices.board_history import BoardHistory
from muster_tainter.devices.rules.plan import staged_faults, wanted_rules
from muster_tainter.devices.rules.store import RuleStore
from muster_tainter.devices.slices.index import SliceIndex
from muster_tainter.faults.decision_context import DeviceContext, KnownDevice
from muster_tainter.faults.device_isolation import DEVICE_KINDS, device_key
from muster_tainter.faults.record.node_record import DeviceStage
from muster_tainter.fleet.interface import Fleet


class DeviceView:
    def __init__(self, fleet: Fleet, index: SliceIndex, store: RuleStore, boards: BoardHistory) -> None:
        self._fleet = fleet
        self._index = index
        self._store = store
        self._boards = boards

    def context(self, node: Node, unavailable: str | None, withhold: str) -> DeviceContext:
        """unavailable: why no device can be quarantined; empty if they can, None if that is not known yet.

        withhold: why nothing new may begin on any node
        """
        name = node.metadata.name
        released = {component: by for (where, component), by in self._store.released.items() if where == name}
        if unavailable is None:
            return DeviceContext(unread=True, withhold=withhold, released=released)
        unavailable = unavailable or self._index.excess(name)
        return DeviceContext(unavailable, known=_Known(self, node), withhold=withhold, released=released)

    def known_device(self, node: Node, key: str) -> KnownDevice | None:
        """The device with this PCI address or UUID."""
        name = node.metadata.name
        found = self._index.devices(name)
        card = found.cards.get(key)
        component = next((each for each in staged_faults(node) if device_key(each) == key), "")
        if card is None:
            rules = self._store.for_component(name, component) if component else []
            grace = self._fleet.policy().devices.grace
            if not rules or self._store.missing_s(name, component) >= grace:
                return None
            selector = rules[0].spec.device_selector
            return KnownDevice(driver=selector.driver if selector else "", siblings=0, ruled=True)
        self._store.is_named(name, component)
        failures = (self._store.failure(name, f"{kind}/{key}") for kind in DEVICE_KINDS)
        problem = card.problem or next(filter(None, failures), "")
        siblings = found.counts.get(card.driver, 0)
        ruled = self._is_ruled(node, component, key)
        history = self._boards.elsewhere(card.board, name) if card.board else {}
        return KnownDevice(card.driver, siblings, ruled, problem, card.board, history)

    def keys_of(self, node: Node) -> list[str]:
        """The addresses and UUIDs of its devices."""
        return list(self._index.devices(node.metadata.name).cards)

    def _is_ruled(self, node: Node, component: str, key: str) -> bool:
        """All rules that the component needs are there, with their effect: those of a preview have none."""
        faults = staged_faults(node).get(component)
        card = self._index.devices(node.metadata.name).cards.get(key)
        if card is None or not faults or all(fault.device == DeviceStage.PREVIEW for fault in faults):
            return False
        wanted = wanted_rules(node.metadata.name, component, faults, card, self._fleet.policy())
        there = self._store.of(node.metadata.name)
        return bool(wanted) and all(each.name in there and each.is_met_by(there[each.name]) for each in wanted)


class _Known(Mapping[str, KnownDevice]):
    """Looked up when a decision asks: most decisions are about nodes without a fault."""

    def __init__(self, view: DeviceView, node: Node) -> None:
        self._view = view
        self._node = node

    def __getitem__(self, key: str) -> KnownDevice:
        found = self._view.known_device(self._node, key)
        if found is None:
            raise KeyError(key)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._view.keys_of(self._node))

    def __len__(self) -> int:
        return len(self._view.keys_of(self._node))
