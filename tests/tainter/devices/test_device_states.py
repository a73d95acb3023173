"""What is known of each device of a node: who keeps it out, and what Muster knows beside a driver's own taint."""

from typing import Any

import msgspec
import pytest
from tests.tainter.devices.device_world import (
    DRIVER,
    POLICY,
    Leader,
    address,
    device,
    finding,
    gpu,
    health,
    resource_slice,
    uuid,
    world,
)

from muster_cli.report.fleet.rows import node_row
from muster_kube.api.objects import NodeStatus
from muster_tainter.devices.device_states import DeviceMark, DeviceState, device_states, marks
from muster_tainter.devices.losses import DeviceBalance, device_balance
from muster_tainter.explain.node import explain_node
from muster_tainter.faults.record.node_record import read_record
from muster_tainter.page.rows import RowState, row

XID = {"key": f"{DRIVER}/xid", "value": "79", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}
INFORMS = {"key": f"{DRIVER}/xid", "value": "31", "effect": "None"}
TAINTED = POLICY.replace("quarantine: rules", "quarantine: off")


def gpus(taints: dict[int, list[dict[str, str]]], *, nested: bool = False) -> dict[str, Any]:
    """A slice with four GPUs. nested: as in v1beta1."""
    devices = []
    for number in range(4):
        made = device(number) | ({"taints": taints[number]} if number in taints else {})
        name = made.pop("name")
        devices.append({"name": name, "basic": made} if nested else {"name": name, **made})
    return resource_slice(devices=devices)


def states(leader: Leader) -> tuple[DeviceState, ...]:
    node = leader.api.nodes["n1"]
    return device_states(node, read_record(node), leader.index.devices("n1"), leader.fleet.policy(), leader.now)


@pytest.mark.parametrize("nested", [False, True])
def test_a_device_that_its_driver_keeps_out_is_shown_beside_a_muster_that_has_no_fault_of_it(nested: bool) -> None:
    leader = world(s=gpus({1: [XID], 2: [INFORMS]}, nested=nested))
    found = states(leader)
    assert [each.mark for each in found] == [".", DeviceMark.BY_DRIVER, ".", "."]
    assert [[(taint.text, taint.keeps_out) for taint in each.taints] for each in found] == [
        [], [(f"{DRIVER}/xid=79:NoSchedule", True)], [(f"{DRIVER}/xid=31:None", False)], [],
    ]  # fmt: skip
    assert (found[1].device, found[1].names, found[1].fault, found[1].closed) == (address(1), ("gpu-1",), None, None)


@pytest.mark.parametrize("effect", ["", "None", "PreferNoSchedule", "SomethingNew"])
def test_an_effect_that_the_scheduler_does_not_know_keeps_no_device_out(effect: str) -> None:
    assert marks(states(world(s=gpus({1: [XID | {"effect": effect}]})))) == ""


async def test_musters_own_fault_counts_before_the_drivers_taint() -> None:
    leader = world(s=gpus({1: [XID]}))
    await leader.settle(health(finding(1)))
    found = states(leader)[1]
    assert (found.mark, found.fault.reason if found.fault else "", len(found.taints)) == (DeviceMark.ALONE, "Xid95", 1)


async def test_a_taint_that_a_driver_keeps_after_musters_proof_is_shown_beside_it() -> None:
    leader = world(s=gpus({1: [XID]}))
    await leader.settle(health(finding(1)))
    await leader.settle(health(boot="boot-2"))
    found = states(leader)[1]
    assert (found.mark, found.fault) == (DeviceMark.BY_DRIVER, None)
    assert found.closed is not None
    assert (found.closed.check, found.closed.reason, found.closed.how) == ("dmesg", "Xid95", "boot")
    assert leader.api.effects() == {}  # the rule is gone, and nothing else was written
    assert {write.partition(" ")[0] for write in leader.api.writes} == {"create", "delete"}


async def test_a_bad_device_of_a_tainted_node_and_one_that_waits() -> None:
    leader = world(TAINTED)
    await leader.settle(health(finding(1)))
    assert marks(states(leader)) == ".T.."


