"""One GPU of a node: from a finding to its rule and back, and from the device to the node and back."""

from typing import Any

import pytest
from tests.tainter.devices.device_world import (
    POLICY,
    RULES,
    Leader,
    device,
    finding,
    gpu,
    health,
    resource_slice,
    taints,
    uuid,
    world,
)

from muster_kube.api.errors import Forbidden, Invalid
from muster_tainter.faults.record.node_record import DeviceStage, read_record
from muster_tainter.fleet.interface import FIELD_MANAGER

FAULTY = "muster.dev/faulty:NoSchedule"


def stages(leader: Leader) -> dict[str, str]:
    return {fault.component: fault.device for fault in read_record(leader.api.nodes["n1"]).open}


def refuse(leader: Leader, error: Exception) -> None:
    """Every write of a rule is rejected."""

    def strike(_applied: bool) -> None:
        raise error

    leader.api.strike = strike


@pytest.mark.parametrize("fault_class", ["reset", "replace"])
async def test_a_fault_of_one_gpu_keeps_out_the_gpu_and_leaves_the_node(fault_class: str) -> None:
    leader = world()
    await leader.settle(health(finding(1, fault_class)))
    [rule] = leader.api.rules.values()
    assert rule["spec"] == {
        "deviceSelector": {"driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-1"},
        "taint": {"key": "muster.dev/faulty", "value": "true", "effect": "NoSchedule"},
    }
    assert rule["metadata"]["annotations"]["muster.dev/node"] == "n1"
    assert rule["metadata"]["annotations"]["muster.dev/component"] == gpu(1)
    assert taints(leader) == []
    assert "muster.dev/faulty" not in leader.api.nodes["n1"].metadata.labels
    await leader.settle(health(boot="boot-2"))  # closes a reset, not a replacement
    assert bool(leader.api.rules) == (fault_class == "replace")


@pytest.mark.parametrize("fault_class", ["reboot", "contact"])
async def test_a_fault_of_the_whole_machine_taints_the_node(fault_class: str) -> None:
    leader = world(POLICY.replace("reboot,", "reboot, contact,"))
    await leader.settle(health(finding(1, fault_class)))
    assert (taints(leader), leader.api.rules) == ([FAULTY], {})


@pytest.mark.parametrize(
    "component", ["host", "nvswitch/0000:13:00.0", "pci/0000:13:00.0", "gpu/index-1", "nic/mlx5_0"]
)
async def test_what_is_no_single_device_taints_the_node(component: str) -> None:
    leader = world()
    await leader.settle(health(finding(component=component)))
    assert (taints(leader), leader.api.rules) == ([FAULTY], {})


async def test_a_gpu_that_two_findings_name_differently_has_one_rule_and_its_node_no_taint() -> None:
    leader = world()
    by_uuid = finding(component=f"gpu/{uuid(2)}", reason="DeviceUnhealthy")
    await leader.settle(health(by_uuid, finding(2, occurrence=2)))
    assert len(leader.api.rules) == 1
    assert taints(leader) == []
    assert set(stages(leader).values()) == {"alone"}


async def test_a_gpu_named_by_its_uuid_is_found() -> None:
    leader = world()
    await leader.settle(health(finding(component=f"gpu/{uuid(2)}")))
    assert leader.api.effects() == {"gpu-2": "NoSchedule"}


async def test_all_parts_of_a_card_are_kept_out() -> None:
    parts = [
        device(0),
        {"name": "gpu-0-mig-1", "attributes": {"parentUUID": {"string": uuid(0)}, "uuid": {"string": "MIG-1"}}},
        {"name": "gpu-0-mig-2", "attributes": {"parentUUID": {"string": uuid(0)}, "uuid": {"string": "MIG-2"}}},
        *(device(number) for number in range(1, 4)),
    ]
    leader = world(s=resource_slice(devices=parts))
    await leader.settle(health(finding(0)))
    assert leader.api.effects().keys() == {"gpu-0", "gpu-0-mig-1", "gpu-0-mig-2"}


async def test_more_bad_gpus_than_the_share_taint_the_node_and_back() -> None:
    leader = world()
    await leader.settle(health(finding(0, occurrence=1), finding(1, occurrence=2)))
    assert (taints(leader), len(leader.api.rules)) == ([], 2)
    three = [finding(number, occurrence=number + 1) for number in range(3)]
    await leader.settle(health(*three))
    assert (taints(leader), leader.api.rules) == ([FAULTY], {})
    cleared = leader.decide(health(three[0], three[1]))
    assert cleared.memory.open  # nothing closes by itself
    leader.use(POLICY.replace("50%", "75%"))
    await leader.settle(health(*three))
    assert (taints(leader), len(leader.api.rules)) == ([], 3)


