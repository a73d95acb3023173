"""What explain, the fleet page, `muster status` and the metrics show of a device that is kept out alone."""

import msgspec
from prometheus_client import CollectorRegistry
from tests.tainter.devices.device_world import POLICY, Leader, finding, gpu, health, world

from muster_cli.report.fleet.rows import node_row
from muster_tainter.devices.device_account import DRIVERS_LIMIT, DeviceAccount
from muster_tainter.devices.losses import DeviceBalance, devices_lost
from muster_tainter.devices.metrics import DeviceMetrics
from muster_tainter.explain.node import explain_node
from muster_tainter.faults.record.node_record import DeviceStage
from muster_tainter.page.detail import describe_node
from muster_tainter.page.rows import RowState, row

BAD = health(finding(1, message="uncontained"))
TAINTED = POLICY.replace("quarantine: rules", "quarantine: off")


async def settled(policy: str = POLICY) -> Leader:
    leader = world(policy)
    await leader.settle(BAD)
    return leader


async def test_explain_says_quarantined_and_shows_no_taint_of_the_node() -> None:
    leader = await settled()
    found = explain_node(leader.api.nodes["n1"], BAD, leader.fleet.policy(), leader.now)
    assert (found.state, found.taints) == ("FAULTY", ())
    assert [chain.state for chain in found.chains] == ["quarantined"]


async def test_the_page_shows_a_node_that_works_without_one_device() -> None:
    leader = await settled()
    node, policy, devices = leader.api.nodes["n1"], leader.fleet.policy(), leader.index.devices("n1")
    made = row(node, BAD, policy, leader.now, devices=devices)
    assert (made[0], made[4], made[-1]) == (RowState.DEVICE_OUT, gpu(1), ".Q..")
    detail = describe_node(node, BAD, policy, leader.now, devices=devices)
    assert detail["state"] == RowState.DEVICE_OUT
    assert [(fault["quarantine"], fault["device"]) for fault in detail["faults"]] == [(True, DeviceStage.ALONE)]
    assert gpu(1) in detail["done"]
    assert "".join(each.mark for each in detail["devices"]) == ".Q.."


async def test_without_resource_slices_the_page_still_says_that_a_device_is_out() -> None:
    leader = await settled()
    made = row(leader.api.nodes["n1"], BAD, leader.fleet.policy(), leader.now)
    assert (made[0], made[-1]) == (RowState.DEVICE_OUT, "")


async def test_status_names_the_device() -> None:
    leader = await settled()
    row = node_row("n1", leader.api.nodes["n1"], BAD, leader.now)
    assert (row.quarantined, row.taints, row.is_special) == ((gpu(1),), (), True)
    assert any(gpu(1) in cell for cell in row.cells(leader.now))
    assert msgspec.to_builtins(row)["quarantined"] == (gpu(1),)


async def test_healthy_devices_are_lost_only_with_their_node() -> None:
    for policy, lost in ((POLICY, 0), (TAINTED, 3)):
        leader = await settled(policy)
        found = devices_lost(leader.api.nodes["n1"], leader.index.devices("n1"), leader.fleet.policy())
        assert found == lost


async def test_a_fault_of_the_machine_costs_no_device_that_a_rule_would_have_spared() -> None:
    leader = world(TAINTED)
    both = health(finding(1), finding(0, "reboot", 2, component="host"))
    await leader.settle(both)
    assert devices_lost(leader.api.nodes["n1"], leader.index.devices("n1"), leader.fleet.policy()) == 0


def test_the_metrics_have_every_state() -> None:
    registry = CollectorRegistry()
    staged = [(DeviceStage.ALONE, gpu(0)), (DeviceStage.ALONE, gpu(1)), ("withheld", gpu(2)), ("forged", gpu(3))]
    by_drivers = [("a.example", "NoSchedule"), ("a.example", "NoSchedule"), ("a.example", "None")]
    metrics = DeviceMetrics(registry, lambda: staged, lambda: 7, lambda: by_drivers)
    metrics.count("created")
    for effect, number in (("NoSchedule", 2), ("None", 1)):
        labels = {"driver": "a.example", "effect": effect}
        assert registry.get_sample_value("muster_tainter_devices_tainted_by_driver", labels) == number
    states = {
        state: registry.get_sample_value("muster_tainter_devices_quarantined", {"state": state})
        for state in ("alone", "wanted", "preview", "withheld", "forged")
    }
    assert states == {"alone": 2, "wanted": 0, "preview": 0, "withheld": 1, "forged": None}
    assert registry.get_sample_value("muster_tainter_healthy_devices_lost") == 7
    assert registry.get_sample_value("muster_tainter_device_rule_writes_total", {"result": "created"}) == 1


def test_device_seconds_are_counted_as_time_passes_by_outcome() -> None:
    registry, now = CollectorRegistry(), [100.0]
    metrics = DeviceMetrics(registry, list, int, list)
    account = DeviceAccount(lambda: now[0], metrics.add_seconds)
    now[0] = 500.0
    account.begin()
    for passed, balances in (
        (10.0, [{"d": DeviceBalance(alone=1, spared=7)}, {"d": DeviceBalance(with_node=8)}]),
        (20.0, [{"d": DeviceBalance(alone=1, spared=7)}]),
        (-5.0, [{"d": DeviceBalance(alone=1)}]),
    ):
        now[0] += passed
        account.tick(balances)
    found = {
        outcome: registry.get_sample_value("muster_tainter_device_seconds_total", {"driver": "d", "outcome": outcome})
        for outcome in ("alone", "spared", "with_node")
    }
    assert found == {"alone": 30.0, "spared": 210.0, "with_node": 80.0}


def test_names_of_drivers_do_not_fill_the_metrics() -> None:
    account = DeviceAccount(lambda: 0.0, lambda *_: None)
    labels = {account.label(f"driver-{number}") for number in range(10 * DRIVERS_LIMIT)}
    assert len(labels) == DRIVERS_LIMIT + 1
    assert account.label("driver-0") == "driver-0"
