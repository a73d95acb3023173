"""What the ledger reads of a node."""

from typing import Any

import pytest
from tests.tainter.conftest import FAULTY, Make

from muster_kube.api.objects import Metadata, Node, NodeCondition, NodeSpec, NodeStatus, Taint
from muster_tainter.faults.record.node_record import ANNOTATION, ClosedFault, Fault, NodeRecord, OurTaint, encode_record
from muster_tainter.goodput.causes import Cause
from muster_tainter.goodput.observed_node import observe_node, state_of
from muster_tainter.goodput.pods.attribution import PodEnd, evidence_of, from_node
from muster_tainter.goodput.pods.pod_facts import End
from muster_tainter.policy.rules import SILENT
from muster_tainter.settings import ACCELERATORS

OURS = OurTaint(key=FAULTY.key, effect=FAULTY.effect, value=FAULTY.value)
SINCE = "2026-01-01T00:00:00Z"


SILENT_FAULT = Fault(check=SILENT[0], component=SILENT[1], reason=SILENT[2], occurrence=1, since=SINCE)


def fault(**fields: Any) -> Fault:
    values = {"component": "gpu/0000:3b:00.0", "reason": "Xid79", "since": SINCE} | fields
    return Fault(check="dmesg", occurrence=1, **values)


def node(
    record: NodeRecord | None = None, *taints: Taint, ready: str = "True", unschedulable: bool = False, **labels: str
) -> Node:
    text = encode_record(record) if record is not None else None
    return Node(
        metadata=Metadata(name="n1", labels=labels, annotations={ANNOTATION: text} if text else {}),
        spec=NodeSpec(taints=taints, unschedulable=unschedulable),
        status=NodeStatus(
            conditions=(NodeCondition(type="Ready", status=ready),), capacity={"nvidia.com/gpu": "8", "cpu": "64"}
        ),
    )


def test_a_node_is_broken_until_its_finding_is_gone_and_then_tested(make: Make) -> None:
    tainted = node(NodeRecord(open=(fault(),), ours=(OURS,)), FAULTY)
    assert state_of(tainted, make.health(make.finding())) is Cause.FAULT
    assert state_of(tainted, None) is Cause.FAULT
    assert state_of(tainted, make.health()) is Cause.TEST
    held = node(NodeRecord(open=(fault(over=SINCE),), ours=(OURS,)), FAULTY)
    assert state_of(held, make.health()) is Cause.HOLD
    several = node(NodeRecord(open=(fault(incident="i1"),), ours=(OURS,)), FAULTY)
    assert state_of(several, make.health(make.finding())) is Cause.INCIDENT


@pytest.mark.parametrize(
    ("made", "state"),
    [
        (node(), Cause.IDLE),
        (node(ready="Unknown"), Cause.FAULT),
        (node(unschedulable=True), Cause.CORDON),
        (node(None, Taint(key="muster.dev/startup", effect="NoSchedule")), Cause.TEST),
        (node(None, Taint(key="muster.dev/spare", effect="NoSchedule")), Cause.SPARE),
        (node(None, Taint(key="nvidia.com/gpu", effect="NoSchedule")), Cause.IDLE),
        (node(None, FAULTY), Cause.UNKNOWN),
    ],
)
def test_a_node_without_a_fault(made: Node, state: Cause) -> None:
    assert state_of(made, None) is state


def test_capacity_and_outages() -> None:
    found = observe_node(node(NodeRecord(open=(fault(), fault(reason="Xid48")))), None, 3, ACCELERATORS)
    assert (found.capacity, found.place) == (8, 3)
    assert found.outage is not None
    assert found.outage.reason == "Xid79"
    closed = ClosedFault(
        check="dmesg", component="gpu/0", reason="Xid79", occurrence=1, since=SINCE, closed_at="2026-01-01T01:00:00Z"
    )
    after = observe_node(node(NodeRecord(closed=(closed,))), None, 3, ACCELERATORS)
    assert [each.until - each.since for each in after.ended] == [3600.0]
    again = observe_node(node(NodeRecord(open=(fault(),), closed=(closed,))), None, 3, ACCELERATORS)
    assert again.outage is not None
    assert again.ended == after.ended
    undated = observe_node(node(NodeRecord(open=(fault(since="", reason="Xid48"), fault()))), None, 3, ACCELERATORS)
    assert undated.outage == again.outage


@pytest.mark.parametrize(
    ("record", "on_node", "cause"),
    [
        (NodeRecord(open=(fault(),)), True, Cause.FAULT),
        (NodeRecord(open=(SILENT_FAULT,)), True, None),
        (NodeRecord(open=(fault(component="ipu/10.1.1.1/0"),)), True, None),
        (NodeRecord(open=(fault(component="ipu/10.1.1.1/0"),)), False, Cause.FAULT),
        (NodeRecord(open=(fault(since="2026-01-02T00:00:00Z"),)), True, None),
        # no tenant's word: a fault that the agent never reported
        (
            NodeRecord(
                closed=(
                    ClosedFault(
                        check="dmesg", component="gpu/0", reason="X", occurrence=1, since=SINCE,
                        closed_at="2026-01-01T09:00:00Z", how="disowned",
                    ),
                )
            ),
            True,
            None,
        ),
    ],
)  # fmt: skip
def test_which_faults_explain_an_end(record: NodeRecord, on_node: bool, cause: Cause | None) -> None:
    at = 1767225600.0  # 2026-01-01
    end = PodEnd(at - 100, at + 3600, End.OWN, on_node)
    assert from_node(end, evidence_of(node(record))) is cause