async def test_the_stronger_measure_comes_first_in_both_directions() -> None:
    leader = world()
    await leader.settle(health(finding(0)))
    worse = health(finding(0), finding(0, "reboot", 2, reason="Xid79"))
    leader.apply(leader.decide(worse))
    assert (taints(leader), len(leader.api.rules)) == ([FAULTY], 1)  # the rule goes after the taint has come
    await leader.settle(worse)
    assert leader.api.rules == {}

    leader = world(POLICY.replace("quarantine: rules", "quarantine: off"))
    await leader.settle(health(finding(0)))
    assert taints(leader) == [FAULTY]
    leader.use(POLICY)
    leader.apply(leader.decide(health(finding(0))))
    assert (taints(leader), stages(leader)) == ([FAULTY], {gpu(0): DeviceStage.WANTED})
    await leader.write_rules()
    assert (taints(leader), len(leader.api.rules)) == ([FAULTY], 1)
    leader.apply(leader.decide(health(finding(0))))
    assert (taints(leader), stages(leader)) == ([], {gpu(0): DeviceStage.ALONE})


@pytest.mark.parametrize("error", [Forbidden(403, "Forbidden", "no", RULES), Invalid(422, "Invalid", "no", RULES)])
async def test_a_rule_that_cannot_be_written_taints_the_node_and_is_tried_again(error: Exception) -> None:
    leader = world()
    refuse(leader, error)
    await leader.settle(health(finding(0)))
    assert (taints(leader), leader.api.rules, stages(leader)) == ([FAULTY], {}, {gpu(0): ""})
    leader.api.strike = lambda _applied: None
    await leader.settle(health(finding(0)))
    assert taints(leader) == [FAULTY]  # not at once
    leader.clock += 601
    await leader.settle(health(finding(0)))
    assert (taints(leader), len(leader.api.rules)) == ([], 1)


async def test_a_rule_of_somebody_else_with_that_name_is_left_alone() -> None:
    leader = world()
    await leader.settle(health(finding(0)))
    [(name, rule)] = leader.api.rules.items()
    theirs = {"metadata": {"name": name, "uid": "theirs"}, "spec": rule["spec"]}
    leader = world()
    leader.api.put(name, theirs)
    await leader.settle(health(finding(0)))
    assert taints(leader) == [FAULTY]
    assert leader.api.rules[name]["metadata"]["uid"] == "theirs"


async def test_a_rule_that_a_person_deletes_counts_as_cleared() -> None:
    leader = world()
    await leader.settle(health(finding(0)))
    leader.api.rules.clear()
    await leader.settle(health(finding(0)))
    memory = read_record(leader.api.nodes["n1"])
    assert (leader.api.rules, taints(leader), memory.open) == ({}, [], ())
    assert [closed.how for closed in memory.closed] == ["person"]
    await leader.settle(health(finding(0, occurrence=2)))
    assert leader.api.effects() == {"gpu-0": "NoSchedule"}


async def test_a_rule_of_an_old_name_that_the_leader_before_deleted_is_no_persons_doing() -> None:
    leader = world()
    await leader.settle(health(finding(0)))
    old = next(iter(leader.api.rules.values()))
    leader.see_slices({"s": resource_slice(devices=[device(0, "card-0"), *(device(n) for n in range(1, 4))])})
    await leader.settle(health(finding(0)))
    assert leader.api.effects() == {"card-0": "NoSchedule"}
    # the next leader's watch still shows the rule of the old name when it begins, and then its deletion
    leader.api.put(old["metadata"]["name"], {**old, "metadata": {**old["metadata"], "uid": "old"}})
    leader.see_rules()
    leader.store.forget_people()
    del leader.api.rules[old["metadata"]["name"]]
    await leader.settle(health(finding(0)))
    assert leader.api.effects() == {"card-0": "NoSchedule"}
    assert [fault.component for fault in read_record(leader.api.nodes["n1"]).open] == [gpu(0)]


RENAMED = {"s": resource_slice(devices=[device(0, "card-0"), *(device(n) for n in range(1, 4))])}


async def after_a_handover() -> Leader:
    """The leader before this one has seen another name of the device, created the rule of it and deleted that of the
    old name. This one sees both rules and then the deletion, and its slices are older than that."""
    leader = world()
    await leader.settle(health(finding(0)))
    [(name, old)] = leader.api.rules.items()
    leader.see_slices(RENAMED)
    await leader.settle(health(finding(0)))
    leader.api.put(name, {**old, "metadata": {**old["metadata"], "uid": "old"}})
    leader.see_rules()
    leader.store.forget_people()
    leader.see_slices({"s": resource_slice()})
    del leader.api.rules[name]
    leader.api.writes.clear()
    return leader


