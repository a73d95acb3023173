"""Hold-down and flap penalty of one device: they concern no sibling, and move with the board."""

from typing import Any

import msgspec
import pytest
from tests.tainter.devices.device_world import (
    POLICY,
    Leader,
    device,
    finding,
    gpu,
    health,
    protected,
    read_slice,
    resource_slice,
    taints,
    uuid,
    world,
)

from muster_kube.api.objects import Metadata, Node
from muster_kube.api.times import rfc3339_whole
from muster_kube.nodehealth import NodeHealth
from muster_tainter.devices.board_history import BoardHistory
from muster_tainter.faults.record.node_record import ANNOTATION, FlapPenalty, NodeRecord, encode_record, read_record

BASE_S = 300.0  # holdDown.base by default


def record(leader: Leader) -> NodeRecord:
    return read_record(leader.api.nodes["n1"])


def ruled(leader: Leader) -> set[str]:
    return {rule["metadata"]["annotations"]["muster.dev/component"] for rule in leader.api.rules.values()}


async def flap(leader: Leader, number: int, count: int) -> None:
    """The device gets ill and is well after a reboot, ``count`` times, and each hold-down has passed."""
    for _ in range(count):
        boot = int(leader.now)
        await leader.settle(health(finding(number, occurrence=boot), boot=f"boot-{boot}"))
        await leader.settle(health(boot=f"boot-{boot}-next"))
        leader.now += 3600.0
        await leader.settle(health(boot=f"boot-{boot}-next"))


async def get_ill_and_well(leader: Leader, *numbers: int) -> NodeHealth:
    """Devices get ill, and are well after a reboot."""
    boot = int(leader.now)
    findings = [finding(number, occurrence=boot + number) for number in numbers]
    await leader.settle(health(*findings, boot=f"ill-{boot}"))
    well = health(boot=f"well-{boot}")
    await leader.settle(well)
    return well


async def test_a_device_that_flaps_is_held_and_its_sibling_is_not() -> None:
    leader = world()
    await flap(leader, 0, 2)
    well = await get_ill_and_well(leader, 0, 1)
    assert ruled(leader) == {gpu(0)}
    leader.now += BASE_S
    await leader.settle(well)
    assert ruled(leader) == {gpu(0)}
    leader.now += 3 * BASE_S
    await leader.settle(well)
    assert not ruled(leader)
    assert not taints(leader)


async def test_the_penalty_names_the_board() -> None:
    leader = world()
    await flap(leader, 2, 2)
    assert set(record(leader).penalty) == {f"dmesg@{uuid(2)}"}


async def test_without_a_uuid_the_penalty_stays_with_the_slot() -> None:
    devices = [device(number) for number in range(4)]
    for each in devices:
        del each["attributes"]["uuid"]
    leader = world(s=resource_slice(devices=devices))
    await flap(leader, 2, 2)
    assert set(record(leader).penalty) == {f"dmesg@{gpu(2)}"}


async def test_a_device_that_flapped_alone_is_held_after_its_node_was_tainted() -> None:
    leader = world()
    await flap(leader, 0, 2)
    boot = int(leader.now)
    ill = [finding(0, occurrence=boot), finding(0, "reboot", boot + 1, reason="Xid79")]
    await leader.settle(health(ill[0], boot=f"ill-{boot}"))
    await leader.settle(health(*ill, boot=f"ill-{boot}"))
    assert taints(leader)
    await leader.settle(health(boot="well"))
    assert gpu(0) in protected(leader)
    leader.now += 4 * BASE_S
    await leader.settle(health(boot="well"))
    assert not protected(leader)


async def test_a_preview_counts_for_the_node_as_it_taints_it() -> None:
    leader = world(POLICY.replace("quarantine: rules", "quarantine: preview"))
    await flap(leader, 0, 2)
    assert set(record(leader).penalty) == {"dmesg"}


def elsewhere(leader: Leader, n: float, at: float, board: str, *, key: str = "dmesg") -> None:
    """What the record of another node says of a board."""
    text = encode_record(NodeRecord(penalty={f"{key}@{board}": FlapPenalty(n=n, at=rfc3339_whole(at))}))
    leader.boards.note("n2", Node(metadata=Metadata(name="n2", annotations={ANNOTATION: text or ""})))


async def test_a_board_that_moves_keeps_its_record() -> None:
    leader = world()
    elsewhere(leader, 4.0, leader.now - 6 * 3600.0, uuid(1))  # half of it has decayed
    well = await get_ill_and_well(leader, 0, 1)
    assert ruled(leader) == {gpu(1)}
    leader.now += 2 * BASE_S
    await leader.settle(well)
    assert ruled(leader) == {gpu(1)}
    leader.now += 2 * BASE_S
    await leader.settle(well)
    assert not ruled(leader)


async def test_a_record_counts_after_its_node_is_deleted() -> None:
    leader = world()
    elsewhere(leader, 2.0, leader.now, uuid(1))
    leader.boards.note("n2", None)
    await get_ill_and_well(leader, 1)
    assert ruled(leader) == {gpu(1)}


@pytest.mark.parametrize("case", ["published there", "another check", "another board", "decayed"])
async def test_the_record_of_another_node_does_not_count(case: str) -> None:
    leader = world()
    if case == "published there":  # so it has not moved, whoever lies
        there = read_slice(resource_slice("n2", [device(1)]))
        leader.index.note("s2", None, there)
    board = uuid(3) if case == "another board" else uuid(1)
    at = leader.now - (86_400.0 * 30 if case == "decayed" else 0.0)
    elsewhere(leader, 3.0, at, board, key="gpu" if case == "another check" else "dmesg")
    await get_ill_and_well(leader, 1)
    assert not ruled(leader)


@pytest.mark.parametrize("key", ["dmesg", f"dmesg@{gpu(1)}", "dmesg@0000:13:00.0", "dmesg@", "dmesg@GPU-1"])
def test_only_a_uuid_names_a_board(key: str) -> None:
    boards = BoardHistory(lambda _name, _board: False)
    text = encode_record(NodeRecord(penalty={key: FlapPenalty(n=2.0, at="2026-01-01T00:00:00Z")}))
    boards.note("n2", Node(metadata=Metadata(name="n2", annotations={ANNOTATION: text or ""})))
    assert not boards.elsewhere(key.partition("@")[2], "n1")


async def test_a_record_from_the_future_holds_no_longer_than_the_policy_says() -> None:
    leader = world()
    elsewhere(leader, 1000.0, leader.now + 1e9, uuid(1))
    well = await get_ill_and_well(leader, 1)
    leader.now += 86_400.0 + 1.0  # holdDown.longest
    await leader.settle(well)
    assert not ruled(leader)


def test_the_record_of_a_board_survives_encoding() -> None:
    fault: Any = {"check": "dmesg", "component": gpu(0), "reason": "Xid95", "occurrence": 1, "board": uuid(0)}
    text = msgspec.json.encode({"open": [fault]}).decode()
    node = Node(metadata=Metadata(name="n1", annotations={ANNOTATION: text}))
    assert [each.board for each in read_record(node).open] == [uuid(0)]
