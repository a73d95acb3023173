"""The words of messages that people act on. Each is held here and nowhere else, so that its English can be improved."""

from typing import Any

import pytest
from tests.tainter.agents.fleet_of_agents import GRACE_S, FleetOfAgents
from tests.tainter.verification.proved_node import just_tainted

from muster_kube.api.reviews import Identity
from muster_kube.api.times import seconds
from muster_kube.webhook.review import AdmissionRequest, Resource
from muster_tainter.agents.own_node import AgentAccount, find_speaker, judge
from muster_tainter.budgets.incidents import FLEET, Incident
from muster_tainter.budgets.pool_usage import Shortage
from muster_tainter.events.affected_pods import Concern, format_message, pods_run
from muster_tainter.explain.explanation import format_explanation
from muster_tainter.explain.node import explain_node
from muster_tainter.faults.decision_context import DecisionContext
from muster_tainter.faults.desired_state import decide
from muster_tainter.faults.logs.audit_log import log_taints
from muster_tainter.faults.policy_match import match_policy
from muster_tainter.faults.record.node_record import Fault, OurTaint
from muster_tainter.policy.file import PolicyError, load_policy, parse_policy
from muster_tainter.policy.sections.heavy_checks import AtOnce
from muster_tainter.sources.loki.streams import log_line
from muster_tainter.verification.messages import format_proof

NOW = 1_800_000_000.0
POLICY = load_policy(None)
RACK = "topology.kubernetes.io/rack"
HALF = AtOnce(percent=50)
FAULT = Fault(
    check="dmesg", component="gpu/0000:3b:00.0", reason="Xid79", occurrence=1, since="2026-01-01T00:00:00Z",
    message="fell off the bus",
)  # fmt: skip


# what holds a taint back


@pytest.mark.parametrize(
    ("shortage", "message"),
    [
        (Shortage("h100", "tainted", 3, 3, AtOnce(percent=30), 10), "pool h100 has 3 of 3 nodes tainted (30% of 10)"),
        (
            Shortage("h100", "perDomain", 2, 2, HALF, 4, RACK, "r0"),
            f"pool h100 has 2 of 2 nodes in {RACK}=r0 tainted (50% of 4)",
        ),
        (
            Shortage("h100", "perDomain", 1, 1, AtOnce(1), 3, RACK),
            f"pool h100 has 1 of 1 nodes without {RACK} tainted",
        ),
        (
            Shortage("h100", "healthyPerDomain", 2, 2, AtOnce(2), 3, RACK, "r0"),
            f"pool h100 has 2 healthy nodes in {RACK}=r0, at least 2 must stay healthy",
        ),
        (
            Shortage("h100", "rate", 2, 2, AtOnce(2), 10, within=600.0),
            "pool h100 had 2 of 2 nodes newly tainted within 600 s",
        ),
        (
            Shortage("h100", "tainted", 0, 1, AtOnce(1), 3, for_worse=True),
            "pool h100: the room left (tainted 1) is reserved for nodes with more severe faults",
        ),
        (Shortage("", "unknown", 0, 0, AtOnce(0), 0), "the node and its pools are not known yet"),
    ],
    ids=["tainted", "domain", "no-domain", "healthy", "rate", "for-worse", "unknown"],
)
def test_budget(shortage: Shortage, message: str) -> None:
    assert shortage.reason == f"budget: {message}"


@pytest.mark.parametrize(("ground", "where"), [((RACK, "r7"), f"{RACK}=r7"), (FLEET, "the fleet")])
def test_incident(ground: tuple[str, str], where: str) -> None:
    incident = Incident("dmesg/LinkDown@1", "dmesg", "LinkDown", ground, seconds("2026-03-01T12:00:00Z"), 12)
    assert incident.text == f"incident: dmesg LinkDown on 12 nodes of {where} since 2026-03-01T12:00:00Z"


# Events and conditions


