"""What a node is shown as on the fleet page, and what its panel says; from what the tainter's decisions leave."""

import msgspec
import pytest
from tests.browser.sample_fleet import HOT, LINK_DOWN, NO_TOOL, XID31, SampleFleet, make_fleet, xid79

from muster_kube.api.objects import NodeCondition, NodeSpec, NodeStatus, Taint
from muster_kube.api.times import rfc3339_whole
from muster_kube.nodehealth import RequestAnswer
from muster_tainter.faults.node_report import UnusableHealth
from muster_tainter.page.detail import NodeDetail, describe_node
from muster_tainter.page.rows import Row, row
from muster_tainter.policy.file import parse_policy
from muster_tainter.policy.spares import SpareRole
from muster_tainter.spares.facts import NodeRole

NOW = 1_800_000_000.0
FULL = "budget: pool h100 has 2 of 2 nodes tainted (3% of 48)"
PROOF = "muster-tainter-proof"
SILENCE = "no ready agent for 14 m"  # as a condition has it


@pytest.fixture
def fleet() -> SampleFleet:
    return make_fleet(4, NOW)


@pytest.fixture
def name(fleet: SampleFleet) -> str:
    return next(iter(fleet.nodes))


def shown(fleet: SampleFleet, name: str) -> Row:
    return row(fleet.nodes[name], fleet.healths[name], fleet.policy, NOW)


def told(fleet: SampleFleet, name: str) -> NodeDetail:
    return describe_node(fleet.nodes[name], fleet.healths[name], fleet.policy, NOW)


def test_of_a_node_that_passes_there_is_only_its_state(fleet: SampleFleet, name: str) -> None:
    assert shown(fleet, name) == (".",)


def test_a_tainted_node_says_what_where_since_when_and_by_which_rule(fleet: SampleFleet, name: str) -> None:
    fleet.break_node(name, "dmesg", xid79(), ago=90)
    made = shown(fleet, name)
    assert made[:8] == (
        "T", 1, int(NOW) - 90, "dmesg", "gpu/0000:3b:00.0", "Xid79", "reboot", xid79().message,
    )  # fmt: skip
    assert "hardware" in str(made[8])
    assert made[9] == ""


def test_a_withheld_node_says_which_budget_has_no_room(fleet: SampleFleet, name: str) -> None:
    fleet.break_node(name, "dmesg", xid79(), withhold=FULL)
    made = shown(fleet, name)
    assert made[0] == "W"
    assert FULL in str(made[8])


def test_a_withheld_node_that_has_room_is_tainted(fleet: SampleFleet, name: str) -> None:
    fleet.break_node(name, "dmesg", xid79(), withhold=FULL)
    fleet.settle(name)
    assert shown(fleet, name)[0] == "T"


def test_a_failure_without_a_taint_names_no_taint(fleet: SampleFleet, name: str) -> None:
    fleet.break_node(name, "dmesg", XID31, ago=5)
    made = shown(fleet, name)
    assert (made[0], made[2], made[5]) == ("F", int(NOW) - 5, "Xid31")
    assert "rule" not in str(made[8])


def test_a_fault_that_waits_to_be_confirmed_is_failing_and_says_until_when(fleet: SampleFleet, name: str) -> None:
    rules = "rules: [{name: slow, match: {verdict: FAIL}, for: 60s, action: taint}]"
    fleet.policy = parse_policy(rules)
    fleet.break_node(name, "nic", LINK_DOWN, ago=20)
    made = shown(fleet, name)
    assert made[0] == "F"
    assert [fact for fact in (f"{{{int(NOW) + 40}}}", "slow") if fact not in str(made[8])] == []
    assert told(fleet, name)["faults"][0]["confirmedAt"] == int(NOW) + 40


def test_proof_under_way_is_proving(fleet: SampleFleet, name: str) -> None:
    fleet.break_node(name, "nic", LINK_DOWN, ago=600)
    fleet.ask(name, "nic", PROOF, f"proof-0123456789-{int(NOW) - 10}")
    made = shown(fleet, name)
    assert made[0] == "P"
    assert told(fleet, name)["proving"] is True


def test_proof_that_was_answered_is_proving_no_longer(fleet: SampleFleet, name: str) -> None:
    fleet.break_node(name, "nic", LINK_DOWN, ago=600)
    identity = f"proof-0123456789-{int(NOW) - 10}"
    fleet.ask(name, "nic", PROOF, identity)
    known = fleet.healths[name]
    answers = (RequestAnswer(id=identity, verdict="FAIL", finished=rfc3339_whole(NOW)),)
    fleet.healths[name] = msgspec.structs.replace(known, status=msgspec.structs.replace(known.status, answers=answers))
    assert shown(fleet, name)[0] == "T"
    assert told(fleet, name)["proving"] is False


