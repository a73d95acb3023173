"""What lies under pods: nodes and quarantined IPUs, and which jobs hear of a change (behaviours 57, 63)."""

import json
from typing import Any

import msgspec
import pytest
from tests.operator.plan.job_factory import make_entry, make_job, make_pod, partition_of
from tests.wording.facts import missing_facts

from muster_operator.job.partition_api import ipus_of, ipus_text
from muster_operator.job.snapshot import JobPod
from muster_operator.observe.node_capacity import FleetNode, project_node
from muster_operator.observe.node_health import UNKNOWN_S, HardwareHealth, find_node_problem, read_quarantine
from muster_operator.observe.tracker_reader import TrackerReader

OURS = ("muster.dev/faulty",)
TAINT = {"key": "muster.dev/faulty", "effect": "NoSchedule"}


def node(name: str = "node1", *, ready: str = "True", reason: str = "", **fields: Any) -> FleetNode:
    condition = {"type": "Ready", "status": ready, "reason": reason}
    return project_node(
        msgspec.convert(
            {
                "metadata": {"name": name, **fields.get("metadata", {})},
                "spec": fields.get("spec", {}),
                "status": {"conditions": [condition, {"type": "DiskPressure", "status": "True"}]},
            },
            FleetNode,
        )
    )


def faulty(annotation: str = "") -> FleetNode:
    noted = {"annotations": {"muster.dev/faults": annotation}} if annotation else {}
    return node(metadata={"labels": {"muster.dev/faulty": "true"}, **noted}, spec={"taints": [TAINT]})


class Nodes:
    """A reflector's store."""

    def __init__(self) -> None:
        self.store: dict[str, FleetNode] = {}
        self.synced = True


class Board:
    def __init__(self) -> None:
        self.at = 0.0
        self.looked: list[str] = []
        self.nodes = Nodes()
        client: Any = None
        nodes: Any = self.nodes
        self.tracker = TrackerReader(
            client, "muster", "t", on_change=lambda _: None, on_room=lambda: None, clock=lambda: self.at
        )
        self.hardware = HardwareHealth(nodes, self.tracker, OURS, self.looked.append, lambda: self.at)

    def pod(self, name: str = "train-worker-0") -> JobPod:
        pod = make_pod(make_job(), name)
        self.hardware.note_pod(f"default/{name}", None, pod, "default/train")
        return pod

    def change(self, new: FleetNode | None, name: str = "node1") -> None:
        old = self.nodes.store.pop(name, None)
        if new is not None:
            self.nodes.store[name] = new
        self.hardware.note_node(name, old, new)


@pytest.mark.parametrize(
    ("found", "kind", "facts"),
    [
        (node(ready="Unknown", reason="NodeStatusUnknown"), "NotReady", ("NodeStatusUnknown",)),
        (faulty(), "Faulty", ("muster.dev/faulty",)),
        (faulty("{not json"), "Faulty", ("muster.dev/faulty",)),
        (
            faulty(json.dumps({"open": [
                {"check": "nic", "component": "nic/mlx5_0", "reason": "Slow", "verdict": "WARN"},
                {"check": "dmesg", "component": "gpu/0000:3b:00.0", "reason": "Xid79", "message": "fell off the bus"},
                {"check": "memory", "component": "host", "reason": "UncorrectedErrors"},
            ]})),
            "Faulty",
            ("dmesg", "gpu/0000:3b:00.0", "Xid79", "fell off the bus", "memory", "UncorrectedErrors"),
        ),
    ],
)  # fmt: skip
def test_63_a_node_is_bad_for_the_reason_that_the_cluster_gives(
    found: FleetNode, kind: str, facts: tuple[str, ...]
) -> None:
    problem = find_node_problem(found, frozenset(OURS))
    assert problem is not None
    assert problem.kind == kind
    assert not missing_facts(problem.what, *facts)
    assert "Slow" not in problem.what, "a warning has tainted nothing"


def test_63_a_node_without_a_fault_is_fine() -> None:
    assert find_node_problem(node(), frozenset(OURS)) is None


def test_63_a_change_of_a_node_is_heard_by_the_jobs_on_it_and_only_once() -> None:
    board = Board()
    pod = board.pod()
    board.change(node())
    board.looked.clear()
    board.change(node(reason="KubeletReady"))
    board.change(faulty(), "another")
    assert board.looked == []
    board.change(faulty())
    assert board.looked == ["default/train"]
    assert {name: bad.kind for name, bad in board.hardware.bad_nodes([pod]).items()} == {"node1": "Faulty"}
    board.change(node())
    assert (board.looked, board.hardware.bad_nodes([pod])) == (["default/train"] * 2, {})


def test_57_a_removed_node_is_gone_at_once_and_an_unknown_one_after_a_delay() -> None:
    board = Board()
    pod = board.pod()
    assert board.hardware.bad_nodes([pod]) == {}, "the pod's watch may be ahead"
    assert board.hardware.again_s([pod]) == UNKNOWN_S
    board.at += UNKNOWN_S
    assert board.hardware.bad_nodes([pod])["node1"].kind == "Gone"

    board = Board()
    pod = board.pod()
    board.change(node())
    board.change(None)
    assert board.hardware.bad_nodes([pod])["node1"].kind == "Gone"
    board.change(node())
    assert board.hardware.bad_nodes([pod]) == {}
    board.nodes.synced = False
    board.change(None)
    assert board.hardware.bad_nodes([pod]) == {}, "nothing is known without a list"


def test_63_the_quarantine_leads_to_the_jobs_on_its_ipus() -> None:
    board, job = Board(), make_job()
    lies_on = ipus_text([("10.1.5.11", 0), ("10.1.5.10", 3), ("10.1.5.10", 2)])
    assert lies_on == "10.1.5.10/2,3 10.1.5.11/0"
    entry = make_entry(job, ipus=lies_on)
    assert ipus_of(entry) == {("10.1.5.10", 2), ("10.1.5.10", 3), ("10.1.5.11", 0)}
    board.tracker.update({partition_of(job): msgspec.json.encode(entry).decode()})
    fault = {"node": "host-3", "check": "ipu", "reason": "IpuErrorState", "message": "not 'no errors'"}
    data = {"a": json.dumps({"ipu": "x", "machine": "10.1.5.10", "index": 3, "faults": [fault]}), "b": "{"}
    board.hardware.note_quarantine(data)
    assert board.looked == ["default/train"]
    [(partition, (quarantined,))] = board.hardware.bad_ipus({partition_of(job): entry}).items()
    assert partition == partition_of(job)
    assert not missing_facts(quarantined, "10.1.5.10/3", "ipu", "IpuErrorState")
    assert fault["message"] in quarantined
    board.hardware.note_quarantine({"c": json.dumps({"machine": "10.1.5.99", "index": 0})})
    assert board.looked == ["default/train"] * 2, "it is free again"
    assert board.hardware.bad_ipus({partition_of(job): entry}) == {}
    [(ipu, said)] = read_quarantine({"d": '{"machine": "m", "index": 1}'}).items()
    assert ipu == ("m", 1)
    assert not missing_facts(said, "m/1")
