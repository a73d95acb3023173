"""Roles as part of the decisions about nodes: the real decisions on a fleet whose leaders die between two writes."""

import random
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.tainter.fake_fleet import FakeFleet

from muster_kube.api.objects import Metadata, Node, NodeCondition, NodeStatus
from muster_kube.api.times import rfc3339_whole
from muster_kube.nodehealth import AgentIdentity, NodeHealth, NodeHealthStatus, ReportedCheck, ReportedFinding
from muster_tainter.budgets.pool_usage import budgeted_node
from muster_tainter.faults.decision_context import EMPTY_CONTEXT
from muster_tainter.faults.desired_state import Decision, decide
from muster_tainter.faults.record.check_history import ANNOTATION, CheckHistory, CheckRecord, encode_history
from muster_tainter.faults.role_record import ROLE_KEY, RoleRecord, read_role_record
from muster_tainter.fleet.replica import Replica
from muster_tainter.policy.file import parse_policy
from muster_tainter.policy.spares import SpareRole
from muster_tainter.spares.facts import role_of
from muster_tainter.spares.roles import SpareRoles

REPLACEMENT = SpareRole.REPLACEMENT
NOW = 1_800_000_000.0
POLICY = """
rules: [{name: hardware, match: {verdict: FAIL}, action: taint, holdDown: 0s}]
pools: [{name: all, selector: {}, domain: rack, budget: {healthyPerDomain: 1}, spares: {nodes: 2}}]
"""


class Server:
    """The Nodes on the server, and one leader at a time."""

    def __init__(self, nodes: int = 20) -> None:
        self.occurrence = 1
        self.fleet = FakeFleet(current=parse_policy(POLICY), nodes={}, healths={})
        for number in range(nodes):
            name = f"n{number:02}"
            ready = NodeStatus(conditions=(NodeCondition(type="Ready", status="True"),))
            self.fleet.nodes[name] = Node(metadata=Metadata(name=name, labels={"rack": f"r{number % 4}"}), status=ready)  # type: ignore[index]
            self.report(name)
        self.elect()

    def elect(self) -> None:
        """A new leader, which knows only what is on the server."""
        self.woken: list[str] = []
        self.roles = SpareRoles(self.fleet, Replica(lambda: True, now=lambda: NOW), self.woken.append)
        self.roles.look_at_all()

    def report(self, name: str, *, failing: bool = False, boot: str = "b1") -> None:
        self.occurrence += failing
        finding = ReportedFinding(
            component="gpu/0", reason="Xid79", verdict="FAIL", occurrence=self.occurrence, fault_class="reboot", count=1
        )
        check = ReportedCheck(name="dmesg", verdict="FAIL" if failing else "PASS", findings=(finding,) * failing)
        past = CheckHistory(checks={"pciebw": CheckRecord(at=rfc3339_whole(NOW - 60))})
        self.fleet.healths[name] = NodeHealth(  # type: ignore[index]
            metadata=Metadata(name=name, annotations={ANNOTATION: encode_history(past)}),
            status=NodeHealthStatus(
                verdict=check.verdict, checks=(check,), boot_id=boot, agent=AgentIdentity(pod_uid="p"),
                idle_since=rfc3339_whole(NOW - 600), observed_at=rfc3339_whole(NOW),
            ),
        )  # fmt: skip

    def decide(self, name: str) -> Decision:
        node, health, policy = self.fleet.nodes[name], self.fleet.healths[name], self.fleet.current
        decision = decide(node, health, policy, NOW)
        role = self.roles.assign(node, decision)
        return decision if role is None else decide(node, health, policy, NOW, None, replace(EMPTY_CONTEXT, spare=role))

    def write(self, name: str, decision: Decision) -> None:
        self.fleet.nodes[name] = decision.applied(self.fleet.nodes[name])  # type: ignore[index]
        self.roles.settle(name)

    def rest(self) -> None:
        for _ in range(10):
            writes = 0
            for name in self.fleet.nodes:
                self.roles.note(name)
            for name in self.fleet.nodes:
                decision = self.decide(name)
                writes += decision.writes
                self.write(name, decision)
            if not writes:
                return
        raise AssertionError("does not come to rest")

    def having(self, role: SpareRole) -> list[str]:
        return [name for name, node in self.fleet.nodes.items() if role_of(node) is role]

    def tainted(self) -> list[str]:
        found = self.fleet.nodes.items()
        return [name for name, node in found if any(t.key == "muster.dev/faulty" for t in node.spec.taints)]


@pytest.fixture
async def server() -> Server:
    made = Server()
    made.rest()
    return made


def working(server: Server) -> list[str]:
    return [name for name in server.having(SpareRole.NONE) if name not in server.tainted()]


async def test_spares_are_tainted_and_labelled_and_count_as_healthy_and_not_as_tainted(server: Server) -> None:
    first, second = server.having(SpareRole.SPARE)
    node = server.fleet.nodes[first]
    assert [(t.key, t.value, t.effect) for t in node.spec.taints] == [("muster.dev/spare", "true", "NoSchedule")]
    assert node.metadata.labels["muster.dev/role"] == "spare"
    assert "muster.dev/faulty" not in node.metadata.labels
    counted = budgeted_node(node, server.fleet.current.pools, ours=False, tainted_at=0.0)
    assert counted.healthy
    assert node.metadata.labels["rack"] != server.fleet.nodes[second].metadata.labels["rack"]


