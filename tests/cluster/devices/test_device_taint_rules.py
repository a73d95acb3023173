"""What Muster expects of Kubernetes when a DeviceTaintRule keeps pods off one device: the real scheduler and
controller-manager, with rules made by hand."""

import pytest
from tests.cluster.devices.device_bed import DeviceBed
from tests.cluster.devices.device_objects import GPUS, device_name

pytestmark = pytest.mark.needs_modern(36)

ALL = {device_name(index) for index in range(GPUS)}


async def test_a_rule_takes_one_device_away_and_leaves_the_other_seven(devices: DeviceBed) -> None:
    sick, healthy = devices.nodes
    await devices.taint(f"{sick}-3", sick, 3)
    await devices.report_on(f"{sick}-3")  # so the control plane knows it

    eight = await devices.ask_in_vain(8, on=sick)
    seven = await devices.ask_for(7, on=sick)
    assert await devices.node_of(seven) == sick
    assert await devices.devices_of(seven) == ALL - {device_name(3)}
    elsewhere = await devices.ask_for(8)
    assert await devices.node_of(elsewhere) == healthy
    assert not (await devices.api.get(f"/api/v1/nodes/{sick}"))["spec"].get("taints")

    # seven healthy devices are free again, and still no pod gets the eighth
    await devices.delete_pod(seven)
    again = await devices.ask_for(7, on=sick, name="again")
    assert await devices.node_of(again) == sick
    assert not await devices.is_bound(eight)
    await devices.delete_pod(again)

    await devices.untaint(f"{sick}-3")
    assert await devices.node_of(eight) == sick
    assert await devices.devices_of(eight) == ALL


async def test_a_rule_without_effect_keeps_no_pod_off_and_previews_the_eviction(devices: DeviceBed) -> None:
    node = devices.nodes[0]
    eight = await devices.ask_for(8, on=node)
    assert await devices.node_of(eight) == node
    await devices.taint(f"{node}-none", node, 5, effect="None")
    preview = await devices.report_on(f"{node}-none")
    assert (preview["status"], preview["reason"]) == ("False", "NoEffect")
    assert "1 published device" in preview["message"]
    await devices.delete_pod(eight)
    assert await devices.node_of(await devices.ask_for(8, on=node, name="again")) == node
