"""Budgets of devices: what has no room waits and follows, in the order in which it came."""

from dataclasses import dataclass, field

import msgspec
import pytest

from muster_kube.api.objects import Metadata, Node
from muster_tainter.devices.budget import DeviceBudget
from muster_tainter.faults.record.node_record import (
    ANNOTATION,
    DeviceStage,
    Fault,
    NodeRecord,
    encode_record,
    fit_record,
)
from muster_tainter.policy.file import PolicyError, parse_policy

POOL = "rules: []\npools: [{name: all, selector: {}, domain: rack, budget: {%s}}]\n"


def node(name: str, *stages: str, rack: str = "r1") -> Node:
    faults = [
        Fault(check="dmesg", component=f"gpu/0000:{n:02x}:00.0", reason="Xid95", occurrence=n + 1, device=stage)
        for n, stage in enumerate(stages)
    ]
    text = encode_record(NodeRecord(open=tuple(faults)))
    return Node(metadata=Metadata(name=name, labels={"rack": rack}, annotations={ANNOTATION: text} if text else {}))


@dataclass
class Bed:
    budget: str
    devices: int = 8
    nodes: dict[str, Node] = field(default_factory=dict)
    woken: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        policy = parse_policy(POOL % self.budget)
        self.budgets = DeviceBudget(
            lambda: policy,
            self.nodes.get,
            lambda: list(self.nodes),
            lambda _: self.devices,
            self.woken.append,
            lambda: 0.0,
        )

    def note(self, made: Node) -> None:
        self.nodes[made.metadata.name] = made
        self.budgets.note(made.metadata.name, made)

    def ask(self, name: str, *components: str) -> bool:
        """Whether there is room."""
        self.nodes.setdefault(name, node(name))
        wanted = frozenset(components or ("gpu/0000:00:00.0",))
        return self.budgets.reserve(name, self.nodes[name], wanted, frozenset()) is None


def test_a_reserved_place_counts_until_the_node_has_it_or_not() -> None:
    bed = Bed("devices: 1")
    assert bed.ask("a")
    assert not bed.ask("b")
    bed.note(node("a", DeviceStage.ALONE))
    assert not bed.ask("b")
    bed.note(node("a"))
    assert bed.woken == ["b"]
    assert bed.ask("b")


def test_a_write_that_did_not_happen_gives_its_place_back() -> None:
    bed = Bed("devices: 1")
    assert bed.ask("a")
    assert not bed.ask("b")
    bed.note(node("a"))  # somebody else's write: ours met a conflict
    assert bed.woken == ["b"]


def test_those_that_wait_are_woken_in_the_order_in_which_they_came() -> None:
    bed = Bed("devices: 1")
    bed.note(node("a", DeviceStage.ALONE))
    assert [bed.ask(name) for name in ("d", "c", "b")] == [False] * 3
    bed.note(node("a", DeviceStage.PREVIEW))  # its node is tainted: it takes no place of a device
    assert bed.woken == ["d", "c", "b"]


def test_a_domain_has_its_own_limit() -> None:
    bed = Bed("devicesPerDomain: 1")
    bed.note(node("a", DeviceStage.WANTED))
    bed.nodes |= {"b": node("b"), "c": node("c", rack="r2")}
    assert (bed.ask("b"), bed.ask("c")) == (False, True)


@pytest.mark.parametrize(("share", "room"), [("0%", False), ("10%", True), ("100%", True)])
def test_a_share_is_of_the_devices_that_slices_name(share: str, room: bool) -> None:
    bed = Bed(f"devices: {share}")
    bed.nodes["n"] = node("n")
    assert bed.ask("n") is room


def test_without_a_limit_there_is_always_room() -> None:
    bed = Bed("tainted: 1")
    assert all(bed.ask(f"n{number}") for number in range(20))


def test_a_node_that_is_gone_neither_waits_nor_counts() -> None:
    bed = Bed("devices: 1")
    bed.note(node("a", DeviceStage.ALONE))
    assert not bed.ask("b")
    bed.budgets.note("b", None)
    assert not bed.budgets.waiting
    bed.budgets.note("a", None)
    assert bed.ask("c")


@pytest.mark.parametrize(
    "text",
    [
        "rules: []\ndevices: {quarantine: yes}",
        "rules: []\ndevices: {quarantine: rule}",
        "rules: []\ndevices: {share: 101%}",
        "rules: []\ndevices: {grace: 10}",
        "rules: []\ndevices: {unknown: 1}",
        "rules: [{name: a, action: event, isolate: device}]",
        "rules: [{name: a, action: ignore, isolate: device}]",
        "rules: [{name: a, action: taint, isolate: gpu}]",
        "rules: [{name: a, action: taint, isolate: device, taint: {effect: PreferNoSchedule}}]",
        POOL % "devices: -1",
        POOL % "devicesPerDomain: many",
    ],
)
def test_a_bad_policy_is_refused(text: str) -> None:
    with pytest.raises(PolicyError):
        parse_policy(text)


def test_a_bare_off_is_the_word() -> None:
    assert parse_policy("rules: []\ndevices: {quarantine: off}").devices.quarantine == "off"


def test_a_fault_that_is_counted_with_others_needs_its_node() -> None:
    many = NodeRecord(open=tuple(_numbered(n) for n in range(60)))
    rest = [fault for fault in fit_record(many).open if fault.rest]
    assert rest
    assert [fault.device for fault in rest] == [""]


def _numbered(number: int) -> Fault:
    one = Fault(check="dmesg", component=f"gpu/0000:{number:02x}:00.0", reason="Xid95", occurrence=number + 1)
    return msgspec.structs.replace(one, device=DeviceStage.ALONE)