async def test_a_fault_releases_a_spare_and_the_repaired_node_becomes_one_in_the_write_that_frees_it(
    server: Server,
) -> None:
    bad = working(server)[0]
    server.report(bad, failing=True)
    server.rest()
    assert (server.tainted(), len(server.having(SpareRole.SPARE))) == ([bad], 1)
    [released] = server.having(SpareRole.REPLACEMENT)
    assert not server.fleet.nodes[released].spec.taints
    record = read_role_record(server.fleet.nodes[released])
    assert record == RoleRecord(SpareRole.REPLACEMENT, rfc3339_whole(NOW), bad)
    server.report(bad, boot="b2")
    decision = server.decide(bad)
    assert [taint.key for taint in decision.taints or ()] == ["muster.dev/spare"]
    server.write(bad, decision)
    server.rest()
    assert bad in server.having(SpareRole.SPARE)
    assert (len(server.having(SpareRole.SPARE)), server.having(SpareRole.REPLACEMENT)) == (2, [])


async def test_three_faults_exhaust_two_spares_and_repairs_refill_them(server: Server) -> None:
    bad = working(server)[:3]
    for name in bad:
        server.report(name, failing=True)
    server.rest()
    [group] = server.roles.groups()
    assert (server.having(SpareRole.SPARE), group.plan.ready, group.plan.asked) == ([], 0, 2)
    for name in bad:
        server.report(name, boot="b2")
    server.rest()
    assert len(server.having(SpareRole.SPARE)) == 2


async def test_a_replacement_goes_with_its_node_or_takes_over_for_another_one(server: Server) -> None:
    def replaced() -> list[str]:
        return sorted(read_role_record(server.fleet.nodes[name]).replaces for name in server.having(REPLACEMENT))

    first, second, third = working(server)[:3]
    for name in (first, second):
        server.report(name, failing=True)
    server.rest()
    kept = {name: server.fleet.nodes[name] for name in server.having(REPLACEMENT)}
    assert replaced() == [first, second]
    server.report(third, failing=True)
    server.report(first, boot="b2")
    server.rest()
    assert replaced() == [second, third]
    server.report(third, boot="b2")
    server.rest()
    assert replaced() == [second]
    [name] = server.having(REPLACEMENT)
    assert server.fleet.nodes[name] == kept[name], "the one that replaced it before, since the same time"


async def test_an_annotation_that_a_person_breaks_is_written_again(server: Server) -> None:
    name, _ = server.having(SpareRole.SPARE)
    node = server.fleet.nodes[name]
    for text in ("{", '{"role": "king"}', "[]", '{"role": "spare"}'):
        broken = {**node.metadata.annotations, ROLE_KEY: text}
        meta = msgspec.structs.replace(node.metadata, annotations=broken)
        server.fleet.nodes[name] = msgspec.structs.replace(node, metadata=meta)  # type: ignore[index]
        server.rest()
        assert read_role_record(server.fleet.nodes[name]) == RoleRecord(SpareRole.SPARE, rfc3339_whole(NOW))


async def test_a_node_that_is_handed_off_or_whose_pool_keeps_no_spares_loses_the_taint(server: Server) -> None:
    first, _ = server.having(SpareRole.SPARE)
    meta = server.fleet.nodes[first].metadata
    excluded = msgspec.structs.replace(meta, labels={**meta.labels, "muster.dev/managed": "false"})
    server.fleet.nodes[first] = msgspec.structs.replace(server.fleet.nodes[first], metadata=excluded)  # type: ignore[index]
    server.rest()
    assert first not in server.having(SpareRole.SPARE)
    assert len(server.having(SpareRole.SPARE)) == 2
    server.fleet.current = parse_policy(POLICY.replace(", spares: {nodes: 2}", ""))
    server.rest()
    assert server.having(SpareRole.SPARE) == []
    metadata = [node.metadata for node in server.fleet.nodes.values()]
    assert not any("muster.dev/role" in each.labels or "muster.dev/role" in each.annotations for each in metadata)


async def test_of_nodes_repaired_at_the_same_time_the_last_ones_become_spares(server: Server) -> None:
    bad = working(server)[:3]
    for name in bad:
        server.report(name, failing=True)
    server.rest()
    for name in bad:
        server.report(name, boot="b2")
    for name, decision in [(name, server.decide(name)) for name in bad]:  # before any of them is written
        server.write(name, decision)
    assert set(server.having(SpareRole.SPARE)) == set(bad[1:])
    server.rest()
    assert set(server.having(SpareRole.SPARE)) == set(bad[1:])


@pytest.mark.parametrize("seed", range(12))
async def test_killed_at_every_write_there_is_never_one_too_many_or_too_few(seed: int) -> None:
    chance = random.Random(seed)
    server = Server(8)
    under_way: dict[str, Decision] = {}
    bad: set[str] = set()

    def event() -> Any:
        name = f"n{chance.randrange(8):02}"
        match chance.choice(["fault", "repair", "decide", "decide", "write", "write", "kill"]):
            case "fault" if len(bad) < 4:
                bad.add(name)
                server.report(name, failing=True, boot="b1")
            case "repair":
                bad.discard(name)
                server.report(name, boot="b2")
            case "decide" if name not in under_way:
                under_way[name] = server.decide(name)
            case "write" if under_way:
                written = chance.choice(sorted(under_way))
                server.write(written, under_way.pop(written))
            case "kill":
                for each in [each for each in sorted(under_way) if chance.random() < 0.5]:
                    server.write(each, under_way[each])  # on its way when the leader died
                under_way.clear()
                server.elect()
        server.roles.note(name)

    for _ in range(150):
        event()
    for name, decision in under_way.items():
        server.write(name, decision)
    server.rest()
    assert len(server.having(SpareRole.SPARE)) == max(2 - len(server.tainted()), 0)
