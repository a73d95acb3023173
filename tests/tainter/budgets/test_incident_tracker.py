"""Incidents around decisions: fed with what Nodes remember, and with failures that opened nothing."""

from typing import Any

import msgspec

from muster_kube.api.objects import Metadata, Node
from muster_kube.nodehealth import NodeHealth
from muster_tainter.budgets.incident_tracker import IncidentTracker
from muster_tainter.faults.decision_context import DecisionContext
from muster_tainter.faults.desired_state import decide
from muster_tainter.policy.file import parse_policy

NOW = 1_767_225_600.0  # 2026-01-01T00:00:00Z, as the findings' first sign


class Fleet:
    """Some nodes and their reports, decided about as the controller does."""

    def __init__(self, policy: str) -> None:
        self.policy = parse_policy(policy)
        self.nodes: dict[str, Node] = {}
        self.healths: dict[str, NodeHealth] = {}
        self.waiting: list[str] = []
        self.tracker = IncidentTracker(lambda: self.policy, self.healths.get, self.waiting.append, now=lambda: NOW)

    def report(self, name: str, health: NodeHealth, rack: str = "a") -> None:
        self.nodes.setdefault(name, Node(metadata=Metadata(name=name, labels={"rack": rack})))
        self.healths[name] = health
        self.tracker.note(name, self.nodes[name], health)
        self.waiting.append(name)
        while self.waiting:
            self.decide(self.waiting.pop(0))

    def decide(self, name: str) -> None:
        node, health = self.nodes[name], self.healths[name]
        others, incident = self.tracker.find_related(node, health, ())
        around = DecisionContext(others=others, incident=incident)
        self.nodes[name] = decide(node, health, self.policy, NOW, {}, around).applied(node)
        self.tracker.note(name, self.nodes[name], health)

    @property
    def tainted(self) -> list[str]:
        return [name for name, node in self.nodes.items() if node.spec.taints]


POOL = "pools: [{name: all, selector: {}, domain: rack}]\n"


def test_the_first_nodes_of_an_incident_get_its_rule_too(make: Any) -> None:
    fleet = Fleet(
        POOL + "rules:\n  - {name: switch, match: {correlated: 3}, action: event}\n  - {name: hw, action: taint}\n"
    )
    for number in range(3):
        fleet.report(f"n{number}", make.health(make.finding()))
    assert fleet.tainted == ["n0", "n1", "n2"]
    fleet.report("n3", make.health(make.finding()))
    assert fleet.tainted == []  # the fourth makes it the switch's fault, of all four


def test_an_incident_is_named_after_the_rack_that_its_nodes_share(make: Any) -> None:
    fleet = Fleet(POOL + "rules: [{name: hw, action: taint}]")
    for number in range(4):
        fleet.report(f"n{number}", make.health(make.finding()), rack="r7")
    [incident] = fleet.tracker.all()
    assert (incident.ground, incident.count) == (("rack", "r7"), 4)
    assert "rack=r7" in incident.text


def test_nodes_of_several_racks_that_run_one_job_are_that_job_s_incident(make: Any) -> None:
    fleet = Fleet(POOL + "rules: [{name: hw, action: taint}]")
    for number in range(4):
        fleet.report(f"n{number}", make.health(make.finding()), rack=f"r{number}")
        fleet.tracker.note_jobs(f"n{number}", ["Job ml/train", f"Job ml/other-{number}"], fleet.nodes[f"n{number}"])
    [incident] = fleet.tracker.all()
    assert (incident.ground, incident.count) == (("job", "Job ml/train"), 4)
    assert "job=Job ml/train" in incident.text


def test_jobs_of_a_node_whose_faults_are_over_are_forgotten(make: Any) -> None:
    fleet = Fleet(POOL + "rules: [{name: hw, action: taint}]")
    for number in range(3):
        fleet.report(f"n{number}", make.health(make.finding()), rack=f"r{number}")
        fleet.tracker.note_jobs(f"n{number}", ["Job ml/train"], fleet.nodes[f"n{number}"])
    fleet.report("n0", make.health(cleared=(make.cleared(),)), rack="r0")
    fleet.report("n0", make.health(make.finding(occurrence=2)), rack="r0")
    [incident] = fleet.tracker.all()
    assert incident.ground == ("", "")


def test_one_node_is_no_incident_however_often_it_fails(make: Any) -> None:
    fleet = Fleet(POOL + "rules: [{name: hw, action: taint}]")
    fleet.report("n0", make.health(*(make.finding(occurrence=n, component=f"gpu/{n}") for n in range(1, 9))))
    assert fleet.tracker.all() == []


def test_a_failure_that_a_person_closed_belongs_to_none(make: Any) -> None:
    fleet = Fleet(POOL + "rules: [{name: hw, action: taint}]")
    for number in range(3):
        fleet.report(f"n{number}", make.health(make.finding()))
    [incident] = fleet.tracker.all()
    clear = {"check": "dmesg", "component": "*", "occurrence": 1, "by": "ada"}
    cleared = msgspec.convert({"metadata": {"name": "n0"}, "spec": {"clear": [clear]}}, NodeHealth)
    closed = msgspec.structs.replace(make.health(make.finding()), spec=cleared.spec)
    fleet.report("n0", closed)
    assert fleet.tracker.nodes_of(incident.id) == []
    assert fleet.tracker.all() == []


def test_another_policy_has_another_number_of_nodes(make: Any) -> None:
    fleet = Fleet(POOL + "rules: [{name: hw, action: taint}]\nincidents: {nodes: 5, within: 60s}")
    for number in range(3):
        fleet.report(f"n{number}", make.health(make.finding()))
    assert fleet.tracker.all() == []
    fleet.policy = parse_policy(POOL + "rules: [{name: hw, action: taint}]\nincidents: {nodes: 3, within: 60s}")
    fleet.tracker.policy_changed(lambda: list(fleet.nodes.values()))
    assert [each.count for each in fleet.tracker.all()] == [3]
