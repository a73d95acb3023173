"""The role of a node for people agrees with the plan: a reason exactly if the plan does not call a spare ready."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.browser.sample_fleet import HOT, SampleFleet, make_fleet, xid79

from muster_kube.api.objects import NodeSpec, NodeStatus, Taint
from muster_kube.nodehealth import NodeHealthStatus
from muster_tainter.faults.record.check_history import ANNOTATION, CheckRecord, encode_history, read_history
from muster_tainter.policy.spares import SpareRole
from muster_tainter.spares.facts import node_role, spare_groups, spare_node

NOW = 1_800_000_000.0
DAY_S = 86_400.0
OTHER = Taint(key="example.com/maintenance", effect="NoSchedule")
STARTUP = Taint(key="muster.dev/startup", effect="NoSchedule")


def spare(fleet: SampleFleet, name: str, changes: set[str]) -> None:
    fleet.assign(name, SpareRole.SPARE, tested_ago=2 * DAY_S if "old" in changes else 60.0)
    taints = fleet.nodes[name].spec.taints
    more = (OTHER,) * ("foreign" in changes) + (STARTUP,) * ("new" in changes)
    spec = NodeSpec(taints=(*taints, *more), unschedulable="cordoned" in changes)
    fleet.put(name, spec=spec, **({"status": NodeStatus()} if "not ready" in changes else {}))
    known = fleet.healths[name]
    status = known.status
    if "fault" in changes:
        fleet.report(name, "dmesg", xid79())
        status = fleet.healths[name].status
    if "warning" in changes:
        fleet.report(name, "gputemp", HOT)
        status = fleet.healths[name].status
    if "busy" in changes:
        status = msgspec.structs.replace(status, idle_since="")
    if "silent" in changes:
        status = NodeHealthStatus()
    fleet.healths[name] = msgspec.structs.replace(fleet.healths[name], status=status)


WHAT = ("old", "foreign", "new", "cordoned", "not ready", "fault", "warning", "busy", "silent")


@given(st.sets(st.sampled_from(WHAT)), st.booleans())
def test_a_spare_has_a_reason_exactly_if_it_is_not_ready(changes: set[str], common: bool) -> None:
    fleet = make_fleet(4, NOW)
    name = next(iter(fleet.nodes))
    spare(fleet, name, changes)
    taints = [(OTHER.key, OTHER.effect)] if common else []
    role = node_role(fleet.nodes[name], fleet.healths[name], fleet.policy, NOW, taints)
    assert role is not None
    facts = spare_node(fleet.nodes[name], fleet.healths[name], fleet.policy.pools[0])
    assert role.ready is (not role.why) is facts.is_ready(taints, NOW - DAY_S)


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ("old", "pciebw"), ("foreign", "example.com/maintenance:NoSchedule"), ("new", "muster.dev/startup"),
        ("cordoned", "cordoned"), ("fault", "FAIL"), ("busy", "idle"), ("silent", "agent"), ("not ready", "Ready"),
    ],
)  # fmt: skip
def test_the_reason_names_the_cause(change: str, fact: str) -> None:
    fleet = make_fleet(4, NOW)
    name = next(iter(fleet.nodes))
    spare(fleet, name, {change})
    role = node_role(fleet.nodes[name], fleet.healths[name], fleet.policy, NOW)
    assert role is not None
    assert fact in "; ".join(role.why)
    assert not [other for other in role.why if fact not in other], "and nothing else"


def test_groups_count_what_is_ready_and_what_the_policy_wants() -> None:
    fleet = make_fleet(20, NOW)
    first, second, *_ = fleet.nodes
    fleet.assign(first, SpareRole.SPARE)
    fleet.assign(second, SpareRole.SPARE, tested_ago=2 * DAY_S)
    [group] = spare_groups(fleet.nodes.values(), fleet.healths, fleet.policy, NOW)
    assert (group.pool, group.domain) == ("h100", "")
    assert (group.plan.ready, group.plan.spares, group.plan.asked, group.plan.out) == (1, 2, 2, 0)


def test_a_pool_without_nodes_has_an_empty_group() -> None:
    fleet = make_fleet(4, NOW)
    [group] = spare_groups([], {}, fleet.policy, NOW)
    assert replace(group.plan, common=frozenset()) == replace(group.plan, ready=0, spares=0, wanted=0)
    assert (group.plan.asked, group.plan.size) == (2, 0)


def test_a_planned_check_that_its_node_lacks_keeps_no_spare_from_being_ready() -> None:
    fleet = make_fleet(4, NOW)
    name = next(iter(fleet.nodes))
    spare(fleet, name, set())
    pool = fleet.policy.pools[0]
    assert pool.spares is not None
    planned = pool.model_copy(update={"spares": pool.spares.model_copy(update={"checks": ()})})
    policy = fleet.policy.model_copy(update={"pools": (planned,)})
    health = fleet.healths[name]
    past = read_history(health)
    for missing in (False, True):
        checks = past.checks | {"dcgm": CheckRecord(failures=1, missing=missing)}
        text = encode_history(msgspec.structs.replace(past, checks=checks))
        metadata = msgspec.structs.replace(health.metadata, annotations={ANNOTATION: text})
        role = node_role(fleet.nodes[name], msgspec.structs.replace(health, metadata=metadata), policy, NOW)
        assert role is not None
        assert role.ready is missing, role.why