async def test_a_device_that_has_no_room_in_a_budget_is_bad_and_not_kept_out() -> None:
    leader, bad, full = world(), health(finding(1)), "budget: no room"
    await leader.settle(bad, withhold=full, device_withhold=full)
    condition = leader.decide(bad, withhold=full, device_withhold=full).condition
    assert condition is not None
    node = leader.api.nodes["n1"]
    leader.api.nodes["n1"] = msgspec.structs.replace(node, status=NodeStatus(conditions=(condition,)))
    assert marks(states(leader)) == ".W.."


def test_parts_of_a_card_are_one_device_with_the_taints_of_all() -> None:
    part = device(1, "gpu-1-mig-0", parentUUID=uuid(1)) | {"taints": [XID]}
    whole = device(1) | {"taints": [XID | {"key": f"{DRIVER}/gpu-lost", "value": ""}]}
    found = states(world(s=resource_slice(devices=[device(0), whole, part])))
    assert [each.names for each in found] == [("gpu-0",), ("gpu-1", "gpu-1-mig-0")]
    assert {taint.text for taint in found[1].taints} == {f"{DRIVER}/xid=79:NoSchedule", f"{DRIVER}/gpu-lost:NoSchedule"}


def test_letters_of_a_driver_without_a_problem_are_left_out() -> None:
    nics = resource_slice(driver="nic.example.com", devices=[device(8), device(9)])
    leader = world(gpus=gpus({3: [XID]}), nics=nics)
    assert [each.driver for each in states(leader)] == [DRIVER] * 4 + ["nic.example.com"] * 2
    assert marks(states(leader)) == "...D"


def test_a_taint_with_control_characters_is_shown_without_them() -> None:
    (taint,) = states(world(s=gpus({0: [XID | {"value": "\x1b[31m" + "9" * 500}]})))[0].taints
    assert "\x1b" not in taint.text
    assert len(taint.text.encode()) <= 160


def test_a_node_that_passes_but_for_its_drivers_taint_has_a_row_of_its_own() -> None:
    leader = world(s=gpus({1: [XID]}))
    node, devices, good = leader.api.nodes["n1"], leader.index.devices("n1"), health()
    made = row(node, good, leader.fleet.policy(), leader.now, devices=devices)
    assert (made[0], made[1], made[4], made[-1]) == (RowState.DEVICE_OUT, 1, address(1), ".D..")
    assert made[2] == 1767225600  # XID's time
    shown = node_row("n1", node, good, leader.now, devices=devices)
    assert shown.driver_taints == (f"{address(1)} {DRIVER}/xid=79:NoSchedule",)
    assert shown.is_special
    explained = explain_node(node, good, leader.fleet.policy(), leader.now, devices=devices)
    assert (explained.state, len(explained.device_lines)) == ("FREE", 2)
    assert [each.mark for each in explained.devices] == [".", "D", ".", "."]


@pytest.mark.parametrize(("policy", "cost"), [(POLICY, "1 of 4 "), (TAINTED, "4 of 4 ")])
async def test_explain_compares_what_the_device_and_its_node_cost(policy: str, cost: str) -> None:
    leader = world(policy)
    bad = health(finding(1))
    await leader.settle(bad)
    later = leader.now + 2 * 3600
    node, devices = leader.api.nodes["n1"], leader.index.devices("n1")
    (chain,) = explain_node(node, bad, leader.fleet.policy(), later, devices=devices).chains
    (text,) = [link.text for link in chain.links if link.label == "cost"]
    assert text.startswith(cost)
    assert {"2.0", "8.0"} <= set(text.replace(";", " ").split())  # device-hours


async def test_devices_out_alone_spare_the_others_and_those_of_a_tainted_node_are_all_lost() -> None:
    for policy, balance in ((POLICY, DeviceBalance(alone=1, spared=3)), (TAINTED, DeviceBalance(with_node=4))):
        leader = world(policy)
        await leader.settle(health(finding(1)))
        assert device_balance(leader.api.nodes["n1"], leader.index.devices("n1")) == {DRIVER: balance}
    assert device_balance(world().api.nodes["n1"], world().index.devices("n1")) == {}


def test_gpu_and_nic_are_named_like_faults() -> None:
    assert gpu(1).endswith(states(world())[1].device)
