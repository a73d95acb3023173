"""What drivers and kubelets say of devices, on a real API server: in `muster explain` and `muster status`, and as
findings."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.cluster.devices.device_bed import DeviceBed
from tests.cluster.devices.device_objects import DRIVER, GPUS, SLICES, device_name, device_slice, pci_address
from tests.polling import pause_s
from tests.tainter.fake_fleet import FakeFleet

from muster_cli.__main__ import main
from muster_cli.cluster.node_devices import FleetDevices, read_node_devices
from muster_kube.api.objects import Metadata, Node
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_tainter.devices.device_states import driver_taints
from muster_tainter.fleet.replica import Replica
from muster_tainter.policy.file import parse_policy
from muster_tainter.sources.device_health.feed import DeviceHealthFeed
from muster_tainter.sources.source_status import SourceMetrics

pytestmark = pytest.mark.needs_modern(36)

GUARD_S = 120.0
SICK = 3


async def taint_by_driver(bed: DeviceBed, node: str, index: int) -> str:
    """As the driver does. Returns the taint as Muster writes it."""
    found = device_slice(node)
    devices = found["spec"]["devices"]
    devices[index]["taints"] = [{"key": f"{DRIVER}/xid", "value": "79", "effect": "NoSchedule"}]
    await bed.api.patch(f"{SLICES}/{found['metadata']['name']}", {"spec": {"devices": devices}})
    return f"{pci_address(index)} {DRIVER}/xid=79:NoSchedule"


async def typed(capsys: pytest.CaptureFixture[str], kubeconfig: Path, *words: str) -> Any:
    """The JSON that the command prints."""
    capsys.readouterr()
    await asyncio.to_thread(main, [*words, "-o", "json", "--kubeconfig", str(kubeconfig)])
    return json.loads(capsys.readouterr().out)


async def test_explain_and_status_show_the_taint_that_a_driver_has_set(
    devices: DeviceBed, control_plane: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    node, other = devices.nodes
    taint = await taint_by_driver(devices, node, SICK)
    kubeconfig = control_plane.kubeconfig

    explained = await typed(capsys, kubeconfig, "explain", node)
    marks = [(each["device"], each["mark"]) for each in explained["devices"]]
    assert marks == [(pci_address(index), "D" if index == SICK else ".") for index in range(GPUS)]
    (shown,) = [each for state in explained["devices"] for each in state["taints"]]
    assert (shown["text"], shown["keepsOut"]) == (taint.partition(" ")[2], True)
    assert shown["since"], "the API server adds the time"

    assert (await typed(capsys, kubeconfig, "status", node))["driverTaints"] == [taint]
    rows = {row["node"]: row["driverTaints"] for row in (await typed(capsys, kubeconfig, "status"))["nodes"]}
    assert (rows[node], rows[other]) == ([taint], [])

    of_node, missing = await read_node_devices(devices.api, node)
    assert (driver_taints(of_node), missing) == ((taint,), "")
    fleet = FleetDevices()
    await fleet.read(devices.api, set(devices.nodes))
    assert fleet.missing == ""
    assert driver_taints(fleet.by_node[node]) == (taint,)
    left = await devices.api.get(f"{SLICES}/{device_slice(node)['metadata']['name']}")
    assert left["spec"]["devices"][SICK]["taints"], "Muster removes none"


async def test_a_device_that_the_status_of_a_pod_reports_as_unhealthy_is_a_finding_until_it_is_healthy(
    devices: DeviceBed,
) -> None:
    node = devices.nodes[0]
    pod = await devices.ask_for(GPUS, on=node)
    assert await devices.node_of(pod) == node
    of_node, _ = await read_node_devices(devices.api, node)
    fleet = FakeFleet(
        current=parse_policy("rules: []\nsources: {deviceHealth: {}}"),
        nodes={node: Node(metadata=Metadata(name=node))},
    )
    metrics = SourceMetrics(CollectorRegistry())
    feed = DeviceHealthFeed(devices.api, fleet, Replica(may_write=lambda: True), metrics, lambda _name: of_node)
    watching = asyncio.create_task(feed.run())
    try:
        for word, verdicts in (("Unhealthy", ["WARN"]), ("Healthy", [])):
            await report_health(devices, pod, word)
            begun = time.monotonic()
            async with asyncio.timeout(GUARD_S):
                while [each.verdict for each in fleet.external_findings.of(node)[0].values()] != verdicts:
                    assert not watching.done()
                    await asyncio.sleep(pause_s(begun))
            found, over = fleet.external_findings.of(node)
            keys = {("devicehealth", f"gpu/{pci_address(SICK)}", "DeviceUnhealthy")}
            assert set(found if verdicts else over) == keys
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def report_health(bed: DeviceBed, pod: str, word: str) -> None:
    """As the kubelet does for a device without a CDI ID, and one that works."""
    resources = [
        {"resourceID": f"{DRIVER}/{bed.nodes[0]}/{device_name(index)}", "health": health}
        for index, health in ((SICK, word), (0, "Healthy"))
    ]
    container = {
        "name": "main",
        "ready": True,
        "restartCount": 0,
        "image": "muster.invalid/none",
        "imageID": "none",
        "state": {"running": {}},
        "allocatedResourcesStatus": [{"name": "claim:gpus", "resources": resources}],
    }
    status = {"phase": "Running", "containerStatuses": [container]}
    written = await bed.api.patch(f"{bed.pods}/{pod}/status", {"status": status}, kind="strategic")
    kept = written["status"]["containerStatuses"][0].get("allocatedResourcesStatus")
    assert kept, "the API server keeps the field, so its feature gate is on"
