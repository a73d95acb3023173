"""One sick GPU of eight, with everything real but the hardware: a kernel line on an agent, the tainter's rule, the
scheduler, and the proof in a new boot that ends it."""

from pathlib import Path

import pytest
from tests.cluster.agent.recorded_gpu_agent import SECOND, FleetAgent
from tests.cluster.devices.device_bed import DeviceBed
from tests.cluster.devices.device_objects import DRIVER, GPUS, device_name, pci_address
from tests.cluster.devices.test_drain_and_proof import BY_PROOF, is_closed_by_proof
from tests.cluster.tainter import test_end_to_end as end_to_end
from tests.cluster.tainter.test_end_to_end import HEALTHS, Cluster, Tainters, until

from muster_sandbox.controlplane.cluster import ControlPlane

pytestmark = pytest.mark.needs_modern(36)

cluster, tainters = end_to_end.cluster, end_to_end.tainters  # fixtures

SICK = 3
XID = f"[10000.000000] NVRM: Xid (PCI:{pci_address(SICK).removesuffix('.0')}): 119, pid=1234, name=python, Timeout\n"


async def test_seven_healthy_gpus_of_a_node_stay_in_use(
    devices: DeviceBed, tainters: Tainters, cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(BY_PROOF)
    sick, healthy = devices.nodes
    replica = await tainters.start("--policy", str(policy))
    await until(lambda: cluster.api.get(f"{HEALTHS}/{sick}"), "the tainter has made the NodeHealth")
    kubeconfig = control_plane.kubeconfig_for("muster-agent", "muster")
    addresses = [pci_address(index) for index in range(GPUS)]
    agent = FleetAgent(tmp_path, sick, kubeconfig, "127.0.0.1", SECOND, addresses=addresses)
    try:
        agent.start()
        agent.write(XID)
        [rule] = await until(devices.all_rules, "a rule keeps pods off the device")
        assert rule["spec"]["deviceSelector"] == {"driver": DRIVER, "pool": sick, "device": device_name(SICK)}
        assert rule["spec"]["taint"]["effect"] == "NoSchedule"
        assert await cluster.taints(sick) == []
        assert "muster_tainter_healthy_devices_lost 0.0" in (await replica.get("/metrics")).text

        eight = await devices.ask_in_vain(8, on=sick)
        seven = await devices.ask_for(7, on=sick)
        assert await devices.node_of(seven) == sick
        assert device_name(SICK) not in await devices.devices_of(seven)
        assert await devices.node_of(await devices.ask_for(8)) == healthy

        await devices.delete_pod(seven)
        assert not await devices.is_bound(eight)
        assert len(await devices.all_rules()) == 1
        agent.reboot()
        assert await devices.node_of(eight) == sick
        assert len(await devices.devices_of(eight)) == GPUS
        assert await devices.all_rules() == []
        assert await is_closed_by_proof(cluster, sick)
    finally:
        agent.close()