def test_a_node_that_comes_and_goes_is_held_and_says_until_when(fleet: SampleFleet, name: str) -> None:
    fleet.break_node(name, "dmesg", xid79(), ago=600)
    known = fleet.nodes[name].metadata
    memory = msgspec.json.decode(known.annotations["muster.dev/faults"])
    memory["open"][0] |= {"over": rfc3339_whole(NOW - 100), "how": "boot", "by": "boot 2"}
    memory["penalty"] = {"dmesg": {"n": 1.0, "at": rfc3339_whole(NOW - 100)}}
    annotations = {"muster.dev/faults": msgspec.json.encode(memory).decode()}
    fleet.put(name, metadata=msgspec.structs.replace(known, annotations=annotations))
    made = shown(fleet, name)
    assert made[0] == "P"
    assert f"{{{int(NOW) + 200}}}" in str(made[8])
    [fault] = told(fleet, name)["faults"]
    assert (fault["heldUntil"], fault["how"]) == (int(NOW) + 200, "boot")


def test_what_was_not_measured_is_unknown(fleet: SampleFleet, name: str) -> None:
    fleet.break_node(name, "dcgm", NO_TOOL)
    made = shown(fleet, name)
    assert (made[0], made[5]) == ("U", "ToolMissing")


def test_no_report_is_unknown(fleet: SampleFleet, name: str) -> None:
    fleet.silent(name)
    made = shown(fleet, name)
    assert (made[0], made[5]) == ("U", "NoReport")
    assert row(fleet.nodes[name], None, fleet.policy, NOW)[0] == "U"


def test_a_silent_agent_makes_its_node_unknown_whatever_it_said_last(fleet: SampleFleet, name: str) -> None:
    condition = NodeCondition(
        type="muster.dev/Healthy", status="Unknown", reason="AgentSilent", message=SILENCE,
        last_transition_time=rfc3339_whole(NOW - 840),
    )  # fmt: skip
    fleet.put(name, status=NodeStatus(conditions=(condition,)))
    fleet.label(name, muster_health="unknown")
    assert shown(fleet, name)[:8] == (
        "U", 0, int(NOW) - 840, "agent", "host", "AgentSilent", "", SILENCE,
    )  # fmt: skip
    assert told(fleet, name)["errors"] == [SILENCE]


def test_an_object_that_makes_no_sense_is_unknown_and_says_why(fleet: SampleFleet, name: str) -> None:
    unusable = UnusableHealth("status.checks[3]")
    made = row(fleet.nodes[name], unusable, fleet.policy, NOW)
    assert (made[0], made[5]) == ("U", "ReportUnreadable")
    assert unusable.error in str(made[7])
    assert describe_node(fleet.nodes[name], unusable, fleet.policy, NOW)["errors"] == [unusable.error]


def test_a_warning_is_shown_as_one(fleet: SampleFleet, name: str) -> None:
    fleet.break_node(name, "gputemp", HOT)
    assert shown(fleet, name)[0] == "N"


def test_a_heavy_check_is_shown_on_nodes_that_pass(fleet: SampleFleet, name: str) -> None:
    fleet.ask(name, "pciebw")
    assert (shown(fleet, name)[0], shown(fleet, name)[9]) == ("H", "pciebw")


def test_a_new_node_waits_for_its_first_pass(fleet: SampleFleet, name: str) -> None:
    taint = Taint(key="muster.dev/startup", value="true", effect="NoSchedule")
    fleet.put(name, spec=NodeSpec(taints=(taint,)))
    assert shown(fleet, name)[0] == "S"


def test_a_node_that_is_left_alone_says_so_even_where_it_fails(fleet: SampleFleet, name: str) -> None:
    fleet.label(name, muster_managed="false")
    fleet.break_node(name, "dmesg", xid79())
    assert shown(fleet, name)[0] == "M"
    assert "muster.dev/managed=false" in str(shown(fleet, name)[8])


def test_a_spare_says_since_when_and_why_it_is_not_ready(fleet: SampleFleet, name: str) -> None:
    fleet.assign(name, SpareRole.SPARE, ago=900)
    made = shown(fleet, name)
    assert (made[0], made[2]) == ("R", int(NOW) - 900)
    detail = told(fleet, name)
    assert detail["role"] == NodeRole(role=SpareRole.SPARE, since=rfc3339_whole(NOW - 900), ready=True)
    assert detail["taints"] == [{"text": "muster.dev/spare=true:NoSchedule", "ours": True}]
    fleet.assign(name, SpareRole.SPARE, tested_ago=90_000)
    role = told(fleet, name)["role"]
    assert role is not None
    assert (role.ready, role.since) == (False, rfc3339_whole(NOW - 900))
    assert [fact for fact in ("pciebw", "1 d") if fact not in role.why[0]] == []
    assert role.why[0] in str(shown(fleet, name)[8])


