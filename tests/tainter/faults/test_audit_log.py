"""What people and machines are told: log lines, Events, conditions, explanations, settings' errors."""

import json
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster_kube.api.objects import Metadata, Node, NodeCondition
from muster_kube.nodehealth import (
    AgentIdentity,
    CheckRequest,
    ClearEntry,
    NodeHealth,
    NodeHealthSpec,
    NodeHealthStatus,
    ReportedMeasurement,
    RequestAnswer,
)
from muster_kube.process.logs import OneLine
from muster_kube.process.settings import SettingsError
from muster_tainter.events.recorder import condition_patch, event_name
from muster_tainter.explain.node import explain_node, format_explanation
from muster_tainter.faults.audit_log import log_taints, transitions
from muster_tainter.faults.decision_context import DecisionContext
from muster_tainter.faults.desired_state import CONDITION, Notice, decide
from muster_tainter.faults.event_only import event_only_notices
from muster_tainter.faults.node_report import read_report
from muster_tainter.fleet.projection import slim_health, slim_node
from muster_tainter.policy.file import load_policy
from muster_tainter.policy.recovery import MANAGER, ProofRequest
from muster_tainter.settings import load
from muster_tainter.verification.fleet_plan import node_test_state

NOW = 1_800_000_000.0
POLICY = load_policy(None)


def test_each_transition_of_a_finding_is_one_line(make: Any) -> None:
    nothing, one = make.health(), make.health(make.finding())
    [check, came] = sorted(transitions(nothing, one), key=lambda line: line["event"])
    assert (came["event"], came["from"], came["to"], came["reason"]) == ("finding", None, "FAIL", "Xid79")
    assert (check["from"], check["to"]) == ("PASS", "FAIL")
    again = list(transitions(one, make.health(make.finding(occurrence=2))))
    assert [(c["from"], c["to"], c["occurrence"]) for c in again] == [("FAIL", "FAIL", 2)]
    went = [c for c in transitions(one, make.health(boot="boot-2")) if c["event"] != "check"]
    assert [c["event"] for c in went] == ["boot", "finding"]
    assert went[1]["to"] is None
    json.dumps(went)


def test_counts_and_times_are_no_transition(make: Any) -> None:
    one = make.health(make.finding())
    other = make.health(make.finding(count=9, last_seen="2026-01-02T00:00:00Z"), observed="2026-01-02T00:00:00Z")
    assert list(transitions(one, other)) == []


def test_clears_are_transitions_too(make: Any) -> None:
    clear = ClearEntry(check="dmesg", component="*", occurrence=1, by="ada")
    events = list(transitions(make.health(), make.health(clear=(clear,), cleared=(make.cleared(),))))
    assert [e["event"] for e in events] == ["cleared", "clear"]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_taint_is_one_line_with_node_taint_and_rule(make: Any, caplog: Any, as_json: bool) -> None:
    finding = make.finding(message="line\nNode n2 tainted: forged")
    with caplog.at_level(logging.INFO):
        log_taints("n1", decide(make.node(), make.health(finding), POLICY, NOW), dry_run=False)
    [record] = caplog.records
    line = OneLine(as_json=as_json).format(record)
    assert "\n" not in line
    if as_json:
        told = json.loads(line)
        assert (told["node"], told["taint"], told["rule"]) == ("n1", "muster.dev/faulty=true:NoSchedule", "hardware")
    else:
        assert "WARNING Node n1 tainted: muster.dev/faulty=true:NoSchedule rule hardware: dmesg" in line


def test_findings_that_do_nothing_else_are_said(make: Any) -> None:
    health = make.health(make.finding("Xid13", 1, verdict="WARN"), make.finding("Xid31", 2, fault_class="restart-app"))
    health = msgspec.structs.replace(health, status=msgspec.structs.replace(health.status, verdict="FAIL"))
    told = event_only_notices(read_report(health), POLICY)
    assert {key[2]: (number, notice.reason) for key, (number, notice) in told.items()} == {
        "Xid13": (1, "HealthWarning"),
        "Xid31": (2, "HealthFailure"),
    }
    assert event_only_notices(read_report(make.health(make.finding())), POLICY) == {}


