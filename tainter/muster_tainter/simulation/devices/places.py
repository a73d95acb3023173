"""Places in the budgets of devices for a loop of decisions, with the tainter's own code."""

from collections.abc import Callable, Mapping

from muster_kube.api.objects import Node
from muster_tainter.devices.budget import DeviceBudget
from muster_tainter.faults.desired_state import Decision
from muster_tainter.policy.rules import Policy


class DevicePlaces:
    """nodes: by name, as after the last write. names: of the nodes with devices; count: their number on a node. now:
    seconds since the epoch."""

    def __init__(
        self,
        policy: Policy,
        nodes: Mapping[str, Node],
        names: Callable[[], list[str]],
        count: Callable[[str], int],
        now: Callable[[], float],
    ) -> None:
        self._on = policy.devices.quarantine != "off"
        self._woken: dict[str, None] = {}
        self._budget = DeviceBudget(lambda: policy, nodes.get, names, count, self._wake, now)

    def reserve(self, node: Node, decision: Decision) -> str | None:
        """Reserve places in the budgets of devices for a decision. Returns why there are none, or None."""
        if not self._on:
            return None
        return self._budget.reserve(node.metadata.name, node, decision.isolates, decision.device_waits)

    def note(self, node: Node, *, new: bool = False) -> None:  # noqa: ARG002 - for those that read slices
        """The node was written, or is new."""
        self._budget.note(node.metadata.name, node)

    def take_woken(self) -> list[str]:
        """The nodes for whose devices there may be room since the last call."""
        woken, self._woken = list(self._woken), {}
        return woken

    def _wake(self, name: str) -> None:
        self._woken[name] = None
