"""How many devices each node is known to allocate at once.

A device plug-in may reject a request for its size: NVIDIA's with ``failRequestsGreaterThanOne`` (README of
NVIDIA/k8s-device-plugin) rejects two replicas of a shared GPU. A tenant chooses the size and, by spec.nodeName, the
node. So a rejection counts as the node's only if the request was for one device, or for no more than the node has
allocated before.
"""

from collections import OrderedDict

from muster_tainter.outcomes.pods import Devices

NODES_LIMIT = 20_000
RESOURCES_LIMIT = 8  # of a node


class AllocatedDevices:
    """Bounded: beyond ``NODES_LIMIT`` nodes, the one that has allocated nothing for the longest time is forgotten."""

    def __init__(self, limit: int = NODES_LIMIT) -> None:
        self._limit = limit
        self._nodes: OrderedDict[str, dict[str, int]] = OrderedDict()

    def allocated(self, node: str, devices: Devices) -> None:
        """The node has admitted a pod with such a container."""
        most = self._nodes.setdefault(node, {})
        self._nodes.move_to_end(node)
        for name, count in devices:
            if name in most or len(most) < RESOURCES_LIMIT:
                most[name] = max(most.get(name, 0), count)
        if len(self._nodes) > self._limit:
            self._nodes.popitem(last=False)

    def can(self, node: str, devices: Devices) -> bool:
        """Whether its size is no reason for the node to reject the request. A pod without devices asks for none."""
        most = self._nodes.get(node, {})
        return bool(devices) and all(count <= max(1, most.get(name, 0)) for name, count in devices)

    def drop(self, node: str) -> None:
        """The node was removed."""
        self._nodes.pop(node, None)
