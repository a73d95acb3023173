"""The same finding on many nodes within seconds is one incident, named after what they share."""

from collections.abc import Iterable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from muster_kube.api.times import seconds
from muster_tainter.budgets.incidents import FLEET, FaultOpening, Ground, Incident, IncidentIndex
from muster_tainter.policy.budgets import Incidents

NOON = seconds("2026-03-01T12:00:00Z")
RACK = "topology.kubernetes.io/rack"
RULES = Incidents.model_validate({"nodes": 3, "within": "60s"})


def opened(at: float, reason: str = "LinkDown", **fields: Any) -> FaultOpening:
    return FaultOpening("dmesg", reason, "nic/mlx5_0", NOON + at, **fields)


def index_of(times: dict[str, float], grounds: dict[str, tuple[Ground, ...]] | None = None) -> IncidentIndex:
    index = IncidentIndex(RULES)
    for node, at in times.items():
        index.note(node, (opened(at),), (grounds or {}).get(node, ()))
    return index


def only(index: IncidentIndex) -> Incident:
    (incident,) = index.all()
    return incident


def test_a_finding_on_fewer_nodes_is_no_incident() -> None:
    index = index_of({"a": 0, "b": 1})
    assert index.all() == []
    assert index.of("a", "dmesg", "LinkDown", NOON) is None


def test_several_components_of_one_node_are_one_node() -> None:
    index = IncidentIndex(RULES)
    index.note("a", [opened(0), opened(1), opened(2), opened(3)])
    assert index.all() == []
    assert index.others("a", "dmesg", "LinkDown", NOON) == 0


def test_an_incident_of_one_rack_is_named_after_it() -> None:
    index = index_of({f"n{i}": i for i in range(12)}, {f"n{i}": ((RACK, "r7"),) for i in range(12)})
    incident = only(index)
    assert (incident.check, incident.reason, incident.count) == ("dmesg", "LinkDown", 12)
    assert (incident.ground, incident.since) == ((RACK, "r7"), NOON)
    assert index.of("n5", "dmesg", "LinkDown", NOON + 5) == incident
    assert len(index.nodes_of(incident.id)) == 12


def test_an_incident_over_racks_is_the_fleets() -> None:
    racks: dict[str, tuple[Ground, ...]] = {f"n{i}": ((RACK, f"r{i % 2}"),) for i in range(6)}
    incident = only(index_of({f"n{i}": i for i in range(6)}, racks))
    assert (incident.ground, incident.count, incident.since) == (FLEET, 6, NOON)


def test_a_job_that_all_its_nodes_run_names_an_incident_over_racks() -> None:
    grounds: dict[str, tuple[Ground, ...]] = {f"n{i}": ((RACK, f"r{i}"), ("job", "train/a")) for i in range(4)}
    assert only(index_of({f"n{i}": i for i in range(4)}, grounds)).ground == ("job", "train/a")


def test_the_smaller_of_two_common_grounds_names_it() -> None:
    grounds: dict[str, tuple[Ground, ...]] = {f"n{i}": ((RACK, "r1"), ("zone", "z1")) for i in range(4)}
    assert only(index_of({f"n{i}": i for i in range(4)}, grounds)).ground == (RACK, "r1")


def test_a_stray_in_another_rack_is_not_part_of_a_racks_incident() -> None:
    grounds: dict[str, tuple[Ground, ...]] = {f"n{i}": ((RACK, "r1" if i else "r2"),) for i in range(5)}
    index = index_of({f"n{i}": i for i in range(5)}, grounds)
    incident = only(index)
    assert (incident.ground, incident.count) == ((RACK, "r1"), 4)
    assert index.nodes_of(incident.id) == ["n1", "n2", "n3", "n4"]
    assert index.of("n0", "dmesg", "LinkDown", NOON) is None


def test_openings_each_within_the_time_of_the_next_are_one_incident() -> None:
    index = index_of({"a": 0, "b": 50, "c": 100, "d": 160})
    assert only(index).count == 4
    assert [index.others(node, "dmesg", "LinkDown", NOON + at) for node, at in (("a", 0), ("c", 100))] == [3, 3]


def test_a_longer_gap_parts_them() -> None:
    index = index_of({"a": 0, "b": 50, "c": 100, "d": 160.5, "e": 161, "f": 162})
    assert [incident.count for incident in index.all()] == [3, 3]
    assert index.others("a", "dmesg", "LinkDown", NOON) == 2


def test_a_finding_that_bridges_a_gap_makes_one_incident_of_two() -> None:
    index = index_of({"a": 0, "b": 0, "c": 0, "d": 100, "e": 100, "f": 100})
    assert index.others("g", "dmesg", "LinkDown", NOON + 50) == 6
    first = index.all()[0].id
    assert index.note("g", [opened(50)]) == set("abcdef")  # some have another id from here on
    assert (only(index).id, only(index).count) == (first, 7)


def test_other_reasons_are_not_counted() -> None:
    index = index_of({"a": 0, "b": 1})
    index.note("c", [opened(1, reason="Xid79")])
    assert index.all() == []
    assert index.others("c", "dmesg", "Xid79", NOON + 1) == 0


def test_others_counts_before_the_node_has_opened_its_own() -> None:
    index = index_of({"a": 0, "b": 1})
    assert index.others("c", "dmesg", "LinkDown", NOON + 30) == 2
    assert index.others("c", "dmesg", "LinkDown", NOON + 61.5) == 0


def test_its_id_stays_when_the_first_node_recovers() -> None:
    index = index_of({"a": 0, "b": 1, "c": 2, "d": 3})
    before = only(index)
    index.note("a", ())
    assert (only(index).id, only(index).since, only(index).count) == (before.id, before.since, 3)