async def test_with_slices_that_are_older_than_the_rules_no_rule_is_a_persons_doing() -> None:
    leader = await after_a_handover()
    await leader.settle(health(finding(0)))
    assert (leader.api.effects(), leader.api.writes) == ({"card-0": "NoSchedule"}, [])
    assert stages(leader) == {gpu(0): DeviceStage.ALONE}
    leader.see_slices(RENAMED)
    await leader.settle(health(finding(0)))
    assert (leader.api.effects(), leader.api.writes) == ({"card-0": "NoSchedule"}, [])
    leader.api.rules.clear()  # now by a person
    await leader.settle(health(finding(0)))
    assert stages(leader) == {}


async def test_slices_that_stay_as_they_are_count_in_the_end() -> None:
    leader = await after_a_handover()
    await leader.settle(health(finding(0)))
    leader.clock += 601
    await leader.settle(health(finding(0)))
    assert (leader.api.effects(), stages(leader)) == ({"gpu-0": "NoSchedule"}, {gpu(0): DeviceStage.ALONE})


async def test_a_rule_that_goes_while_no_slice_names_its_device_is_no_persons_doing() -> None:
    leader = world()
    await leader.settle(health(finding(0)))
    leader.see_slices({})
    leader.api.rules.clear()
    leader.see_rules()
    assert not await leader.write_rules()
    await leader.settle(health(finding(0)))
    assert (taints(leader), stages(leader)) == ([FAULTY], {gpu(0): ""})


async def test_a_fault_that_closes_while_its_deleted_rule_is_looked_up_is_released_by_nobody() -> None:
    leader = world()
    await leader.settle(health(finding(0)))
    leader.api.rules.clear()
    leader.see_rules()
    read = leader.api.get

    async def closes(path: str, *, type: Any) -> Any:
        leader.store.settle("n1", {})
        return await read(path, type=type)

    leader.api.get = closes  # type: ignore[method-assign]
    await leader.write_rules()
    assert (leader.store.vanished, leader.store.released) == ({}, {})


async def test_a_deleted_rule_is_not_written_again_and_another_fault_changes_nothing_about_it() -> None:
    leader = world()
    await leader.settle(health(finding(0)))
    leader.api.rules.clear()
    leader.see_rules()
    both = health(finding(0), finding(1, occurrence=2))
    leader.apply(leader.decide(both))
    await leader.settle(both)
    assert leader.api.effects() == {"gpu-1": "NoSchedule"}
    assert [each.split()[0] for each in leader.api.writes] == ["create", "create"]
    assert {fault.component for fault in read_record(leader.api.nodes["n1"]).open} == {gpu(1)}


async def test_a_node_without_room_for_its_device_keeps_its_taint() -> None:
    leader = world(POLICY.replace("quarantine: rules", "quarantine: off"))
    await leader.settle(health(finding(0)))
    leader.use(POLICY)
    await leader.settle(health(finding(0)), withhold="", device_withhold="budget: full")
    assert (taints(leader), leader.api.rules) == ([FAULTY], {})


async def test_the_stronger_of_two_effects_is_used() -> None:
    stronger = "  - {name: now, match: {reason: Now}, action: taint, isolate: device, taint: {effect: NoExecute}}\n"
    leader = world(POLICY.replace("rules:\n", "rules:\n" + stronger))
    await leader.settle(health(finding(0, occurrence=1), finding(0, occurrence=2, reason="Now")))
    assert leader.api.effects() == {"gpu-0": "NoExecute"}


async def test_the_rule_of_the_old_name_stays_while_that_of_the_new_name_cannot_be_written() -> None:
    leader = world()
    await leader.settle(health(finding(0)))

    async def refused(path: str, *_: Any, **__: Any) -> Any:
        raise Forbidden(403, "Forbidden", "no", path)

    leader.api.create = refused  # type: ignore[method-assign]
    leader.see_slices({"s": resource_slice(devices=[device(0, "card-0"), *(device(n) for n in range(1, 4))])})
    await leader.write_rules()
    assert leader.api.effects() == {"gpu-0": "NoSchedule"}
    await leader.settle(health(finding(0)))
    assert (taints(leader), leader.api.rules) == ([FAULTY], {})