def test_the_same_news_has_the_same_name_and_other_news_another() -> None:
    news = Notice("NodeTainted", "a", "x")
    assert event_name("n1", news) == event_name("n1", Notice("NodeTainted", "b", "x"))
    assert (
        len({event_name("n1", news), event_name("n2", news), event_name("n1", Notice("NodeUntainted", "a", "x"))}) == 3
    )
    assert len(event_name("n" * 253, news)) <= 253


def test_a_condition_keeps_its_transition_time_while_its_status_stays(make: Any) -> None:
    old = NodeCondition(type=CONDITION, status="False", reason="Xid79", last_transition_time="2026-01-01T00:00:00Z")
    node = msgspec.structs.replace(make.node(), status=msgspec.structs.replace(make.node().status, conditions=(old,)))
    for status, since in (("False", "2026-01-01T00:00:00Z"), ("True", "2026-02-01T00:00:00Z")):
        body: Any = condition_patch(node, NodeCondition(type=CONDITION, status=status), "2026-02-01T00:00:00Z")
        assert body["status"]["conditions"][0]["lastTransitionTime"] == since


class TestExplain:
    """Chains for people."""

    def text(self, node: Node, health: Any, policy: Any = POLICY, now: float = NOW, paused: str = "") -> str:
        return "\n".join(format_explanation(explain_node(node, health, policy, now, paused=paused)))

    def test_the_first_line_says_state_and_reason(self, make: Any) -> None:
        health = make.health(make.finding())
        node = decide(make.node(), health, POLICY, NOW).applied(make.node())
        first = self.text(node, health).splitlines()[0]
        assert first.startswith("n1 TAINTED  for 0s, needs a reboot: dmesg gpu/0000:3b:00.0 Xid79: NVRM: Xid")
        assert self.text(make.node(), make.health()).splitlines()[0] == "n1 FREE  its last report was PASS"

    def test_a_tainted_node_shows_the_chain_of_evidence(self, make: Any) -> None:
        measured = ReportedMeasurement(name="bandwidth", value=3.2, unit="GB/s", threshold=4.0)
        health = make.health(make.finding(count=3, origin="kernel", measurements=(measured,)))
        node = decide(make.node(), health, POLICY, NOW).applied(make.node())
        [chain] = explain_node(node, health, POLICY, NOW + 7980).chains
        told = dict(chain.links)
        assert [link.label for link in chain.links] == ["saw", "measured", "rule", "since", "ends by"]
        assert told["saw"].endswith("fallen off the bus. [the kernel's own], 3 times")
        assert told["measured"] == "bandwidth 3.2 GB/s -> threshold 4 GB/s"
        assert told["rule"] == "hardware: FAIL of class reboot -> taint muster.dev/faulty=true:NoSchedule"
        assert told["since"].startswith("2h 13m ago (2027-01-15T08:00:00Z), occurrence 1, boot boot-1")
        assert told["ends by"].startswith("a reboot after which it is not found; or the driver's own word")
        assert told["ends by"].endswith("or a person: muster clear n1 dmesg")

    def test_what_a_budget_or_a_pause_withholds_is_said_with_its_reason(self, make: Any) -> None:
        health = make.health(make.finding())
        decision = decide(make.node(), health, POLICY, NOW, around=DecisionContext(withhold="paused by ada: switches"))
        node = decision.applied(make.node())
        status = msgspec.structs.replace(node.status, conditions=(decision.condition,))
        node = msgspec.structs.replace(node, status=status)
        text = self.text(node, health, paused="paused by ada: switches")
        assert text.startswith("PAUSED by ada: switches; nothing new is tainted")
        assert "n1 WITHHELD  for 0s, needs a reboot: dmesg" in text
        assert "withheld paused by ada: switches" in text

    def test_a_fault_that_waits_or_is_held_says_until_when(self, make: Any, policy_of: Any) -> None:
        policy = policy_of("rules: [{name: hw, match: {}, action: taint, for: 30s}]")
        health = make.health(make.finding())
        node = decide(make.node(), health, policy, NOW).applied(make.node())
        assert "for 30 s, as its rule says, until 2027-01-15T08:00:30Z" in self.text(node, health, policy, NOW + 1)
        at = NOW
        for number in (1, 2):
            health = make.health(make.finding(occurrence=number))
            node = decide(node, health, policy, at).applied(node)
            node = decide(node, health, policy, at + 60).applied(node)
            health = make.health(cleared=(make.cleared(occurrence=number),))
            node = decide(node, health, policy, at + 120).applied(node)
            at += 1000
        text = self.text(node, health, policy, NOW + 1130)
        assert "n1 TAINTED  for 2m, over, held as it comes and goes: dmesg" in text, "nothing is asked of anybody"
        assert "which alone closes nothing" not in text
        assert "HELD  dmesg" in text
        assert "held     over 10s ago (2027-01-15T08:18:40Z) by driver" in text
        assert "so the taint stays until" in text
        bare = msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, taints=()))
        assert "so it stays a fault, without a taint, until" in self.text(bare, health, policy, NOW + 1130)

    def test_a_proof_that_is_asked_for_says_how_far_it_is(self, make: Any, policy_of: Any) -> None:
        policy = policy_of("rules: [{name: hw, match: {}, action: taint, proof: {checks: [dcgm]}}]")
        health = make.health(make.finding())
        node = decide(make.node(), health, policy, NOW).applied(make.node())
        proof = policy.rules[0].proof_of("dmesg", "reboot")
        request = CheckRequest(id=ProofRequest(proof.digest, NOW + 60).id, checks=("dcgm",), by=MANAGER)
        answers = (RequestAnswer(id=request.id, verdict="PASS", runs=3, passes=1),)
        health = msgspec.structs.replace(
            health,
            spec=NodeHealthSpec(requests=(request,)),
            status=msgspec.structs.replace(health.status, answers=answers),
        )
        assert "proof    dcgm, asked 60s ago: 1 of 3 passed so far" in self.text(node, health, policy, NOW + 120)
        assert "dcgm passing 3 times on request, after a reboot" in self.text(node, health, policy, NOW + 120)

    def test_a_closed_fault_tells_who_closed_it_when_and_by_which_rule_it_was_one(self, make: Any) -> None:
        health = make.health(make.finding())
        node = decide(make.node(), health, POLICY, NOW).applied(make.node())
        clear = ClearEntry(check="dmesg", component="*", occurrence=1, by="ada")
        health = make.health(make.finding(), clear=(clear,))
        node = decide(node, health, POLICY, NOW + 300).applied(node)
        [closed] = explain_node(node, health, POLICY, NOW + 360).closed
        told = dict(closed.links)
        assert (told["who"], told["rule"]) == ("ada (person)", "hardware")
        assert told["closed"] == "60s ago (2027-01-15T08:05:00Z), after 5m, occurrence 1"
        text = self.text(node, health, now=NOW + 360)
        assert text.startswith("n1 FREE  ")
        assert "closed 60s ago (2027-01-15T08:05:00Z) by ada (person); only a new firing counts" in text

    def test_a_finding_that_only_is_said_names_its_rule(self, make: Any) -> None:
        text = self.text(make.node(), make.health(make.finding("Xid31", verdict="WARN", fault_class="restart-app")))
        assert "dmesg gpu/0000:3b:00.0 Xid31  WARN" in text
        assert "rule     warnings: event" in text

    def test_what_is_missing_is_said(self, make: Any) -> None:
        assert "no NodeHealth" in self.text(make.node(), None)
        assert "leaves it alone" in self.text(make.node(labels={"muster.dev/managed": "false"}), None)
        assert "cannot be read" in self.text(make.node(**{"muster.dev/faults": "{"}), make.health())
        assert "makes no sense" in self.text(make.node(), make.health(make.finding(occurrence=0)))

    def test_every_word_is_in_the_json_too(self, make: Any) -> None:
        health = make.health(make.finding())
        node = decide(make.node(), health, POLICY, NOW).applied(make.node())
        document = json.loads(msgspec.json.encode(explain_node(node, health, POLICY, NOW)))
        assert (document["state"], document["chains"][0]["state"]) == ("TAINTED", "tainted")
        assert ["rule", "hardware: FAIL of class reboot -> taint muster.dev/faulty=true:NoSchedule"] in (
            document["chains"][0]["links"]
        )


