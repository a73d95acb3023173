"""The observer of `make chaos` is not blind: each thing that must never be, planted in an audit log, is found."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.audit_records import read_writes
from tests.chaos.observer import STALE_S, TAINTER, FinalState, Observed, Rule, VipuCall, judge, later
from tests.cluster.tainter.fleet_findings import FATAL, HARMLESS, status

OPERATOR = "system:serviceaccount:muster:muster-operator"
PERSON, KUBELET = "ada", "system:node:n1"
POOL_LABEL, POOL = "pool", "all"
BEGIN = "2026-01-01T00:00:00.000000Z"
OURS = {"key": "muster.dev/faulty", "value": "true", "effect": "NoSchedule"}
THEIRS = {"key": "example.com/maintenance", "value": "today", "effect": "NoSchedule"}
THEIR_TAINT = frozenset({("example.com/maintenance", "today", "NoSchedule")})
FAULT, REPLACE = FATAL[0], FATAL[3]

Object = dict[str, Any]


@dataclass
class Log:
    """An audit log as the API server writes it, and what stands at the end. Each write is a second after the last."""

    lines: list[Object] = field(default_factory=list)
    nodes: dict[str, Object] = field(default_factory=dict)
    healths: dict[str, Object] = field(default_factory=dict)
    calls: list[VipuCall] = field(default_factory=list)
    snapshots: list[Object] = field(default_factory=list)
    version: int = 100
    now: str = BEGIN
    final: FinalState = field(default_factory=lambda: FinalState([], {}, {}, {}, [], frozenset()))

    def wait(self, seconds: float = 1.0) -> None:
        self.now = later(self.now, seconds)

    def write(
        self, user: str, verb: str, resource: str, name: str, result: Object | None = None,
        request: Object | None = None, namespace: str = "", code: int = 200, audited: bool = True,
    ) -> None:  # fmt: skip
        self.wait()
        plural, _, subresource = resource.partition("/")
        event = {
            "kind": "Event", "apiVersion": "audit.k8s.io/v1", "stage": "ResponseComplete", "verb": verb,
            "stageTimestamp": self.now, "user": {"username": user}, "responseStatus": {"code": code},
            "objectRef": {"resource": plural, "subresource": subresource, "name": name, "namespace": namespace},
            "requestObject": request, "responseObject": result,
        }  # fmt: skip
        if audited:
            self.lines.append(event)

    def node(
        self, user: str, name: str, *taints: Object, label: bool | None = None, audited: bool = True, **labels: str
    ) -> None:
        based_on = self.nodes.get(name, {"metadata": {"resourceVersion": "0"}})["metadata"]["resourceVersion"]
        self.version += 1
        labelled = OURS in taints if label is None else label
        found = {POOL_LABEL: POOL} | labels | ({"muster.dev/faulty": "true"} if labelled else {})
        metadata = {"name": name, "resourceVersion": str(self.version), "labels": found}
        self.nodes[name] = {"metadata": metadata, "spec": {"taints": list(taints)}}
        request = {"metadata": {"resourceVersion": based_on}} if user == TAINTER else {}
        verb = "create" if based_on == "0" else "patch"
        self.write(user, verb, "nodes", name, self.nodes[name], request, audited=audited)

    def health(
        self, name: str, *findings: Object, boot: str = "boot-1", clear: int = 0, cleared: Object | None = None
    ) -> None:
        self.version += 1
        spec = {"clear": [{"check": "dmesg", "component": "*", "occurrence": clear, "by": "ada"}]} if clear else {}
        metadata = {"name": name, "resourceVersion": str(self.version)}
        self.healths[name] = {"metadata": metadata, "spec": spec} | status(*findings, boot=boot)
        self.healths[name]["status"]["checks"][0]["cleared"] = [cleared] if cleared else []
        self.write(KUBELET, "patch", "nodehealths/status", name, self.healths[name])

    def tainted_node(self, name: str = "n1", fault: Object = FAULT) -> None:
        """All is well so far."""
        self.node(PERSON, name)
        self.health(name, fault)
        self.node(TAINTER, name, OURS)

    def judged(self, folder: Path, budget: int = 10, rest_by: str = "2027") -> set[Rule]:
        file = folder / "audit.log"
        file.write_text("".join(json.dumps(line) + "\n" for line in self.lines))
        writes, end = read_writes(file)
        assert end == file.stat().st_size
        final = replace(self.final, nodes=list(self.nodes.values()))
        observed = Observed(writes, self.snapshots, self.calls, {POOL: budget}, POOL_LABEL, final, rest_by)
        return {violation.rule for violation in judge(observed)}


def healthy_node_tainted(log: Log) -> None:
    log.node(PERSON, "n1")
    log.health("n1", HARMLESS[0])
    log.node(TAINTER, "n1", OURS)
    log.node(TAINTER, "n1")


def node_tainted_long_after_its_fault(log: Log) -> None:
    log.node(PERSON, "n1")
    log.health("n1", FAULT)
    log.health("n1", clear=1)
    log.wait(STALE_S)
    log.node(TAINTER, "n1", OURS)
    log.node(TAINTER, "n1")


def released_without_evidence(log: Log) -> None:
    log.tainted_node()
    log.node(TAINTER, "n1")
    log.node(TAINTER, "n1", OURS)


def released_by_a_quiet_finding(log: Log) -> None:
    """Its agent no longer reports it, in the same boot: that closes nothing."""
    log.tainted_node()
    log.health("n1")
    log.node(TAINTER, "n1")
    log.node(TAINTER, "n1", OURS)


def released_by_a_reboot_after_which_nothing_could_be_measured(log: Log) -> None:
    log.tainted_node()
    log.health("n1", HARMLESS[-1], boot="boot-2")
    log.node(TAINTER, "n1")
    log.node(TAINTER, "n1", OURS)


def released_by_a_reboot_of_what_has_to_be_replaced(log: Log) -> None:
    log.tainted_node("n1", REPLACE)
    log.health("n1", boot="boot-2")
    log.node(TAINTER, "n1")
    log.node(TAINTER, "n1", OURS)


def over_budget(log: Log) -> None:
    for number in range(11):
        log.tainted_node(f"n{number}")


def foreign_taint_removed(log: Log) -> None:
    log.node(PERSON, "n1", THEIRS)
    log.health("n1", FAULT)
    log.node(TAINTER, "n1", OURS)


def foreign_label_changed(log: Log) -> None:
    log.node(PERSON, "n1", rack="a")
    log.health("n1", FAULT)
    log.node(TAINTER, "n1", OURS, rack="b")


def fault_without_taint(log: Log) -> None:
    log.node(PERSON, "n1")
    log.health("n1", FAULT)


def taint_without_fault(log: Log) -> None:
    log.tainted_node()
    log.health("n1", clear=1)


def foreign_taint_lost(log: Log) -> None:
    log.node(PERSON, "n1")
    log.final = replace(log.final, foreign_taints={"n1": THEIR_TAINT})


def label_without_taint(log: Log) -> None:
    log.node(PERSON, "n1")
    log.node(TAINTER, "n1", label=True)


def line_without_finding(log: Log) -> None:
    log.node(PERSON, "n1")
    log.health("n1")
    log.final = replace(log.final, broken=frozenset({"n1"}))


def partition_leaked(log: Log) -> None:
    log.final = replace(log.final, partitions=["p-j1-chaos-0"])


def partition_missing(log: Log) -> None:
    log.final = replace(log.final, right_partitions=frozenset({"p-j1-chaos-0"}))


def call(log: Log, method: str, status_code: int = 202) -> None:
    log.wait()
    target = "/partitions" if method == "POST" else "/partitions/p-j1-chaos-0"
    log.calls.append(VipuCall(log.now, method, target, "p-j1-chaos-0", status_code))


def partition_doubled(log: Log) -> None:
    call(log, "POST")
    call(log, "POST")


def partition_taken(log: Log) -> None:
    call(log, "POST")
    log.write(OPERATOR, "create", "pods", "j1-worker-0", namespace="chaos", code=201)
    call(log, "DELETE")


def job_in_a_wrong_state(log: Log) -> None:
    log.final = replace(log.final, jobs={"j1": ("Failed", 0)}, right_ends={"j1": ("Completed", 0)})


def job_that_should_be_gone(log: Log) -> None:
    log.final = replace(log.final, jobs={"j1": ("Running", 1)})


def unreachable_agent_called_faulty(log: Log) -> None:
    log.node(PERSON, "n1")
    log.health("n1")
    log.final = replace(log.final, called_faulty=[("n1", log.now), ("n2", log.now)], well=frozenset({"n1"}))


def written_late(log: Log) -> None:
    log.wait(1e9)
    log.write(OPERATOR, "patch", "ipujobs/status", "j1", namespace="chaos")


PLANTED: Sequence[tuple[Callable[[Log], None], set[Rule]]] = [
    (healthy_node_tainted, {Rule.TAINTED_IN_HEALTH}),
    (node_tainted_long_after_its_fault, {Rule.TAINTED_IN_HEALTH}),
    (released_without_evidence, {Rule.RELEASED_WITH_FAULT}),
    (released_by_a_quiet_finding, {Rule.RELEASED_WITH_FAULT}),
    (released_by_a_reboot_after_which_nothing_could_be_measured, {Rule.RELEASED_WITH_FAULT}),
    (released_by_a_reboot_of_what_has_to_be_replaced, {Rule.RELEASED_WITH_FAULT}),
    (over_budget, {Rule.OVER_BUDGET}),
    (foreign_taint_removed, {Rule.FOREIGN_CHANGED}),
    (foreign_label_changed, {Rule.FOREIGN_CHANGED}),
    (fault_without_taint, {Rule.LOST_TAINT}),
    (taint_without_fault, {Rule.LEFT_TAINT}),
    (foreign_taint_lost, {Rule.FOREIGN_LOST}),
    (label_without_taint, {Rule.LABEL_APART}),
    (line_without_finding, {Rule.LOST_LINE}),
    (partition_leaked, {Rule.LEAKED}),
    (partition_missing, {Rule.MISSING}),
    (partition_doubled, {Rule.DOUBLED}),
    (partition_taken, {Rule.TAKEN}),
    (job_in_a_wrong_state, {Rule.WRONG_END}),
    (job_that_should_be_gone, {Rule.WRONG_END}),
    (unreachable_agent_called_faulty, {Rule.UNREACHABLE_FAILS}),
    (written_late, {Rule.RESTLESS}),
]


@pytest.mark.parametrize(("plant", "found"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_planted_violation_is_found_and_nothing_else(
    tmp_path: Path, plant: Callable[[Log], None], found: set[Rule]
) -> None:
    log = Log()
    plant(log)
    assert log.judged(tmp_path) == found


def test_every_rule_has_a_planted_violation() -> None:
    assert {rule for _, rules in PLANTED for rule in rules} == set(Rule)


def test_a_fault_that_is_tainted_and_released_on_evidence_is_no_violation(tmp_path: Path) -> None:
    log = Log()
    log.tainted_node("cleared")
    log.health("cleared", FAULT, clear=1)
    log.node(TAINTER, "cleared")
    log.tainted_node("rebooted")
    log.health("rebooted", boot="boot-2")
    log.node(TAINTER, "rebooted")
    log.tainted_node("repaired", REPLACE)
    over = {"component": REPLACE["component"], "reason": REPLACE["reason"], "occurrence": 1, "how": "request"}
    log.health("repaired", boot="boot-2", cleared=over)
    log.node(TAINTER, "repaired")
    log.tainted_node("again")
    log.health("again", clear=1)
    log.health("again", FAULT | {"occurrence": 2}, clear=1)  # the release was decided on before
    log.node(TAINTER, "again")
    log.node(TAINTER, "again", OURS)
    assert log.judged(tmp_path) == set()


def test_a_fault_that_waits_for_its_budget_is_no_lost_taint(tmp_path: Path) -> None:
    log = Log()
    log.tainted_node("n1")
    log.node(PERSON, "n2")
    log.health("n2", FAULT)
    assert log.judged(tmp_path, budget=1) == set()
    assert log.judged(tmp_path, budget=2) == {Rule.LOST_TAINT}


def test_a_release_that_the_audit_log_lost_when_the_api_server_was_killed_is_no_violation(tmp_path: Path) -> None:
    log = Log()
    log.tainted_node("n1")
    log.health("n1", clear=1)
    log.node(TAINTER, "n1", audited=False)
    log.snapshots.append(log.nodes["n1"])
    log.tainted_node("n2")
    assert log.judged(tmp_path, budget=1) == set()


def test_a_clear_that_was_deleted_with_the_crd_before_the_tainter_came_back_excuses_a_taint(tmp_path: Path) -> None:
    log = Log()
    log.node(PERSON, "n1")
    log.health("n1", FAULT)
    log.health("n1", clear=1)
    log.write(PERSON, "delete", "customresourcedefinitions", "nodehealths.muster.dev")
    log.wait(STALE_S)
    log.node(TAINTER, "n1", OURS)
    log.health("n1")
    log.node(TAINTER, "n1")
    assert log.judged(tmp_path) == set()
    log.wait(STALE_S)
    log.node(TAINTER, "n1", OURS)  # the agent has told it anew
    log.node(TAINTER, "n1")
    assert log.judged(tmp_path) == {Rule.TAINTED_IN_HEALTH}


@pytest.mark.parametrize("was_read", [False, True])
def test_a_fault_whose_clear_was_deleted_with_the_crd_and_that_is_told_anew_may_be_tainted_or_not(
    tmp_path: Path, was_read: bool
) -> None:
    log = Log()
    log.tainted_node("n1")
    log.health("n1", FAULT, clear=1)
    if was_read:
        log.node(TAINTER, "n1")
    log.wait(1.0)
    log.write(PERSON, "delete", "customresourcedefinitions", "nodehealths.muster.dev")
    log.wait(1.0)
    log.health("n1", FAULT)
    assert log.judged(tmp_path) == set()
    log.health("n1", FAULT | {"occurrence": 2})
    assert log.judged(tmp_path) == ({Rule.LOST_TAINT} if was_read else set())
    log.health("n1", FAULT | {"occurrence": 2}, clear=2)
    assert log.judged(tmp_path) == (set() if was_read else {Rule.LEFT_TAINT})


@pytest.mark.parametrize(("verdict", "wrong"), [("UNKNOWN", set()), ("FAIL", {Rule.LOST_TAINT})])
def test_a_fault_that_was_told_only_before_the_crd_was_deleted_may_be_known_to_nobody(
    tmp_path: Path, verdict: str, wrong: set[Rule]
) -> None:
    log = Log()
    log.node(PERSON, "n1")
    log.health("n1", FAULT)
    log.wait(1.0)
    log.write(PERSON, "delete", "customresourcedefinitions", "nodehealths.muster.dev")
    log.wait(1.0)
    log.health("n1", FAULT | {"verdict": verdict})
    assert log.judged(tmp_path) == wrong
    log.health("n1", FAULT)
    assert log.judged(tmp_path) == {Rule.LOST_TAINT}
    log.health("n1", FAULT | {"verdict": "UNKNOWN"})
    assert log.judged(tmp_path) == {Rule.LOST_TAINT}


def test_a_node_whose_last_state_is_not_known_is_blamed_on_nobody(tmp_path: Path) -> None:
    """The API server was killed as a person removed a taint, and the tainter wrote before the observer looked."""
    log = Log()
    log.node(PERSON, "n1", THEIRS)
    log.health("n1", FAULT)
    log.node(PERSON, "n1", audited=False)
    log.node(TAINTER, "n1", OURS)
    assert log.judged(tmp_path) == set()


def test_a_request_that_was_refused_and_half_a_line_are_no_writes(tmp_path: Path) -> None:
    log = Log()
    log.write(TAINTER, "patch", "nodes", "n1", code=409)
    file = tmp_path / "audit.log"
    file.write_text(json.dumps(log.lines[0]) + '\n{"kind": "Ev')
    writes, end = read_writes(file)
    assert (writes, end) == ([], len(json.dumps(log.lines[0])) + 1)
