"""The flap penalties of boards on all nodes, by UUID, so that a board that moves to another node keeps its record.

The records of the nodes have them. Whoever can write a node's record or its ResourceSlices may lie about a UUID. So a
penalty counts elsewhere only while the node that recorded it does not publish the board any more, and can then hold a
device at most for the policy's longest hold-down.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping

from muster_kube.api.objects import Node
from muster_tainter.faults.device_isolation import device_identity
from muster_tainter.faults.record.node_record import FlapPenalty, read_record

_GONE_LIMIT = 4096  # boards of deleted nodes

Penalties = dict[str, FlapPenalty]  # by check


class BoardHistory:
    """publishes: whether the ResourceSlices of a node name a board."""

    def __init__(self, publishes: Callable[[str, str], bool]) -> None:
        self._publishes = publishes
        self._by_node: dict[str, dict[str, Penalties]] = {}  # node, board
        self._nodes: dict[str, set[str]] = {}  # by board
        self._gone: OrderedDict[str, Penalties] = OrderedDict()  # by board, of nodes that were deleted

    def note(self, name: str, node: Node | None) -> None:
        """Record what the node's record says."""
        before = self._by_node.pop(name, {})
        for board in before:
            self._nodes[board].discard(name)
            if not self._nodes[board]:
                del self._nodes[board]
        if node is None:
            for board, penalties in before.items():
                self._gone[board] = _worse(self._gone.pop(board, {}), penalties)
            while len(self._gone) > _GONE_LIMIT:
                self._gone.popitem(last=False)
            return
        found: dict[str, Penalties] = {}
        for key, penalty in read_record(node).penalty.items():
            check, at, board = key.partition("@")
            if at and device_identity(board) == board and ":" not in board:  # a PCI address names a slot, not a board
                found.setdefault(board, {})[check] = penalty
        if found:
            self._by_node[name] = found
            for board in found:
                self._nodes.setdefault(board, set()).add(name)

    def elsewhere(self, board: str, name: str) -> Mapping[str, FlapPenalty]:
        """Penalties of a board of node ``name`` on nodes that it has left."""
        result = dict(self._gone.get(board, {}))
        for other in sorted(self._nodes.get(board, ())):
            if other != name and not self._publishes(other, board):
                result = _worse(result, self._by_node[other][board])
        return result


def _worse(one: Penalties, other: Penalties) -> Penalties:
    result = dict(one)
    for check, penalty in other.items():
        if check not in result or (penalty.at, penalty.n) > (result[check].at, result[check].n):
            result[check] = penalty
    return result
