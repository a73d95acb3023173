"""Whose agent is silent, by the agents' pods: when it is found, what is done about it, and when it is over."""

from typing import Any

import msgspec
import pytest
from tests.tainter.agents.fleet_of_agents import GRACE_S, START, TAINT, UNKNOWN, FleetOfAgents

from muster_kube.api.objects import Metadata, Node, NodeSpec, Taint
from muster_kube.api.times import rfc3339_whole
from muster_kube.nodehealth import NodeHealth
from muster_tainter.agents.pods import AgentPod, slim_agent_pod
from muster_tainter.policy.file import PolicyError, parse_policy


@pytest.fixture
def fleet() -> FleetOfAgents:
    return FleetOfAgents()


@pytest.fixture
def tainting() -> FleetOfAgents:
    return FleetOfAgents(TAINT)


def test_a_silent_agent_is_found_after_the_grace_and_not_before(fleet: FleetOfAgents) -> None:
    fleet.add("n1", "n2")
    fleet.wait(1000)
    fleet.pod("n1", ready=False)
    fleet.wait(GRACE_S - 1)
    assert fleet.finding("n1") is None
    fleet.wait(1)
    found = fleet.finding("n1")
    assert found is not None
    assert found.verdict == "FAIL"
    for fact in (rfc3339_whole(START + 1000), "muster/agent-n1", "Running, ContainersNotReady"):
        assert fact in found.message
    assert fleet.finding("n2") is None


def test_its_node_is_unknown_and_it_is_said_once(fleet: FleetOfAgents) -> None:
    fleet.add("n1", "n2")
    fleet.decide_all()
    assert fleet.label("n1") == "pass"
    fleet.pod("n1", ready=False)
    fleet.wait(GRACE_S)
    for _ in range(3):
        made = fleet.decide("n1")
    assert not made.writes
    assert fleet.label("n1") == "unknown"
    condition = fleet.condition("n1")
    assert (condition.status, condition.reason) == ("Unknown", "AgentSilent")
    assert rfc3339_whole(START) in condition.message
    assert fleet.told() == ["n1"]
    assert fleet.taints("n1") == []


def test_by_policy_the_node_is_tainted_with_a_key_of_its_own_until_the_agent_is_back(tainting: FleetOfAgents) -> None:
    fleet = tainting
    fleet.add("n1", "n2", "n3", "n4", "n5")
    fleet.pod("n1", ready=False)
    fleet.wait(GRACE_S)
    fleet.decide("n1")
    assert fleet.taints("n1") == [UNKNOWN]
    assert fleet.nodes["n1"].metadata.labels["muster.dev/faulty"] == "true"
    fleet.pod("n1", ready=True)
    fleet.decide("n1")
    assert fleet.taints("n1") == []
    assert fleet.label("n1") == "pass"
    assert fleet.told("FaultClosed") == ["n1"]
    assert not fleet.decide("n1").writes


def test_a_silence_that_the_budget_withholds_is_unknown_all_the_same_and_said_once(tainting: FleetOfAgents) -> None:
    fleet = tainting
    fleet.add("n1", "n2", "n3", "n4", "n5")
    fleet.pod("n1", ready=False)
    fleet.wait(GRACE_S)
    for _ in range(3):
        fleet.decide("n1", withhold="budget: 1 of 1")
    assert fleet.taints("n1") == []
    assert fleet.label("n1") == "unknown"
    condition = fleet.condition("n1")
    assert (condition.status, condition.reason) == ("Unknown", "AgentSilent")
    assert "budget: 1 of 1" in condition.message
    assert (fleet.told(), fleet.told("TaintWithheld")) == (["n1"], ["n1"])
    fleet.decide("n1")
    assert fleet.taints("n1") == [UNKNOWN]


def test_a_second_silence_is_a_firing_of_its_own_even_if_the_clock_was_set_back(fleet: FleetOfAgents) -> None:
    fleet.add("n1", "n2")
    for _ in range(2):
        fleet.pod("n1", ready=False)
        fleet.wait(GRACE_S)
        fleet.decide("n1")
        assert fleet.label("n1") == "unknown"
        fleet.pod("n1", ready=True)
        fleet.decide("n1")
        assert fleet.label("n1") == "pass"
        fleet.skew = -3600.0
    assert fleet.told() == ["n1", "n1"]


def test_a_pod_that_is_deleted_and_never_comes_again_is_silent_from_its_end_on(fleet: FleetOfAgents) -> None:
    fleet.add("n1", "n2")
    fleet.wait(5000)
    fleet.delete_pod("n1")
    fleet.wait(GRACE_S - 1)
    assert fleet.finding("n1") is None
    fleet.wait(1)
    found = fleet.finding("n1")
    assert found is not None
    assert rfc3339_whole(START + 5000) in found.message
    assert "muster/agent-n1" not in found.message


