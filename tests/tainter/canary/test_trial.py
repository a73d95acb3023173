"""What a canary would lead to, and that it leads to nothing else."""

import random
from typing import Any

import msgspec
import pytest
import yaml

from muster_kube.api.objects import Metadata, Node, NodeSpec, Taint
from muster_kube.nodehealth import AgentIdentity, CanaryReport, NodeHealth, NodeHealthStatus, ReportedCheck
from muster_tainter.canary.trial import Arrival, Outcome, made_up, try_canary, without_ours
from muster_tainter.faults.desired_state import decide
from muster_tainter.policy.file import default_policy_text, parse_policy
from muster_tainter.policy.rules import Policy

NOW = 1_767_268_800.0
BUILT_IN = parse_policy(default_policy_text())
CANARY = CanaryReport(at="2026-01-01T11:59:59.000Z")


def node(labels: dict[str, str] | None = None, taints: tuple[Taint, ...] = ()) -> Node:
    return Node(metadata=Metadata(name="n1", uid="u", labels=labels or {}), spec=NodeSpec(taints=taints))


def health(canary: CanaryReport = CANARY, **status: Any) -> NodeHealth:
    told = NodeHealthStatus(
        verdict="PASS",
        boot_id="b",
        agent=AgentIdentity(pod_uid="p"),
        checks=(ReportedCheck(name="dmesg", verdict="PASS"),),
        canary=canary,
    )
    return NodeHealth(metadata=Metadata(name="n1"), status=msgspec.structs.replace(told, **status))


def outcome(policy: Policy = BUILT_IN, *, on: Node | None = None, paused: str = "", shortage: str = "") -> Outcome:
    return try_canary(on or node(), health(), policy, NOW, paused=paused, shortage=lambda: shortage)


def test_the_built_in_policy_would_taint() -> None:
    found = outcome()
    assert found.arrival is Arrival.ARRIVED
    assert "muster.dev/faulty=true:NoSchedule" in found.text


@pytest.mark.parametrize(
    ("settings", "arrival"),
    [
        ({"paused": "paused by a person"}, Arrival.PAUSED),
        ({"shortage": "budget: none left"}, Arrival.BUDGET),
        ({"policy": parse_policy("rules: []\n")}, Arrival.RULE),
        ({"on": node({"muster.dev/managed": "false"})}, Arrival.UNMANAGED),
    ],
)
def test_what_people_have_set_is_named_and_is_no_broken_hop(settings: dict[str, Any], arrival: Arrival) -> None:
    assert outcome(**settings).arrival is arrival


def test_a_node_with_a_fault_of_its_own_shows_the_way_as_well() -> None:
    tainted = node({"muster.dev/faulty": "true"}, (Taint(key="muster.dev/faulty", value="true", effect="NoSchedule"),))
    assert outcome(on=tainted).arrival is Arrival.ARRIVED


def test_the_copies_leave_everything_of_others() -> None:
    others = Taint(key="dedicated", value="x", effect="NoExecute")
    copy = without_ours(node({"zone": "a", "muster.dev/health": "fail"}, (others,)))
    assert (copy.metadata.labels, copy.spec.taints) == ({"zone": "a"}, (others,))
    assert [check.name for check in made_up(health()).status.checks] == ["canary"]


def random_policy(rng: random.Random) -> Policy:
    """Rules that want the canary more or less: for its check by name, for everything, by class."""
    match = rng.choice([{}, {"check": "canary"}, {"verdict": "FAIL"}, {"class": "reboot"}, {"reason": "Canary"}])
    rule: dict[str, Any] = {"name": "r", "match": match, "action": rng.choice(["taint", "drain"])}
    if rng.random() < 0.5:
        rule["taint"] = {"key": "example.com/bad", "effect": rng.choice(["NoSchedule", "NoExecute"])}
    return parse_policy(yaml.safe_dump({"rules": [rule], "canary": {"nodes": "100%", "period": "30s"}}))


def test_no_policy_makes_a_canary_taint_a_node() -> None:
    rng = random.Random(25)
    arrived = 0
    for number in range(300):
        policy = random_policy(rng)
        arrived += outcome(policy).arrival is Arrival.ARRIVED
        canary = rng.choice([CANARY, CanaryReport(), CanaryReport(id="x", at="nonsense"), CanaryReport(id="dmesg")])
        decided = decide(node(), health(canary), policy, NOW + number)
        assert (decided.taints, decided.taint_changes, decided.memory.open) == (None, (), ())
    assert arrived > 100
