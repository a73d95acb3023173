"""The devices of simulated nodes: ResourceSlices that do not change, and rules that are there as soon as they are
required. What may be kept out alone, and the budgets of devices, are the tainter's own code."""

from collections.abc import Callable, Iterable, Mapping

from muster_kube.api.objects import Node
from muster_tainter.devices.budget import DeviceBudget
from muster_tainter.devices.device_map import NodeDevices
from muster_tainter.devices.resource_slice import ResourceSlice
from muster_tainter.devices.slice_index import SLICES_LIMIT, SliceIndex
from muster_tainter.faults.decision_context import DeviceContext, KnownDevice
from muster_tainter.faults.desired_state import Decision
from muster_tainter.policy.rules import Policy


class KnownDevices:
    """nodes: by name, as after the last write; clock: seconds."""

    def __init__(
        self, slices: Iterable[ResourceSlice], policy: Policy, nodes: Mapping[str, Node], clock: Callable[[], float]
    ) -> None:
        self._on = policy.devices.quarantine != "off"
        self._index = SliceIndex(nodes.__contains__)
        for each in slices:
            self._index.note(each.metadata.name, None, each)
        self._known: dict[str, Mapping[str, KnownDevice]] = {}
        self._woken: dict[str, None] = {}
        self._budget = DeviceBudget(lambda: policy, nodes.get, self._index.nodes, self._count, self._wake, clock)

    def of(self, name: str) -> NodeDevices:
        return self._index.devices(name)

    def context(self, node: Node, components: Iterable[str]) -> DeviceContext:  # noqa: ARG002 - slices name them
        """Of all devices of the node, whatever the components are."""
        name = node.metadata.name
        if self._index.left_out:
            return DeviceContext(f"there are more than {SLICES_LIMIT} ResourceSlices")
        known = self._known.get(name)
        if known is None:
            found = self.of(name)
            known = self._known[name] = {
                key: KnownDevice(card.driver, found.counts.get(card.driver, 0), True, card.problem, card.board)
                for key, card in found.cards.items()
            }
        return DeviceContext(known=known)

    def reserve(self, node: Node, decision: Decision) -> str | None:
        """Reserve places in the budgets of devices for a decision. Returns why there are none, or None."""
        if not self._on:
            return None
        return self._budget.reserve(node.metadata.name, node, decision.isolates, decision.device_waits)

    def note(self, node: Node, *, new: bool = False) -> None:
        """The node was written, or is new."""
        if new:
            self._index.nodes_changed()  # a pool may have its name
            self._known.clear()
        self._budget.note(node.metadata.name, node)

    def take_woken(self) -> list[str]:
        """The nodes for whose devices there may be room since the last call."""
        woken, self._woken = list(self._woken), {}
        return woken

    def _wake(self, name: str) -> None:
        self._woken[name] = None

    def _count(self, name: str) -> int:
        return sum(self.of(name).counts.values())