def test_pods_that_are_replaced_again_and_again_without_becoming_ready_are_one_silence(fleet: FleetOfAgents) -> None:
    fleet.add("n1", "n2")
    for _ in range(20):
        fleet.delete_pod("n1")
        fleet.pod("n1", ready=False)
        fleet.wait(GRACE_S / 10)
    assert fleet.finding("n1") is not None


def test_an_update_of_the_agent_is_no_silence(fleet: FleetOfAgents) -> None:
    fleet.add("n1", "n2")
    for _ in range(20):
        fleet.delete_pod("n1")
        fleet.wait(60)
        fleet.pod("n1", ready=False)
        fleet.wait(60)
        fleet.pod("n1", ready=True)
        fleet.wait(60)
    assert fleet.finding("n1") is None


def test_a_node_that_waits_for_its_first_agent_is_unknown_after_the_grace_since_it_came(fleet: FleetOfAgents) -> None:
    startup = NodeSpec(taints=(Taint(key="muster.dev/startup", effect="NoSchedule"),))
    fleet.add("n1", "n2")
    fleet.add("new", reported=False, ready=None, spec=startup)
    fleet.wait(GRACE_S / 2)
    fleet.restart()
    fleet.wait(GRACE_S / 2 - 1)
    assert fleet.finding("new") is None
    fleet.wait(1)
    assert fleet.finding("new") is not None
    fleet.decide("new")
    assert fleet.nodes["new"].spec.taints == startup.taints


def test_a_node_of_a_pool_that_names_labels_waits_for_an_agent_too() -> None:
    fleet = FleetOfAgents(
        "{rules: [], pools: [{name: p, selector: {matchLabels: {gpu: h100}}}, {name: all, selector: {}}]}"
    )
    fleet.add("cpu", "gpu", reported=False, ready=None)
    labels = {"gpu": "h100"}
    fleet.nodes["gpu"] = Node(metadata=Metadata(name="gpu", labels=labels))
    fleet.liveness.look("gpu")
    fleet.wait(GRACE_S)
    assert fleet.finding("gpu") is not None
    # the agents' DaemonSet may leave it out
    assert fleet.finding("cpu") is None


def test_a_pod_that_no_node_has_room_for_counts_for_the_node_it_is_meant_for(fleet: FleetOfAgents) -> None:
    fleet.add("n1", reported=False, ready=None)
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    raw = {
        "metadata": {"name": "agent-x", "namespace": "muster", "creationTimestamp": rfc3339_whole(START)},
        "spec": {"affinity": affinity},
        "status": {"phase": "Pending"},
    }
    pod = slim_agent_pod(msgspec.convert(raw, AgentPod))
    fleet.liveness.pod_changed("muster/agent-x", None, pod)
    fleet.wait(GRACE_S)
    found = fleet.finding("n1")
    assert found is not None
    assert found.message.endswith("pod muster/agent-x: Pending")


def test_a_fault_is_shown_before_the_silence_and_stays_when_the_agent_is_back(make: Any) -> None:
    fleet = FleetOfAgents("rules: [{name: all, action: taint}]\ndeadMan: {action: taint}\n")
    fleet.add("n1", "n2", "n3")
    fleet.healths["n1"] = make.health(make.finding())
    fleet.decide("n1")
    fleet.pod("n1", ready=False)
    fleet.wait(GRACE_S)
    fleet.decide("n1")
    assert set(fleet.nodes["n1"].spec.taints) == {make.faulty, UNKNOWN}
    assert (fleet.condition("n1").reason, fleet.label("n1")) == ("Xid79", "unknown")
    fleet.pod("n1", ready=True)
    fleet.decide("n1")
    assert fleet.taints("n1") == [make.faulty]
    assert fleet.label("n1") == "fail"


def test_a_person_may_release_the_node_and_it_stays_released_for_this_silence(tainting: FleetOfAgents) -> None:
    fleet = tainting
    fleet.add("n1", "n2", "n3")
    fleet.pod("n1", ready=False)
    fleet.wait(GRACE_S)
    fleet.decide("n1")
    found = fleet.finding("n1")
    assert found is not None
    clear = {"check": "agent", "component": "*", "occurrence": found.occurrence, "by": "ada"}
    health = msgspec.to_builtins(fleet.healths["n1"]) | {"spec": {"clear": [clear]}}
    fleet.healths["n1"] = msgspec.convert(health, NodeHealth)
    fleet.decide("n1")
    assert fleet.taints("n1") == []
    fleet.restart()
    fleet.wait(2 * GRACE_S)
    fleet.decide("n1")
    assert fleet.taints("n1") == []
    assert fleet.label("n1") == "unknown"
    fleet.pod("n1", ready=True)
    fleet.pod("n1", ready=False)
    fleet.wait(GRACE_S)
    fleet.decide("n1")
    assert fleet.taints("n1") == [UNKNOWN]


