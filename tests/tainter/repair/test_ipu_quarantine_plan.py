"""Which IPUs are kept out of use: every open fault of every node, under a budget, the earliest first."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster_kube.api.objects import Metadata, Node
from muster_kube.api.times import rfc3339_whole
from muster_tainter.faults.desired_state import decide
from muster_tainter.faults.record.node_record import ANNOTATION, Fault, NodeRecord, encode_record
from muster_tainter.policy.file import PolicyError, load_policy, parse_policy
from muster_tainter.repair.ipu_quarantine_plan import (
    QuarantineEntry,
    QuarantineReason,
    data_patch,
    key_of,
    plan_quarantine,
    read_quarantine,
)

NOW = 1_800_000_000.0
POLICY = load_policy(None)


def fault(component: str = "ipu/10.1.5.7/2", since: float = NOW - 60, **fields: Any) -> Fault:
    values: dict[str, Any] = {"check": "ipu", "reason": "IpuErrorState", "fault_class": "quarantine"} | fields
    return Fault(component=component, occurrence=1, since=rfc3339_whole(since), rule="ipu-quarantine", **values)


def node(*faults: Fault, name: str = "host-1", **labels: str) -> Node:
    text = encode_record(NodeRecord(open=faults))
    return Node(metadata=Metadata(name=name, labels=labels, annotations={ANNOTATION: text} if text else {}))


def reasons(*nodes: Node, now: float = NOW) -> list[QuarantineReason]:
    return [reason for each in nodes for reason in read_quarantine(each, POLICY, now).reasons]


def test_a_failed_ipu_is_quarantined_and_its_host_keeps_its_work(make: Any) -> None:
    health = make.health(make.finding("IpuErrorState", component="ipu/10.1.5.7/2", fault_class="quarantine"))
    bad = decide(make.node(), health, POLICY, NOW).applied(make.node())
    assert bad.spec.taints == ()
    data = plan_quarantine(reasons(bad), POLICY).data
    assert list(data) == ["10.1.5.7_2"]
    entry = json.loads(data["10.1.5.7_2"])
    [told] = entry.pop("faults")
    assert entry == {"ipu": "ipu/10.1.5.7/2", "machine": "10.1.5.7", "index": 2, "since": rfc3339_whole(NOW)}
    assert (told["node"], told["check"], told["reason"]) == ("n1", "dmesg", "IpuErrorState")


def test_whoever_reads_it_can_read_it_back() -> None:
    [text] = plan_quarantine(reasons(node(fault())), POLICY).data.values()
    assert msgspec.json.decode(text, type=QuarantineEntry).machine == "10.1.5.7"


def test_what_closes_the_last_fault_of_an_ipu_lets_it_go_and_not_before() -> None:
    both = node(fault(), name="a"), node(fault(reason="LinkDown"), name="b")
    entry = json.loads(plan_quarantine(reasons(*both), POLICY).data["10.1.5.7_2"])
    assert [each["node"] for each in entry["faults"]] == ["a", "b"]
    assert list(plan_quarantine(reasons(both[1]), POLICY).data) == ["10.1.5.7_2"]
    assert plan_quarantine(reasons(), POLICY).data == {}


def test_a_fault_that_is_over_and_only_held_keeps_its_ipu_out() -> None:
    assert reasons(node(fault(over=rfc3339_whole(NOW), how="proof")))


def test_a_node_that_is_not_managed_says_nothing() -> None:
    assert reasons(node(fault(), **{"muster.dev/managed": "false"})) == []


def test_what_is_no_ipu_of_an_ipu_machine_is_said_and_not_quarantined() -> None:
    odd = ("ipu/unnamed", "ipu/partition:p1", "ipu/0000:3b:00.0", "ipu/7", "ipu/host/x", "ipu/a/b/3", "ipu//1")
    found = read_quarantine(node(*(fault(component=each) for each in odd)), POLICY, NOW)
    assert (found.reasons, found.unaddressed) == ((), tuple(sorted(odd)))


def test_other_classes_and_warnings_quarantine_nothing() -> None:
    others = node(fault(fault_class="contact"), fault(verdict="WARN"), fault(component="gpu/0000:3b:00.0/1"))
    assert reasons(others) == []


def test_a_rule_may_wait() -> None:
    waits = parse_policy("rules: [{name: ipu-quarantine, match: {component: 'ipu/*'}, for: 5m, action: quarantine}]")
    early = read_quarantine(node(fault(since=NOW)), waits, NOW + 299)
    assert (early.reasons, early.look_at) == ((), NOW + 300)
    assert read_quarantine(node(fault(since=NOW)), waits, NOW + 300).reasons


def test_the_budget_holds_and_the_earliest_stay() -> None:
    two = parse_policy("{rules: [], quarantine: {ipus: 2}}")
    many = reasons(*(node(fault(f"ipu/m{n}/0", since=NOW - n), name=f"h{n}") for n in range(4)))
    found = plan_quarantine(many, two)
    assert (sorted(found.data), found.withheld) == (["m2_0", "m3_0"], ("ipu/m1/0", "ipu/m0/0"))
    assert plan_quarantine(many, parse_policy("{rules: [], quarantine: {ipus: 0}}")).data == {}


@pytest.mark.parametrize(("text", "limit"), [
    ("{share: 25%, fleet: 64}", 16), ("{share: 10%, fleet: 64}", 6), ("{share: 100%, fleet: 64}", 16),
    ("{ipus: 3, share: 25%, fleet: 64}", 3), ("{share: 9%, fleet: 8}", 0),
])  # fmt: skip
def test_64_never_more_than_a_share_of_the_ipus_is_quarantined(text: str, limit: int) -> None:
    many = reasons(*(node(fault(f"ipu/m{n}/0", since=NOW - n), name=f"h{n}") for n in range(20)))
    assert len(plan_quarantine(many, parse_policy(f"{{rules: [], quarantine: {text}}}")).data) == limit


def test_while_it_is_paused_nothing_comes_and_what_is_over_goes() -> None:
    now = reasons(node(fault("ipu/m1/0"), fault("ipu/m2/0")))
    found = plan_quarantine(now, POLICY, kept={"m1_0", "m3_0"})
    assert (list(found.data), found.withheld) == (["m1_0"], ("ipu/m2/0",))


def test_what_others_write_is_put_right_and_nothing_is_written_twice() -> None:
    right = plan_quarantine(reasons(node(fault())), POLICY).data
    assert data_patch(right, right) == {}
    assert data_patch({"10.1.5.7_2": "{}", "theirs": "x"}, right) == {"theirs": None, **right}
    assert data_patch(right, {}) == {"10.1.5.7_2": None}


@pytest.mark.parametrize(("component", "key"), [
    ("ipu/10.1.5.7/2", "10.1.5.7_2"), ("ipu/lr17-1-poplar.example.com/11", "lr17-1-poplar.example.com_11"),
])  # fmt: skip
def test_the_key_of_an_ipu(component: str, key: str) -> None:
    assert key_of(component) == key


@given(st.lists(st.text(st.characters(exclude_characters="/"), min_size=1, max_size=253), unique=True, max_size=8))
@settings(max_examples=300, deadline=None)
def test_every_ipu_has_a_key_of_its_own_that_a_configmap_takes(machines: list[str]) -> None:
    keys = {key_of(f"ipu/{machine}/3") for machine in machines}
    assert len(keys) == len(machines)
    for key in keys:
        assert 0 < len(key) <= 253
        assert all(letter.isascii() and (letter.isalnum() or letter in "-._") for letter in key)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 100)), max_size=20),
    st.integers(0, 4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(101, 200)), max_size=10),
)
@settings(max_examples=300, deadline=None)
def test_what_comes_later_pushes_nobody_out(
    first: list[tuple[int, int, int]], budget: int, later: list[tuple[int, int, int]]
) -> None:
    policy = parse_policy(f"{{rules: [], quarantine: {{ipus: {budget}}}}}")

    def made(wanted: list[tuple[int, int, int]]) -> list[QuarantineReason]:
        return [
            QuarantineReason(float(at), f"h{host}", "ipu", f"ipu/m{ipu}/0", "R", "", "") for host, ipu, at in wanted
        ]

    before = plan_quarantine(made(first), policy)
    after = plan_quarantine(made(first + later), policy)
    assert len(after.data) <= budget
    assert set(before.data) <= set(after.data)
    wanted = {f"ipu/m{ipu}/0" for _, ipu, _ in first + later}
    assert len(after.data) == min(budget, len(wanted))
    assert len(after.data) + len(after.withheld) == len(wanted)


@pytest.mark.parametrize(("text", "place"), [
    ("{ipus: -1}", "quarantine.ipus: -1"), ("{ipus: 5%}", "quarantine.ipus"), ("{ipus: 2000}", "quarantine.ipus: 2000"),
    ("{ipu: 3}", "quarantine.ipu:"),
    ("{share: 25%}", "quarantine:"), ("{fleet: 64}", "quarantine:"),
    ("{share: 101%, fleet: 64}", "quarantine.share"), ("{share: 25, fleet: 64}", "quarantine.share"),
])  # fmt: skip
def test_what_a_quarantine_may_not_say(text: str, place: str) -> None:
    with pytest.raises(PolicyError) as told:
        parse_policy(f"{{rules: [], quarantine: {text}}}")
    assert place in str(told.value)
