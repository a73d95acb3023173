"""ResourceSlices as devices of nodes: generations, lies about other nodes, and many of them."""

from typing import Any

import msgspec
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

from muster_tainter.devices.slices.device_map import NO_DEVICES, PARTS_LIMIT, NodeDevices
from muster_tainter.devices.slices.index import NODE_DEVICES_LIMIT, NODE_SLICES_LIMIT, SliceIndex, SliceStore
from muster_tainter.devices.slices.resource_slice import TAINTS_LIMIT, DriverTaint, SliceSpec

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


def put(found: SliceIndex, store: SliceStore, made: dict[str, Any]) -> None:
    """As the reflector does."""
    name, new = made["metadata"]["name"], read_slice(made)
    old = store.get(name)
    store[name] = new
    found.note(name, old, new)


def remove(found: SliceIndex, store: SliceStore, name: str) -> None:
    found.note(name, store.pop(name), None)


def flooded(limit: int = 200) -> tuple[SliceIndex, SliceStore]:
    """Of node n1, more slices than are kept of all nodes; one of n2."""
    found = SliceIndex(NODES.__contains__, limit=limit)
    store = SliceStore(found)
    for number in range(limit + 50):
        put(found, store, resource_slice("n1", [], name=f"forged-{number}", driver=f"d{number}"))
    put(found, store, resource_slice("n2", name="honest"))
    return found, store


def test_many_slices_of_one_node_leave_room_for_those_of_others() -> None:
    found, store = flooded()
    assert (found.count, found.left_out) == (NODE_SLICES_LIMIT + 1, set())
    assert names(found.devices("n2")) == ("gpu-0",)
    assert (bool(found.excess("n1")), found.excess("n2")) == (True, "")
    put(found, store, resource_slice("n1", name="forged-0"))
    assert found.devices("n1") == NO_DEVICES


def test_a_node_with_no_more_slices_than_are_kept_has_its_devices_again() -> None:
    found, store = flooded()
    put(found, store, resource_slice("n1", name="forged-0"))
    for name in [name for name in store if name not in ("forged-0", "honest")]:
        remove(found, store, name)
    assert (found.excess("n1"), names(found.devices("n1"))) == ("", ("gpu-0",))
    assert found.count == 2


def many_devices(number: int, first: int = 0) -> list[dict[str, Any]]:
    return [
        {"name": f"d{n}", "attributes": {"uuid": {"string": f"GPU-{n:08x}-aaaa-bbbb-cccc-000000000000"}}}
        for n in range(first, first + number)
    ]


def test_more_devices_than_any_node_has_are_none() -> None:
    found = index(*(resource_slice("n1", many_devices(128, 128 * n), name=f"s{n}", count=8) for n in range(8)))
    assert found.devices("n1").counts == {DRIVER: NODE_DEVICES_LIMIT}
    one_more = read_slice(resource_slice("n1", many_devices(1, 5000), name="more", count=9))
    assert found.note("more", None, one_more) == {"n1"}
    assert (found.devices("n1"), bool(found.excess("n1"))) == (NO_DEVICES, True)
    assert found.note("more", one_more, None) == {"n1"}
    assert found.devices("n1").counts == {DRIVER: NODE_DEVICES_LIMIT}


def test_devices_that_no_fault_can_name_do_not_count() -> None:
    processors = [{"name": f"cpu-{n}"} for n in range(128)]
    found = index(
        resource_slice("n1", name="s"),
        *(resource_slice("n1", processors, name=f"c{n}", driver="cpu", pool=f"c{n}") for n in range(20)),
    )
    assert names(found.devices("n1")) == ("gpu-0",)


def test_of_a_slice_that_is_left_out_only_its_name_and_node_are_stored() -> None:
    found, store = flooded()
    put(found, store, resource_slice("n1", many_devices(100), name="forged-249"))
    left_out = store["forged-249"]
    assert (left_out.metadata.name, left_out.spec) == ("forged-249", SliceSpec(node_name="n1"))
    put(found, store, resource_slice("n2", many_devices(100), name="honest"))
    assert len(store["honest"].spec.kept) == 100


def test_a_slice_that_changes_stays_when_no_other_has_room() -> None:
    found = SliceIndex(NODES.__contains__, limit=1)
    store = SliceStore(found)
    put(found, store, resource_slice("n1", name="s"))
    put(found, store, resource_slice("n1", [device(0, "card-0")], name="s", generation=2))
    assert (names(found.devices("n1")), found.left_out) == (("card-0",), set())
    put(found, store, resource_slice("n2", name="more"))
    assert found.left_out == {"more"}


async def test_a_node_with_too_many_slices_is_tainted_and_its_device_kept_out_alone_later() -> None:
    forged = {f"f{n}": resource_slice("n1", [], name=f"f{n}", driver=f"d{n}") for n in range(NODE_SLICES_LIMIT)}
    leader = world(s=resource_slice(), **forged)
    await leader.settle(health(finding(0)))
    assert (taints(leader), leader.api.rules) == (["muster.dev/faulty:NoSchedule"], {})
    leader.see_slices({"s": resource_slice()})
    await leader.settle(health(finding(0)))
    assert (taints(leader), leader.api.effects()) == ([], {"gpu-0": "NoSchedule"})


def test_long_and_many_taints_are_cut_and_the_strongest_stays() -> None:
    weak = [{"key": f"{n}/" + "k" * 300, "value": "v" * 300, "effect": "None" * 99} for n in range(15)]
    strong = {"key": "example.com/lost", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}
    devices = [device(n % 16, f"gpu-{n}") | {"taints": [*weak, strong]} for n in range(128)]
    made = read_slice(resource_slice(devices=devices))
    assert len(msgspec.json.encode(made)) < 128 * TAINTS_LIMIT * 400
    card = index(resource_slice(devices=devices)).devices("n1").cards[address(0)]
    assert len(card.taints) <= TAINTS_LIMIT
    assert card.taints[0] == DriverTaint(key=strong["key"], effect="NoExecute", time_added=strong["timeAdded"])
