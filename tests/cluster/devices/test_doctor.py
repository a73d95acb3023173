"""`muster doctor` in a cluster whose driver publishes devices: whether Kubernetes follows rules about them."""

import asyncio
from collections.abc import Callable, Iterator

import pytest
from tests.cluster.commands.test_doctor import Said, doctor
from tests.cluster.devices.device_bed import DeviceBed
from tests.cluster.devices.device_objects import PCI_ADDRESS, SLICES, device_slice

from muster_cli.doctor.judges.devices import is_ignoring, parse_version
from muster_sandbox.controlplane.cluster import ControlPlane

pytestmark = pytest.mark.needs_modern(36)

PODS = "/api/v1/namespaces/kube-system/pods"
GATE = "--feature-gates=DRADeviceTaintRules=true"

StaticPod = Callable[..., str]


@pytest.fixture
def static_pod(control_plane: ControlPlane) -> Iterator[StaticPod]:
    """Makes a pod that looks like the scheduler of a kubeadm cluster, of the version of the API server."""
    admin = control_plane.admin
    admin.wait_until_exists("/api/v1/namespaces/kube-system/serviceaccounts/default")
    made: list[str] = []

    def make(node: str, *words: str) -> str:
        name = f"kube-scheduler-{node}"
        image = f"registry.invalid/kube-scheduler:{control_plane.server_version}"
        container = {"name": "kube-scheduler", "image": image, "command": ["kube-scheduler", *words]}
        metadata = {"name": name, "labels": {"component": "kube-scheduler", "tier": "control-plane"}}
        # a scheduler of its own, which does not exist: it stays unbound
        admin.create(PODS, {"metadata": metadata, "spec": {"schedulerName": "none", "containers": [container]}})
        made.append(name)
        return name

    yield make
    for name in made:
        admin.delete(f"{PODS}/{name}", grace_s=0)


async def test_it_tells_whether_kubernetes_follows_rules_about_devices(
    devices: DeviceBed, control_plane: ControlPlane, static_pod: StaticPod, capsys: pytest.CaptureFixture[str]
) -> None:
    async def look() -> Said:
        return await asyncio.to_thread(doctor, control_plane.kubeconfig, capsys)

    ignoring = is_ignoring(parse_version(control_plane.server_version))
    assert (await look()).verdicts("devices") == {"WARN" if ignoring else "PASS"}

    node, other = devices.nodes
    await devices.taint(f"{node}-1", node, 1)
    await devices.report_on(f"{node}-1")
    needs_gate = control_plane.minor == 36
    unseen = await look()
    assert unseen.verdicts("devices") == {"FAIL" if ignoring else "UNKNOWN" if needs_gate else "PASS"}

    static_pod("on", GATE)
    seen = await look()
    assert seen.verdicts("devices") == {"FAIL" if ignoring else "PASS"}
    if needs_gate:
        off = static_pod("off")
        assert (await look()).says("devices", "FAIL", off, "DRADeviceTaintRules")

    await devices.api.delete(f"{SLICES}/{device_slice(other)['metadata']['name']}")
    await devices.api.create(SLICES, device_slice(other, pci=False))
    assert not seen.says("devices", "WARN", PCI_ADDRESS)
    assert (await look()).says("devices", "WARN", PCI_ADDRESS, other)