def test_a_new_leader_gives_it_the_same_id() -> None:
    index = index_of({"a": 0, "b": 1, "c": 2, "d": 3})
    id = only(index).id
    anew = IncidentIndex(RULES)
    for node, at in {"d": 3, "c": 2, "b": 1}.items():  # a has recovered meanwhile
        anew.note(node, [opened(at, incident=id if node == "c" else "")])
    assert only(anew).id == id


def test_an_id_edited_by_hand_is_ignored() -> None:
    for garbage in ("", "x", "dmesg/LinkDown@", "dmesg/LinkDown@2999-01-01T00:00:00.000Z", "a/b@2026-01-01T00:00:00Z"):
        index = IncidentIndex(RULES)
        for node in "abc":
            index.note(node, [opened(1, incident=garbage)])
        assert only(index).since == NOON + 1


def test_it_ends_when_too_few_are_left() -> None:
    index = index_of({"a": 0, "b": 1, "c": 2})
    assert index.note("b", ()) == {"a", "c"}
    assert index.all() == []
    for node in "ac":
        index.note(node, ())
    assert index.others("z", "dmesg", "LinkDown", NOON) == 0


def test_those_for_whom_it_is_news_are_named_and_no_others() -> None:
    index = IncidentIndex(RULES, marks=[5])
    news = [index.note(f"n{i}", [opened(i)]) for i in range(6)]
    assert news == [set(), {"n0"}, {"n0", "n1"}, set(), {"n0", "n1", "n2", "n3"}, set()]


def test_it_is_news_when_a_racks_incident_becomes_the_fleets() -> None:
    index = IncidentIndex(RULES)
    for i in range(4):
        index.note(f"n{i}", [opened(i)], [(RACK, "r1")])
    assert index.note("m0", [opened(4)], [(RACK, "r2")]) == set()
    assert index.note("m1", [opened(4)], [(RACK, "r2")]) == set()
    assert index.note("m2", [opened(4)], [(RACK, "r2")]) == {"n0", "n1", "n2", "n3", "m0", "m1"}


def test_other_rules_hold_for_what_is_open() -> None:
    index = index_of({"a": 0, "b": 90})
    index.policy(Incidents.model_validate({"nodes": 2, "within": "2m"}))
    assert only(index).count == 2


# random openings and recoveries, against a count over all of them

nodes = st.sampled_from([f"n{number}" for number in range(6)])
times = st.lists(st.sampled_from([0.0, 10.0, 60.0, 75.0, 130.0, 200.0, 260.0]), max_size=3, unique=True)
racks = st.sampled_from(["r1", "r2"])


class Openings(RuleBasedStateMachine):
    @initialize(count=st.integers(2, 4))
    def start(self, count: int) -> None:
        self.policy = Incidents.model_validate({"nodes": count, "within": "60s"})
        self.index = IncidentIndex(self.policy)
        self.open: dict[str, tuple[list[float], str]] = {}

    @rule(node=nodes, times=times, rack=racks)
    def a_node_is_so(self, node: str, times: list[float], rack: str) -> None:
        before = self.told()
        self.open[node] = times, rack
        news = self.index.note(node, [opened(at) for at in times], [(RACK, rack)])
        after = self.told()
        assert {other for other in before if before[other] != after[other]} - {node} <= news

    def told(self) -> dict[str, list[tuple[object, ...]]]:
        """What a decision about each node goes by."""
        marks = (2, self.policy.nodes)
        told: dict[str, list[tuple[object, ...]]] = {}
        for node, (ats, _) in self.open.items():
            for at in sorted(ats):
                others = self.index.others(node, "dmesg", "LinkDown", NOON + at)
                incident = self.index.of(node, "dmesg", "LinkDown", NOON + at)
                ground = None if incident is None else incident.ground
                told.setdefault(node, []).append((*(others + 1 >= mark for mark in marks), ground))
        return {node: told.get(node, []) for node in self.open}

    def chains(self) -> Iterable[list[tuple[float, str]]]:
        chain: list[tuple[float, str]] = []
        for at, node in sorted((at, node) for node, (ats, _) in self.open.items() for at in ats):
            if chain and at - chain[-1][0] > self.policy.within:
                yield chain
                chain = []
            chain.append((at, node))
        if chain:
            yield chain

    @invariant()
    def incidents_are_the_chains_of_enough_nodes(self) -> None:
        expected = []
        for chain in self.chains():
            members = {node for _, node in chain}
            for at, node in chain:
                assert self.index.others(node, "dmesg", "LinkDown", NOON + at) == len(members) - 1
            if len(members) < self.policy.nodes:
                continue
            in_racks = {rack: {node for node in members if self.open[node][1] == rack} for rack in ("r1", "r2")}
            largest = max(in_racks, key=lambda rack: len(in_racks[rack]))
            most = in_racks[largest]
            if len(most) >= self.policy.nodes and len(members) - len(most) < self.policy.nodes:
                expected.append(most)
            else:
                expected.append(members)
        found = [incident.count for incident in self.index.all()]
        assert sorted(found) == sorted(len(members) for members in expected)

    @invariant()
    def nothing_is_kept_of_nodes_without_faults(self) -> None:
        if not any(ats for ats, _ in self.open.values()):
            assert not self.index._nodes
            assert not self.index._kinds


Openings.TestCase.settings = settings(
    max_examples=20, stateful_step_count=25, suppress_health_check=list(HealthCheck), deadline=None
)
TestOpenings = Openings.TestCase
