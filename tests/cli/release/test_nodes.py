"""`muster release`: which taints it removes, and which it leaves to the tainter."""

import pytest

from muster_cli.release.nodes import clear_everything, make_target
from muster_kube.api.objects import Metadata, Node, NodeSpec, Taint
from muster_kube.nodehealth import NodeHealth
from muster_tainter.faults.desired_state import FAULTY_LABEL
from muster_tainter.policy.file import parse_policy
from muster_tainter.policy.rules import SPARE_KEY

POLICY = parse_policy("rules: []")
SPARE = Taint(key=SPARE_KEY, value="true", effect="NoSchedule")
FAULTY = Taint(key=FAULTY_LABEL, value="true", effect="NoSchedule")


def node_with(*taints: Taint) -> Node:
    return Node(metadata=Metadata(name="n1", labels={"muster.dev/role": "spare"}), spec=NodeSpec(taints=taints))


@pytest.mark.parametrize(("led", "removed"), [(True, ()), (False, ("muster.dev/spare=true:NoSchedule",))])
def test_the_taint_of_a_spare_stays_while_a_tainter_leads(led: bool, removed: tuple[str, ...]) -> None:
    target = make_target(node_with(SPARE), 0, POLICY, led=led)
    assert target is not None
    assert target.taints == removed
    assert target.heavy == bool(removed)


def test_only_a_taint_for_a_fault_with_a_lost_record_is_cleared() -> None:
    health = NodeHealth(metadata=Metadata(name="n1"))
    assert clear_everything(node_with(SPARE), health, "ada", "now") == ()
    assert [entry.check for entry in clear_everything(node_with(FAULTY), health, "ada", "now")] == ["muster"]
