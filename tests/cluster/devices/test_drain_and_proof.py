"""A quarantined GPU is proved well while its node is in use, and only the pod that holds it is drained."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.agent.recorded_gpu_agent import SECOND, FleetAgent
from tests.cluster.devices import stand_in
from tests.cluster.devices.device_bed import DeviceBed
from tests.cluster.devices.device_objects import GPUS, device_name, pci_address
from tests.cluster.devices.test_device_quarantine import publish, rules, until_alone, until_rules
from tests.cluster.tainter import test_end_to_end as end_to_end
from tests.cluster.tainter.test_end_to_end import HEALTHS, Cluster, Tainters, finding, until
from tests.tainter.devices.device_world import address, device, gpu

from muster_kube.api.client import KubeClient
from muster_sandbox.controlplane.cluster import ControlPlane

cluster, tainters, device_api = end_to_end.cluster, end_to_end.tainters, stand_in.device_api  # fixtures

PROOF = """
rules:
  - {name: hardware, match: {class: reset}, action: taint, closeOn: [proof], holdDown: 0s,
     proof: {checks: [gpumem], passes: 1}}
devices: {quarantine: rules}
"""
BY_PROOF = """
rules:
  - {name: hardware, match: {class: [reset, reboot, replace]}, action: taint, holdDown: 0s, closeOn: [proof],
     proof: {checks: [pciebw], passes: 1, retry: 1s}}
devices: {quarantine: rules}
testing: {atOnce: 100}
"""
XID = "[10000.000000] NVRM: Xid (PCI:0000:23:00): 119, pid=1234, name=python, Timeout\n"
DRAIN = """
rules: [{name: hardware, match: {class: reset}, action: taint}]
devices: {quarantine: rules}
pools: [{name: all, selector: {}, drain: {when: now}}]
"""


async def test_a_pass_for_one_gpu_of_a_busy_node_removes_its_rule(
    tainters: Tainters, fleet: Any, cluster: Cluster, device_api: KubeClient, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(PROOF)
    await tainters.start("--policy", str(policy))
    [name] = await fleet.create(1, prefix="gpuproof")
    await publish(device_api, name)
    bad = finding("RowRemapFailure", component=gpu(1)) | {"class": "reset"}
    check = {"name": "remapped", "verdict": "FAIL", "findings": [bad]}
    agent = {"podUID": "pod-1", "version": "1"}
    status = {"verdict": "FAIL", "bootID": "boot-1", "checks": [check], "agent": agent}

    async def written(**more: Any) -> bool:
        body = {"status": status | {"observedAt": "2026-01-01T00:00:01.000Z"} | more}
        await cluster.api.patch(f"{HEALTHS}/{name}/status", body)
        return True

    await until(written, "the NodeHealth takes a status")
    await until_rules(device_api, name, 1)

    async def asked() -> list[dict[str, Any]]:
        health = await cluster.api.get(f"{HEALTHS}/{name}")
        return [each for each in health.get("spec", {}).get("requests", []) if "device" in each["params"]]

    [request] = await until(asked, "a proof for the GPU alone is requested")
    assert request["checks"] == ["remapped", "gpumem"]
    assert (request["params"]["device"], request["params"]["sees"]) == (gpu(1), gpu(1))
    answer = {"id": request["id"], "verdict": "PASS", "runs": 1, "passes": 1, "finished": "2126-01-01T00:00:00Z"}
    well = {"name": "remapped", "verdict": "PASS", "findings": []}
    await written(verdict="PASS", checks=[well], answers=[answer])
    await until_rules(device_api, name, 0)
    assert not await cluster.taints(name)


async def is_closed_by_proof(cluster: Cluster, node: str) -> bool:
    record = json.loads((await cluster.node(node))["metadata"]["annotations"].get("muster.dev/faults", "{}"))
    return [(each["check"], each["how"]) for each in record.get("closed", [])] == [("dmesg", "proof")]


async def test_a_kernel_line_on_a_real_agent_keeps_out_one_gpu_until_its_proof_in_a_new_boot(
    tainters: Tainters,
    fleet: Any,
    cluster: Cluster,
    control_plane: ControlPlane,
    device_api: KubeClient,
    tmp_path: Path,
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(BY_PROOF)
    replica = await tainters.start("--policy", str(policy))
    [name] = await fleet.create(1, prefix="gpuboot")
    await until(lambda: cluster.api.get(f"{HEALTHS}/{name}"), "its NodeHealth")
    await publish(device_api, name, devices=[device(number) for number in range(GPUS)])
    kubeconfig = control_plane.kubeconfig_for("muster-agent", "muster")
    addresses = [address(number) for number in range(GPUS)]
    agent = FleetAgent(tmp_path, name, kubeconfig, "127.0.0.1", SECOND, addresses=addresses)
    try:
        agent.start()
        agent.write(XID)
        [rule] = await until_rules(device_api, name, 1)
        assert rule["metadata"]["annotations"]["muster.dev/component"] == gpu(1)
        assert "muster_tainter_healthy_devices_lost 0.0" in await until_alone(replica)
        agent.reboot()
        await until_rules(device_api, name, 0)
        assert await is_closed_by_proof(cluster, name)
        assert not await cluster.taints(name)
    finally:
        agent.close()


@pytest.mark.needs_modern(36)
async def test_only_the_pod_that_holds_the_device_is_evicted(
    devices: DeviceBed, tainters: Tainters, cluster: Cluster, tmp_path: Path
) -> None:
    node = devices.nodes[0]
    first, second = await devices.ask_for(1, on=node, name="first"), await devices.ask_for(1, on=node, name="second")
    for pod in (first, second):
        assert await devices.node_of(pod) == node
    [held] = await devices.devices_of(first)
    index = next(number for number in range(GPUS) if device_name(number) == held)
    policy = tmp_path / "policy.yaml"
    policy.write_text(DRAIN)
    await tainters.start("--policy", str(policy))
    await cluster.report(node, finding("Xid95", component=f"gpu/{pci_address(index)}") | {"class": "reset"})

    async def evicted(pod: str) -> bool:
        found = [each for each in (await devices.api.get(devices.pods))["items"] if each["metadata"]["name"] == pod]
        return not found or bool(found[0]["metadata"].get("deletionTimestamp"))

    await until(lambda: evicted(first), "the pod with the sick GPU is evicted")
    assert not await evicted(second)
    assert not await cluster.taints(node)
    assert len(await rules(devices.api, node)) == 1
