"""The numbers of IPUs on a node: which it should have, and the patch that sets them. Pure.

They are labels or extended resources of the same names. A node that several controllers serve has the sum. A number
that is not known is absent, never 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from muster_operator.observe.node_capacity import IPUS_FREE, IPUS_TOTAL, FleetNode
from muster_operator.visibility.ipu_capacity import Controllers

Form = Literal["none", "labels", "resources"]
CONTROL_PLANE = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")


@dataclass(frozen=True)
class Advertising:
    """form: where the numbers are; on_control_plane: also on nodes of the control plane."""

    form: Form
    on_control_plane: bool = False


@dataclass(frozen=True)
class NodePatch:
    """A merge patch. path: of the API."""

    path: str
    body: dict[str, Any]


def serves(selector: str, labels: Mapping[str, str]) -> bool:
    """Whether a node with these labels reaches the IPUs. selector: of a controller or a partition."""
    key, _, value = selector.partition("=")
    return not key or labels.get(key) == value


def plan_patch(node: FleetNode, controllers: Controllers, advertising: Advertising) -> NodePatch | None:
    """None: the node has the right numbers."""
    numbers = _numbers(node.metadata.labels, controllers, advertising)
    return _patch(node, advertising.form, numbers)


def plan_removal(node: FleetNode, form: Form) -> NodePatch | None:
    """None: the node has no numbers in this form."""
    return _patch(node, form, {})


def _numbers(labels: Mapping[str, str], controllers: Controllers, advertising: Advertising) -> dict[str, int]:
    if not advertising.on_control_plane and any(key in labels for key in CONTROL_PLANE):
        return {}
    serving = [each for each in controllers if serves(each.selector, labels)]
    known = [each.ipus for each in serving if each.ipus is not None]
    if not serving or len(known) < len(serving):
        return {}
    return {IPUS_FREE: sum(each.free for each in known), IPUS_TOTAL: sum(each.total for each in known)}


def _patch(node: FleetNode, form: Form, numbers: Mapping[str, int]) -> NodePatch | None:
    is_label = form == "labels"
    found = node.metadata.labels if is_label else node.status.capacity
    wanted = {key: str(number) if is_label else _quantity(number) for key, number in numbers.items()}
    changed = {key: wanted.get(key) for key in (IPUS_FREE, IPUS_TOTAL) if wanted.get(key) != found.get(key)}
    if not changed:
        return None
    path = f"/api/v1/nodes/{node.metadata.name}"
    if is_label:
        return NodePatch(path, {"metadata": {"labels": changed}})
    # the kubelet derives allocatable from capacity, but only at its next report
    return NodePatch(f"{path}/status", {"status": {"capacity": changed, "allocatable": changed}})


def _quantity(number: int) -> str:
    """As the API server writes it back (canonical form, apimachinery's resource.Quantity): 2000 is 2k."""
    for suffix in ("", "k", "M", "G"):
        if number == 0 or number % 1000:
            return f"{number}{suffix}"
        number //= 1000
    return f"{number}T"