def test_projections_change_no_decision(make: Any) -> None:
    node = make.node(make.faulty, labels={"muster.dev/health": "pass", "zone": "a"}, other="x" * 5000)
    health = make.health(make.finding(), cleared=(make.cleared(reason="Xid95"),))
    assert decide(slim_node(node), slim_health(health), POLICY, NOW) == decide(node, health, POLICY, NOW)
    assert slim_node(node).metadata.labels == {"muster.dev/health": "pass"}
    assert slim_node(node, {"zone", "none"}).metadata.labels == {"muster.dev/health": "pass", "zone": "a"}
    assert slim_node(node).metadata.annotations == {}


def test_what_the_plan_needs_of_a_health_is_kept() -> None:
    request = CheckRequest(
        id="plan-pciebw-1", checks=("pciebw",), by="muster-tainter-plan", expires="2026-01-01T00:00:30Z"
    )
    answers = tuple(
        RequestAnswer(id=name, verdict="PASS", finished="x", message="long") for name in (request.id, "older")
    )
    health = NodeHealth(
        metadata=Metadata(
            name="n1", creation_timestamp="2026-01-01T00:00:00Z", annotations={"muster.dev/tests": "{}", "other": "x"}
        ),
        spec=NodeHealthSpec(requests=(request,)),
        status=NodeHealthStatus(
            verdict="PASS",
            agent=AgentIdentity(pod_uid="p", version="1"),
            idle_since="x",
            due=("pciebw",),
            answers=answers,
        ),
    )
    slim = slim_health(health)
    assert node_test_state(Node(metadata=Metadata(name="n1")), slim, POLICY) == node_test_state(
        Node(metadata=Metadata(name="n1")),
        msgspec.structs.replace(
            health,
            status=msgspec.structs.replace(
                health.status, answers=(msgspec.structs.replace(answers[0], message=""), answers[1])
            ),
        ),
        POLICY,
    )
    assert [answer.id for answer in slim.status.answers] == [request.id]
    assert slim.metadata.annotations == {"muster.dev/tests": "{}"}
    again = slim_health(
        msgspec.structs.replace(health, status=msgspec.structs.replace(health.status, due=("pcie" + "bw",)))
    )
    assert again.status.due is slim.status.due  # one list for the fleet


