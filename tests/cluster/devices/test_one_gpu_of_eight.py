"""One sick GPU of eight, with everything real but the hardware: a kernel line on an agent, the tainter's rule, the
scheduler, and the clear that ends it."""

import asyncio
from pathlib import Path

import pytest
from tests.agent.kernel_log_only import kernel_log_only
from tests.cluster.agent.test_agent_publishing import AgentProcess
from tests.cluster.devices.device_bed import DeviceBed
from tests.cluster.devices.device_objects import DRIVER, GPUS, device_name, pci_address
from tests.cluster.tainter import test_end_to_end as end_to_end
from tests.cluster.tainter.test_end_to_end import HEALTHS, Cluster, Tainters, until

from muster_cli.__main__ import main
from muster_sandbox.controlplane.cluster import ControlPlane

pytestmark = pytest.mark.needs_modern(36)

cluster, tainters = end_to_end.cluster, end_to_end.tainters  # fixtures

POLICY = """
rules:
  - {name: hardware, match: {class: [reset, reboot, replace]}, action: taint, holdDown: 0s}
devices: {quarantine: rules}
"""
SICK = 3
XID = f"[%.6f] NVRM: Xid (PCI:{pci_address(SICK).removesuffix('.0')}): 119, pid=1234, name=python, Timeout\n"


async def test_seven_healthy_gpus_of_a_node_stay_in_use(
    devices: DeviceBed, tainters: Tainters, cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    sick, healthy = devices.nodes
    await tainters.start("--policy", str(policy))
    await until(lambda: cluster.api.get(f"{HEALTHS}/{sick}"), "the tainter has made the NodeHealth")
    config = kernel_log_only(tmp_path)
    kubeconfig = control_plane.kubeconfig_for("muster-agent", "muster")
    agent = AgentProcess(tmp_path, sick, kubeconfig, "--config", str(config), "--pod-uid", "pod-1").start()
    try:
        agent.write(XID % 10_000.0)
        [rule] = await until(devices.all_rules, "a rule keeps pods off the device")
        assert rule["spec"]["deviceSelector"] == {"driver": DRIVER, "pool": sick, "device": device_name(SICK)}
        assert rule["spec"]["taint"]["effect"] == "NoSchedule"
        assert await cluster.taints(sick) == []

        eight = await devices.ask_in_vain(8, on=sick)
        seven = await devices.ask_for(7, on=sick)
        assert await devices.node_of(seven) == sick
        assert device_name(SICK) not in await devices.devices_of(seven)
        assert await devices.node_of(await devices.ask_for(8)) == healthy

        await devices.delete_pod(seven)
        assert not await devices.is_bound(eight)
        words = ["clear", sick, "--kubeconfig", str(control_plane.kubeconfig)]
        assert await asyncio.to_thread(main, words) == 0
        assert await devices.node_of(eight) == sick
        assert len(await devices.devices_of(eight)) == GPUS
        assert await devices.all_rules() == []
    finally:
        agent.close()