async def test_a_rule_that_a_person_takes_the_label_from_is_theirs() -> None:
    leader = world()
    await leader.settle(health(finding(0)))
    [(name, rule)] = leader.api.rules.items()
    leader.api.put(name, rule | {"metadata": rule["metadata"] | {"labels": {}}})
    await leader.settle(health(finding(0)))
    assert list(leader.api.rules) == [name]
    assert (read_record(leader.api.nodes["n1"]).open, taints(leader)) == ((), [])
    await leader.settle(health(finding(0, occurrence=2)))  # the name is taken, so the node is tainted
    assert taints(leader) == [FAULTY]


async def test_a_new_leader_that_did_not_see_it_sets_a_deleted_rule_again() -> None:
    leader = world()
    await leader.settle(health(finding(0)))
    leader.api.rules.clear()
    leader = Leader(leader.api, {"s": resource_slice()})
    await leader.settle(health(finding(0)))
    assert leader.api.effects() == {"gpu-0": "NoSchedule"}


async def test_a_rule_that_a_person_edits_counts_as_cleared() -> None:
    leader = world()
    await leader.settle(health(finding(0)))
    [name] = leader.api.rules
    leader.api.edit(name, "None")
    await leader.settle(health(finding(0)))
    memory = read_record(leader.api.nodes["n1"])
    assert (leader.api.rules, memory.open) == ({}, ())
    assert ["kubectl-edit" in closed.by for closed in memory.closed] == [True]


@pytest.mark.parametrize("manager", [FIELD_MANAGER, "kube-controller-manager"])
async def test_a_rule_that_no_person_changed_is_put_right(manager: str) -> None:
    leader = world()
    await leader.settle(health(finding(0)))
    [name] = leader.api.rules
    leader.api.edit(name, "None", manager)
    await leader.settle(health(finding(0)))
    assert leader.api.effects() == {"gpu-0": "NoSchedule"}


async def test_a_driver_that_restarts_keeps_the_rule_and_a_device_that_is_gone_does_not() -> None:
    leader = world()
    await leader.settle(health(finding(0)))
    leader.see_slices({})
    await leader.settle(health(finding(0)))
    leader.clock += 300
    await leader.settle(health(finding(0)))
    assert (taints(leader), len(leader.api.rules)) == ([], 1)
    leader.see_slices({"s": resource_slice()})
    await leader.settle(health(finding(0)))
    leader.see_slices({})
    await leader.settle(health(finding(0)))
    leader.clock += 599
    await leader.settle(health(finding(0)))
    assert len(leader.api.rules) == 1
    leader.clock += 2
    await leader.settle(health(finding(0)))
    assert (taints(leader), leader.api.rules) == ([FAULTY], {})


async def test_a_device_with_another_name_gets_its_new_rule_before_the_old_one_goes() -> None:
    leader = world()
    await leader.settle(health(finding(0)))
    leader.see_slices({"s": resource_slice(devices=[device(0, "card-0"), *(device(n) for n in range(1, 4))])})
    await leader.settle(health(finding(0)))
    assert leader.api.effects() == {"card-0": "NoSchedule"}
    assert [each.split()[0] for each in leader.api.writes] == ["create", "create", "delete"]


async def test_device_first_taints_the_node_when_its_jobs_have_ended() -> None:
    leader = world()
    first = finding(0, "reboot", reason="First")
    await leader.settle(health(first))
    assert (taints(leader), len(leader.api.rules)) == ([], 1)
    await leader.settle(health(first, idle=True))
    assert (taints(leader), leader.api.rules) == ([FAULTY], {})
    await leader.settle(health(first))  # a job that tolerates the taint changes nothing
    assert (taints(leader), leader.api.rules) == ([FAULTY], {})


async def test_a_preview_taints_the_node_and_shows_the_rule_without_effect() -> None:
    preview = POLICY.replace("quarantine: rules", "quarantine: preview")
    leader = world(preview)
    await leader.settle(health(finding(0)))
    assert (taints(leader), leader.api.effects()) == ([FAULTY], {"gpu-0": "None"})
    leader.use(POLICY)
    leader.apply(leader.decide(health(finding(0))))
    assert taints(leader) == [FAULTY]  # until the rule has its effect
    await leader.settle(health(finding(0)))
    assert (taints(leader), leader.api.effects()) == ([], {"gpu-0": "NoSchedule"})
    leader.use(preview)
    leader.apply(leader.decide(health(finding(0))))
    assert (taints(leader), leader.api.effects()) == ([FAULTY], {"gpu-0": "NoSchedule"})
    await leader.settle(health(finding(0)))
    assert leader.api.effects() == {"gpu-0": "None"}