def test_a_policy_that_ignores_agents_takes_back_what_was_said(tainting: FleetOfAgents) -> None:
    fleet = tainting
    fleet.add("n1", "n2", "n3")
    fleet.pod("n1", ready=False)
    fleet.wait(GRACE_S)
    fleet.decide("n1")
    fleet.policy = parse_policy("rules: []\ndeadMan: {action: ignore}\n")
    fleet.liveness.look_at_all()
    fleet.wait(2 * GRACE_S)
    fleet.decide("n1")
    assert fleet.taints("n1") == []
    assert fleet.label("n1") == "pass"
    fleet.policy = parse_policy(TAINT)
    fleet.liveness.look_at_all()
    fleet.wait(GRACE_S)
    fleet.decide("n1")
    assert fleet.taints("n1") == [UNKNOWN]


def test_a_node_that_people_look_after_is_left_alone(tainting: FleetOfAgents) -> None:
    fleet = tainting
    fleet.add("n1", "n2", "n3")
    fleet.pod("n1", ready=False)
    fleet.wait(GRACE_S)
    fleet.decide("n1")
    labels = {**fleet.nodes["n1"].metadata.labels, "muster.dev/managed": "false"}
    metadata = msgspec.structs.replace(fleet.nodes["n1"].metadata, labels=labels)
    fleet.nodes["n1"] = msgspec.structs.replace(fleet.nodes["n1"], metadata=metadata)
    fleet.liveness.look("n1")
    assert fleet.finding("n1") is None
    assert fleet.over("n1")
    fleet.wait(2 * GRACE_S)
    assert fleet.finding("n1") is None


def test_a_node_that_is_gone_is_forgotten(fleet: FleetOfAgents) -> None:
    fleet.add("n1", "n2")
    fleet.pod("n1", ready=False)
    del fleet.nodes["n1"]
    fleet.liveness.look("n1")
    assert fleet.look() is None
    fleet.wait(GRACE_S)
    assert (fleet.finding("n1"), fleet.liveness.silent, fleet.liveness.ready) == (None, 0, 1)


def test_a_shorter_grace_counts_at_once(fleet: FleetOfAgents) -> None:
    fleet.add("n1", "n2")
    fleet.wait(1000)
    fleet.pod("n1", ready=False)
    fleet.wait(60)
    fleet.policy = parse_policy("rules: []\ndeadMan: {grace: 30s}\n")
    fleet.look()
    assert fleet.finding("n1") is not None


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("deadMan: {grace: 0s}", 'deadMan.grace: "0s":'),
        ("deadMan: {action: drain}", 'deadMan.action: "drain":'),
        ("deadMan: {graze: 1m}", "deadMan.graze:"),
        ("deadMan: {taint: {efect: x}}", "deadMan.taint.efect:"),
        (
            "deadMan: {action: taint, taint: {key: muster.dev/faulty}}",
            'deadMan.taint.key: "muster.dev/faulty":',
        ),
    ],
)
def test_a_bad_dead_man_is_refused_with_its_place(text: str, place: str) -> None:
    with pytest.raises(PolicyError) as raised:
        parse_policy(f"rules: [{{name: a, action: taint}}]\n{text}\n")
    assert place in str(raised.value)


def test_a_pod_is_kept_in_a_few_hundred_bytes() -> None:
    containers = [{"name": "agent", "image": "x" * 200, "env": [{"name": "A", "value": "b" * 500}]}]
    raw = {
        "metadata": {
            "name": "muster-agent-x7k2p", "namespace": "muster", "resourceVersion": "123456789",
            "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"app": "muster-agent"},
            "managedFields": [{"fieldsV1": {"f:x": {}}}] * 20,
        },
        "spec": {"nodeName": "n1", "containers": containers},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "x"}]},
    }  # fmt: skip
    slim = slim_agent_pod(msgspec.convert(raw, AgentPod))
    assert len(msgspec.json.encode(slim)) < 256
    assert slim.ready
    assert slim.node == "n1"


def test_a_pod_without_times_says_nothing_of_since_when() -> None:
    raw = {"metadata": {"name": "p"}, "status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    assert msgspec.convert(raw, AgentPod).silent_since == 0.0