@pytest.mark.parametrize(
    ("changes", "next_step"),
    [
        ({}, "running pods are not evicted; new pods are scheduled elsewhere until the node passes verification"),
        (
            {"taint": OurTaint(key="muster.dev/faulty", value="true", effect="PreferNoSchedule")},
            "running pods are not evicted; new pods are scheduled elsewhere if possible",
        ),
        (
            {"taint": OurTaint(key="muster.dev/faulty", value="true", effect="NoExecute")},
            "pods that do not tolerate the taint are evicted",
        ),
        ({"drain": True}, "its pods will be evicted, as configured by the pool's drain"),
    ],
    ids=["NoSchedule", "PreferNoSchedule", "NoExecute", "drain"],
)
def test_event_on_the_pods_of_a_tainted_node(changes: dict[str, Any], next_step: str) -> None:
    values: dict[str, Any] = {"taint": OurTaint(key="muster.dev/faulty", value="true", effect="NoSchedule")} | changes
    concern = Concern(FAULT, "hardware", **values)
    assert format_message("n7", [concern], pods_run(["a", "b"])) == (
        f"node n7 is tainted muster.dev/faulty=true:{concern.taint.effect} (rule hardware): dmesg gpu/0000:3b:00.0 "
        f"Xid79: fell off the bus; its pods a, b run there; {next_step}"
    )


def test_event_on_a_pod_of_a_node_whose_taint_is_withheld() -> None:
    taint = OurTaint(key="muster.dev/faulty", value="true", effect="NoSchedule")
    concern = Concern(FAULT, "hardware", taint, withheld="budget: 3 of 3")
    assert format_message("n7", [concern], "this pod runs") == (
        "node n7 is faulty (rule hardware): dmesg gpu/0000:3b:00.0 Xid79: fell off the bus; this pod runs there; it "
        "is not tainted now (budget: 3 of 3), so more pods may be scheduled there"
    )


def test_condition_and_events_of_a_node_whose_taint_is_withheld(make: Any) -> None:
    context = DecisionContext(withhold="budget: 3 of 3")
    decision = decide(make.node(), make.health(make.finding(message="gone")), POLICY, NOW, {}, context)
    assert decision.condition is not None
    assert decision.condition.message == (
        "dmesg gpu/0000:3b:00.0 Xid79: gone (class reboot, rule hardware, since 2027-01-15T08:00:00Z); no taint: "
        "budget: 3 of 3"
    )
    assert {notice.reason: notice.message for notice in decision.notices} == {
        "NodeFaultOpened": "dmesg gpu/0000:3b:00.0 Xid79: gone [reboot, rule hardware]",
        "TaintWithheld": "dmesg gpu/0000:3b:00.0 Xid79: gone is not tainted: budget: 3 of 3",
    }


def test_agent_that_is_silent() -> None:
    fleet = FleetOfAgents()
    fleet.add("n1", "n2")
    fleet.pod("n1", ready=False)
    fleet.wait(GRACE_S)
    found = fleet.finding("n1")
    assert found is not None
    assert found.message == (
        "no ready agent since 2027-01-15T08:00:00Z: pod muster/agent-n1: Running, ContainersNotReady"
    )


def test_most_agents_silent() -> None:
    fleet = FleetOfAgents()
    fleet.add(*(f"n{number}" for number in range(10)))
    for number in range(9):
        fleet.pod(f"n{number}", ready=False)
    fleet.wait(GRACE_S)
    assert fleet.liveness.outage is not None
    assert fleet.liveness.outage_text(fleet.liveness.outage) == (
        "9 of 10 agents are silent, the first since 2027-01-15T08:00:00Z: treated as one incident; the health of "
        "their nodes is unknown, and Muster neither taints them nor reports them one by one"
    )


# refusals

ACCOUNT = AgentAccount("muster", "muster-agent")


def status_write(node: str) -> AdmissionRequest:
    return AdmissionRequest(
        uid="r-1",
        user_info=Identity(user=str(ACCOUNT), extra={}),
        resource=Resource(group="muster.dev", version="v1alpha1", resource="nodehealths"),
        sub_resource="status",
        name=node,
        operation="UPDATE",
    )


def test_agent_that_writes_another_nodes_status() -> None:
    assert judge(status_write("node-2"), "node-1", "pod agent-1").message == (
        "pod agent-1 runs on node node-1: it may write only the status of NodeHealth node-1, not of node-2"
    )


def test_agent_whose_pod_is_gone() -> None:
    assert judge(status_write("node-1"), "", "pod agent-1").message == (
        "pod agent-1, to which the token is bound, does not exist or is not scheduled: only a running agent may report"
    )


