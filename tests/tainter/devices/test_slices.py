"""ResourceSlices as devices of nodes: generations, lies about other nodes, and many of them."""

from typing import Any

import pytest
from tests.tainter.devices.device_world import (
    DRIVER,
    address,
    device,
    finding,
    health,
    read_slice,
    resource_slice,
    taints,
    uuid,
    world,
)

from muster_tainter.devices.slices.device_map import PARTS_LIMIT, NodeDevices
from muster_tainter.devices.slices.index import SliceIndex

NODES = {"n1", "n2"}


def index(*slices: dict[str, Any]) -> SliceIndex:
    found = SliceIndex(NODES.__contains__)
    for each in slices:
        found.note(each["metadata"]["name"], None, read_slice(each))
    return found


def names(devices: NodeDevices, number: int = 0) -> tuple[str, ...]:
    """The devices with this address that may have rules."""
    card = devices.cards.get(address(number))
    return () if card is None or card.problem else card.names


def test_a_slice_of_a_node_never_names_a_device_of_another() -> None:
    honest = resource_slice("n2", name="honest")
    liar = resource_slice("n1", name="liar", pool="n2")
    found = index(honest, liar)
    assert names(found.devices("n1")) == ()
    assert names(found.devices("n2")) == ("gpu-0",)


def test_a_pool_with_the_name_of_a_node_that_has_no_slices_yet_is_not_used() -> None:
    assert names(index(resource_slice("n1", name="liar", pool="n2")).devices("n1")) == ()


def test_a_pool_that_two_nodes_name_belongs_to_neither() -> None:
    found = index(resource_slice("n1", name="a", pool="rack-7"), resource_slice("n2", name="b", pool="rack-7"))
    assert [names(found.devices(node)) for node in sorted(NODES)] == [(), ()]
    found.note("b", read_slice(resource_slice("n2", name="b", pool="rack-7")), None)
    assert names(found.devices("n1")) == ("gpu-0",)


async def test_a_lie_in_a_slice_taints_only_the_node_of_the_liar() -> None:
    leader = world(liar=resource_slice("n1", name="liar", pool="n2"), honest=resource_slice("n2", name="honest"))
    leader.api.nodes["n2"] = leader.api.nodes["n1"]
    await leader.settle(health(finding(0)))
    assert leader.api.rules == {}
    assert taints(leader) == ["muster.dev/faulty:NoSchedule"]


def test_only_the_newest_generation_counts_once_it_is_complete() -> None:
    old = resource_slice(devices=[device(0, "old-0"), device(1, "old-1")])
    new = resource_slice(name="new", devices=[device(0, "new-0")], generation=2, count=2)
    found = index(old, new)
    assert names(found.devices("n1"), 1) == ("old-1",)  # the driver has not written all of it
    rest = resource_slice(name="rest", devices=[device(1, "new-1")], generation=2, count=2)
    found.note("rest", None, read_slice(rest))
    assert (names(found.devices("n1"), 0), names(found.devices("n1"), 1)) == (("new-0",), ("new-1",))


def test_slices_for_several_nodes_are_not_used() -> None:
    shared = resource_slice(name="shared")
    del shared["spec"]["nodeName"]
    shared["spec"]["allNodes"] = True
    found = index(shared)
    assert found.nodes() == []


def test_a_card_is_counted_once_with_all_its_parts() -> None:
    parts = [device(0, f"part-{n}") for n in range(3)] + [device(1)]
    found = index(resource_slice(devices=parts)).devices("n1")
    assert names(found) == ("part-0", "part-1", "part-2")
    assert found.cards[uuid(0)] == found.cards[address(0)]
    assert found.counts == {DRIVER: 2}


def test_too_many_parts_are_refused() -> None:
    found = index(resource_slice(devices=[device(0, f"part-{n}") for n in range(PARTS_LIMIT + 1)])).devices("n1")
    assert found.cards[address(0)].problem


@pytest.mark.parametrize("name", ["resource.kubernetes.io/pciBusID", "uuid", f"{DRIVER}/uuid"])
def test_the_older_api_nests_the_attributes_deeper(name: str) -> None:
    text = address(0) if name.endswith("pciBusID") else uuid(0)
    nested = {"name": "gpu-0", "basic": {"attributes": {name: {"string": text}}}}
    found = index(resource_slice(devices=[nested])).devices("n1")
    assert found.cards[text].names == ("gpu-0",)


def test_ten_thousand_slices_are_kept_and_one_more_than_the_limit_is_left_out() -> None:
    found = SliceIndex(NODES.__contains__, limit=10_000)
    eight = [device(number) for number in range(8)]
    for number in range(10_000):
        found.note(f"s{number}", None, read_slice(resource_slice(f"node-{number}", eight, name=f"s{number}")))
    assert found.count == 10_000
    assert names(found.devices("node-9999"), 7) == ("gpu-7",)
    found.note("more", None, read_slice(resource_slice("n1", name="more")))
    assert (found.left_out, found.count) == ({"more"}, 10_000)
    found.note("more", read_slice(resource_slice("n1", name="more")), None)
    assert not found.left_out