class TestSettings:
    """File, environment, flags."""

    def test_flags_stand_over_environment_over_file(self, tmp_path: Path) -> None:
        file = tmp_path / "tainter.yaml"
        file.write_text("{port: 1, host: a, logFormat: text}".replace("logFormat", "log_format"))
        loaded = load(file, {"port": 3, "host": None}, {"MUSTER_TAINTER_PORT": "2", "MUSTER_TAINTER_HOST": "b"})
        assert (loaded.port, loaded.host) == (3, "b")

    @pytest.mark.parametrize(("text", "flags", "environ", "said_"), [
        ("{prot: 1}", {}, {}, "tainter.yaml: prot: 1: unknown key; allowed: kubeconfig, policy"),
        ("{port: 70000}", {}, {}, "tainter.yaml: port: 70000"),
        ("{}", {}, {"MUSTER_TAINTER_PRT": "1"}, "MUSTER_TAINTER_PRT: unknown variable; allowed: MUSTER_TAINTER_"),
        ("{}", {"log_format": "xml"}, {}, "--log-format: 'xml'"),
        ("[]", {}, {}, "expected a mapping"),
        ("{", {}, {}, "no YAML"),
    ])  # fmt: skip
    def test_an_error_names_the_place(
        self, tmp_path: Path, text: str, flags: dict[str, object], environ: dict[str, str], said_: str
    ) -> None:
        file = tmp_path / "tainter.yaml"
        file.write_text(text)
        with pytest.raises(SettingsError) as caught:
            load(file, flags, environ)
        assert said_ in str(caught.value)

    def test_the_variables_of_a_service_are_no_settings(self) -> None:
        environ = {"MUSTER_TAINTER_SERVICE_HOST": "10.0.0.1", "MUSTER_TAINTER_PORT": "tcp://10.0.0.1:3334"}
        assert load(None, {}, environ).port == 3334