async def test_the_effect_of_the_rule_is_that_of_the_policy() -> None:
    leader = world(POLICY.replace("action: taint}", "action: taint, taint: {effect: NoExecute}}"))
    await leader.settle(health(finding(0)))
    assert leader.api.effects() == {"gpu-0": "NoExecute"}


async def test_a_device_that_waits_for_room_has_neither_rule_nor_taint() -> None:
    leader = world()
    decision = leader.decide(health(finding(0)), device_withhold="budget: full")
    leader.apply(decision)
    await leader.write_rules()
    assert (taints(leader), leader.api.rules) == ([], {})
    assert (decision.withheld, decision.device_waits) == ("budget: full", {gpu(0)})
    await leader.settle(health(finding(0)))
    assert len(leader.api.rules) == 1


@pytest.mark.parametrize(
    "policy",
    [
        POLICY.replace("quarantine: rules", "quarantine: off"),
        POLICY.replace("quarantine: rules", "quarantine: preview"),
    ],
)
async def test_a_node_that_may_not_be_tainted_keeps_the_rules_that_it_has(policy: str) -> None:
    leader = world()
    await leader.settle(health(finding(0)))
    leader.use(policy)
    await leader.settle(health(finding(0)), withhold="budget: pool all has 1 of 1 nodes tainted", device_withhold="x")
    assert (taints(leader), leader.api.effects()) == ([], {"gpu-0": "NoSchedule"})
    await leader.settle(health(finding(0)))
    assert taints(leader) == [FAULTY]
    assert "NoSchedule" not in leader.api.effects().values()


async def test_more_bad_gpus_than_the_share_are_all_kept_out_while_the_node_may_not_be_tainted() -> None:
    leader = world()
    three = [finding(number, occurrence=number + 1) for number in range(3)]
    await leader.settle(health(*three), withhold="budget: full", device_withhold="")
    assert (taints(leader), len(leader.api.rules)) == ([], 3)
    await leader.settle(health(*three))
    assert (taints(leader), leader.api.rules) == ([FAULTY], {})


async def test_a_node_that_is_no_longer_managed_or_gone_loses_its_rules() -> None:
    for gone in (False, True):
        leader = world()
        await leader.settle(health(finding(0)))
        node = leader.api.nodes["n1"]
        if gone:
            del leader.api.nodes["n1"]
        else:
            node.metadata.labels["muster.dev/managed"] = "false"
            leader.apply(leader.decide(health(finding(0))))
        await leader.write_rules()
        assert leader.api.rules == {}


async def test_nothing_is_known_of_the_devices_yet_so_the_record_stays() -> None:
    leader = world()
    await leader.settle(health(finding(0)))
    leader.unavailable = None
    assert not leader.decide(health(finding(0))).writes


@pytest.mark.parametrize("why", ["the API server serves no DeviceTaintRule", "cannot read ResourceSlices"])
async def test_without_the_api_the_node_is_tainted_and_an_event_says_why(why: str) -> None:
    leader = world()
    leader.unavailable = why
    decision = leader.decide(health(finding(0)))
    [notice] = [each for each in decision.notices if each.reason == "DeviceNotQuarantined"]
    assert why in notice.message
    leader.apply(decision)
    assert taints(leader) == [FAULTY]
    again = leader.decide(health(finding(0)))
    assert [each for each in again.notices if each.reason == "DeviceNotQuarantined"] == []


def bad_slices() -> list[tuple[str, dict[str, Any]]]:
    twice = resource_slice(devices=[device(0), device(0), *(device(n) for n in range(1, 4))])
    other = resource_slice(driver="other.example.com", name="other", devices=[device(0, "x")])
    return [
        ("a device twice", {"s": twice}),
        ("two drivers", {"s": resource_slice(), "o": other}),
        ("another pool", {"s": resource_slice(pool="n2"), "t": resource_slice("n2", name="t")}),
        ("no device", {"s": resource_slice(devices=[])}),
        ("no address", {"s": resource_slice(devices=[{"name": "gpu-0"}])}),
        (
            "an address that is none",
            {"s": resource_slice(devices=[device(0, **{"resource.kubernetes.io/pciBusID": "x"})])},
        ),
    ]


@pytest.mark.parametrize("slices", [slices for _, slices in bad_slices()], ids=[name for name, _ in bad_slices()])
async def test_a_device_that_cannot_be_told_from_others_taints_the_node(slices: dict[str, Any]) -> None:
    leader = world(**slices)
    await leader.settle(health(finding(0, component=gpu(0))))
    assert (taints(leader), leader.api.rules) == ([FAULTY], {})