def test_a_spare_that_is_tested_stays_one_and_one_with_a_warning_shows_the_warning(
    fleet: SampleFleet, name: str
) -> None:
    fleet.assign(name, SpareRole.SPARE)
    fleet.ask(name, "pciebw")
    assert (shown(fleet, name)[0], shown(fleet, name)[9]) == ("R", "pciebw")
    fleet.report(name, "gputemp", HOT)
    role = told(fleet, name)["role"]
    assert shown(fleet, name)[0] == "N"
    assert role is not None
    assert role.role is SpareRole.SPARE


def test_a_replacement_names_the_node_with_the_fault(fleet: SampleFleet, name: str) -> None:
    fleet.assign(name, SpareRole.REPLACEMENT, "h100-h009-01", ago=60)
    made = shown(fleet, name)
    assert (made[0], made[2]) == ("L", int(NOW) - 60)
    assert "h100-h009-01" in str(made[8])
    role = told(fleet, name)["role"]
    assert role == NodeRole(role=SpareRole.REPLACEMENT, since=rfc3339_whole(NOW - 60), replaces="h100-h009-01")


def test_taints_of_others_that_most_nodes_have_do_not_keep_a_spare_from_being_ready(
    fleet: SampleFleet, name: str
) -> None:
    fleet.assign(name, SpareRole.SPARE)
    other = Taint(key="nvidia.com/gpu", effect="NoSchedule")
    known = fleet.nodes[name].spec
    fleet.put(name, spec=msgspec.structs.replace(known, taints=(*known.taints, other)))
    for common, ready in (((), False), ((("nvidia.com/gpu", "NoSchedule"),), True)):
        role = describe_node(fleet.nodes[name], fleet.healths[name], fleet.policy, NOW, common)["role"]
        assert role is not None
        assert role.ready is ready


def test_evidence_in_a_row_is_bounded(fleet: SampleFleet, name: str) -> None:
    fleet.break_node(name, "dmesg", msgspec.structs.replace(xid79(), message="x" * 5000))
    assert len(str(shown(fleet, name)[7]).encode()) <= 200


def test_the_panel_has_evidence_rule_taint_and_what_ends_it(fleet: SampleFleet, name: str) -> None:
    fleet.break_node(name, "nic", LINK_DOWN, ago=30)
    made = told(fleet, name)
    [fault] = made["faults"]
    assert (fault["rule"], fault["taint"], fault["isSet"]) == ("hardware", "muster.dev/faulty=true:NoSchedule", True)
    assert fault["measurements"][0] == {"name": "rate", "value": 0.0, "unit": "Gb/s", "threshold": 400.0}
    assert [fact for fact in ("nic", "3") if fact not in fault["ends"][0]] == []
    assert made["taints"] == [{"text": "muster.dev/faulty=true:NoSchedule", "ours": True}]
    assert (made["pool"], made["domain"]) == ("h100", "h001")
    assert "hardware" in made["done"]


def test_the_panel_tells_what_was_closed_how_and_by_whom(fleet: SampleFleet, name: str) -> None:
    fleet.break_node(name, "dmesg", xid79(), ago=600)
    known = fleet.healths[name]
    status = msgspec.structs.replace(known.status, boot_id="another")
    fleet.healths[name] = msgspec.structs.replace(known, status=status)
    fleet.report(name, "dmesg")
    fleet.settle(name)
    [closed] = told(fleet, name)["closed"]
    assert (closed["reason"], closed["how"], closed["by"]) == ("Xid79", "boot", "boot another")
    assert told(fleet, name)["faults"] == []


def test_a_finding_without_a_fault_is_in_the_panel(fleet: SampleFleet, name: str) -> None:
    fleet.break_node(name, "dmesg", XID31)
    made = told(fleet, name)
    assert made["faults"] == []
    assert [(f["reason"], f["rule"]) for f in made["findings"]] == [("Xid31", "other-failures")]


def test_an_annotation_that_is_garbage_is_said_and_shown_as_none(fleet: SampleFleet, name: str) -> None:
    known = fleet.nodes[name].metadata
    fleet.put(name, metadata=msgspec.structs.replace(known, annotations={"muster.dev/faults": "{"}))
    made = told(fleet, name)
    assert made["faults"] == []
    [error] = made["errors"]
    assert "muster.dev/faults" in error
    assert shown(fleet, name) == (".",)
