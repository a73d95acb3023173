"""Devices for `muster replay`: those that ResourceSlices of the cluster name, which do not change.

A rule is there as soon as it is required. What may be kept out alone, and the budgets of devices, are the tainter's own
code.
"""

from collections.abc import Callable, Iterable, Mapping

from muster_kube.api.objects import Node
from muster_tainter.devices.slices.device_map import NodeDevices
from muster_tainter.devices.slices.index import SLICES_LIMIT, SliceIndex
from muster_tainter.devices.slices.resource_slice import ResourceSlice
from muster_tainter.faults.decision_context import DeviceContext, KnownDevice
from muster_tainter.policy.rules import Policy
from muster_tainter.simulation.devices.places import DevicePlaces


class ReplayedDevices(DevicePlaces):
    """nodes: by name, as after the last write; clock: seconds."""

    def __init__(
        self, slices: Iterable[ResourceSlice], policy: Policy, nodes: Mapping[str, Node], clock: Callable[[], float]
    ) -> None:
        self._index = SliceIndex(nodes.__contains__)
        super().__init__(policy, nodes, self._index.nodes, self._count, clock)
        for each in slices:
            self._index.note(each.metadata.name, None, each)
        self._known: dict[str, Mapping[str, KnownDevice]] = {}

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

    def note(self, node: Node, *, new: bool = False) -> None:
        """The node was written, or is new."""
        if new:
            self._index.nodes_changed()  # a pool may have its name
            self._known.clear()
        super().note(node, new=new)

    def _count(self, name: str) -> int:
        return sum(self.of(name).counts.values())