def test_agent_whose_token_is_bound_to_no_pod() -> None:
    answer = find_speaker(status_write("node-1"), ACCOUNT)
    assert getattr(answer, "message", None) == (
        "the token of system:serviceaccount:muster:muster-agent is not bound to a pod, so its node is unknown: use a "
        "projected token, as the kubelet mounts it into the agent's pod (volume source serviceAccountToken); a token "
        "from a Secret of the account is not accepted"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "rules: [{name: a, action: tain}]",
            'rules[0].action: "tain": expected taint, drain, quarantine, event or ignore (line 1)',
        ),
        ("rules: [], testing: {cap: 3}", "testing.cap: unknown key: expected atOnce, coverage or pause (line 1)"),
        (
            "rules: [], testing: {coverage: 7}",
            "testing.coverage: 7: expected a time of 1 s to 366 days, such as 90s, 10m, 2h or 7d (line 1)",
        ),
        (
            "rules: [], testing: {atOnce: x}",
            'testing.atOnce: "x": expected a number of nodes, 0 to 100000, or a share such as "5%" (line 1)',
        ),
    ],
    ids=["choice", "key", "time", "nodes"],
)
def test_policy_that_is_rejected(text: str, message: str) -> None:
    with pytest.raises(PolicyError) as error:
        parse_policy(f"{{{text}}}")
    assert str(error.value) == f"policy.yaml: {message}"


# the log: words that searches look for (docs/tainter.md)


def test_log_line_of_a_taint(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        log_taints("n1", decide(make.node(), make.health(make.finding(message="gone")), POLICY, NOW), dry_run=False)
    assert caplog.messages == [
        "Node n1 tainted: muster.dev/faulty=true:NoSchedule rule hardware: dmesg gpu/0000:3b:00.0 Xid79: gone"
    ]


def test_log_line_of_a_kernel_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        log_line("n1", "NVRM: Xid (PCI:0000:3b:00): 79")
    assert caplog.messages == ["node `n1` has dmesg error: NVRM: Xid (PCI:0000:3b:00): 79"]


# why a node is tainted


def test_explanation_of_a_tainted_node(make: Any) -> None:
    health = make.health(make.finding(message="gone", count=3, origin="kernel"), observed="2027-01-15T08:00:00Z")
    node = decide(make.node(), health, POLICY, NOW).applied(make.node())
    assert list(format_explanation(explain_node(node, health, POLICY, NOW + 7980))) == [
        "n1 TAINTED  for 2h 13m, needs a reboot: dmesg gpu/0000:3b:00.0 Xid79: gone [written by the kernel], 3 times",
        "  taints: muster.dev/faulty=true:NoSchedule",
        "",
        "TAINTED  dmesg gpu/0000:3b:00.0 Xid79",
        "  saw      gone [written by the kernel], 3 times",
        "  rule     hardware: FAIL of class reboot -> taint muster.dev/faulty=true:NoSchedule",
        "  since    2h 13m ago (2027-01-15T08:00:00Z), occurrence 1, boot boot-1",
        "  ends by  a reboot after which the check no longer finds it; or the driver reporting that it is resolved; "
        "or an operator: muster clear n1 dmesg",
        "",
        "last report 2h 13m ago (2027-01-15T08:00:00Z): FAIL, boot boot-1",
        "  muster clear n1    declare its faults resolved",
        "  muster release n1  the same, and remove everything that Muster set on the node",
    ]


def test_first_line_of_an_explanation_while_muster_is_paused(make: Any) -> None:
    explanation = explain_node(make.node(), make.health(), POLICY, NOW, paused="paused by ada: switches")
    assert list(format_explanation(explanation))[:2] == [
        "PAUSED by ada: switches; no new taints, recovery continues",
        "n1 FREE  last report: PASS",
    ]


def test_verification_that_waits() -> None:
    node = just_tainted()

    def lines() -> list[str]:
        [fault] = node.memory.open
        hold_s = node.policy.hold_down.base
        return format_proof(fault, match_policy(fault, node.policy), node.health, node.now, hold_s=hold_s)

    assert lines() == ["first attempt not before 2027-01-15T08:01:00Z"]
    node.idle = False
    node.publish()
    node.after(61.0)
    assert lines() == ["waiting for the node to be idle, or for a verification slot"]
    node.idle = True
    node.publish()
    node.settle()
    node.answer("FAIL", "Slow")
    node.settle()
    failed, again = lines()
    assert failed == "not passed 1 time in this boot, last: FAIL Slow"
    assert again.startswith("next attempt not before 2027-01-15T08:")
