"""`muster clear`: what it asks for, from what is there."""

from muster_cli.clear import clears, merged
from muster_cli.report import NodeState
from muster_kube.nodehealth import CLEAR_LIMIT, Clear
from muster_kube.objects import Metadata, Node
from muster_tainter.memory import Fault, Memory


def state(*faults: tuple[str, str, int]) -> NodeState:
    open_faults = tuple(Fault(check=c, component=d, reason="Xid79", occurrence=n) for c, d, n in faults)
    return NodeState(Node(metadata=Metadata(name="n1")), None, Memory(open=open_faults))


def asked(*faults: tuple[str, str, int], component: str | None = None) -> list[tuple[str, str, int]]:
    return [(e.check, e.component, e.occurrence) for e in clears(state(*faults), None, component, "me", "now")]


def test_each_component_is_cleared_up_to_its_highest_number() -> None:
    assert asked(("dmesg", "gpu/1", 3), ("dmesg", "gpu/2", 5), ("dmesg", "gpu/1", 4)) == [
        ("dmesg", "gpu/1", 4),
        ("dmesg", "gpu/2", 5),
    ]


def test_more_components_than_there_is_room_for_are_cleared_together_and_none_is_left_out() -> None:
    many = [("dmesg", f"gpu/{n}", n) for n in range(1, CLEAR_LIMIT + 10)]
    assert asked(*many, ("ping", "nic/0", 2)) == [("dmesg", "*", CLEAR_LIMIT + 9), ("ping", "*", 2)]


def test_one_component_of_many_is_cleared_alone() -> None:
    many = [("dmesg", f"gpu/{n}", n) for n in range(1, CLEAR_LIMIT + 10)]
    assert asked(*many, component="gpu/7") == [("dmesg", "gpu/7", 7)]


def test_the_oldest_entries_make_room() -> None:
    known = tuple(Clear(check="dmesg", component=f"gpu/{n}", occurrence=n) for n in range(CLEAR_LIMIT))
    entry = Clear(check="ping", component="nic/0", occurrence=1)
    assert merged(known, (entry,)) == (*known[1:], entry)
