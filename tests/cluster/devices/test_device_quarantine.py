"""One GPU of a node is kept out of use by the tainter's own account on a real API server; the node stays free.

Where the server has no DeviceTaintRule, a stand-in of the same form takes its place (stand_in.py).
"""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.agent import test_agent_publishing as publishing
from tests.cluster.agent.test_agent_publishing import Bench
from tests.cluster.devices import stand_in
from tests.cluster.tainter import test_end_to_end as end_to_end
from tests.cluster.tainter.test_end_to_end import HEALTHS, Cluster, Replica, Tainters, finding, until
from tests.tainter.devices.device_world import gpu, resource_slice

from muster_cli.__main__ import main
from muster_cli.release.nodes import NodeRelease, find_targets
from muster_kube.api.client import KubeClient
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_tainter.devices.api_versions import find_api
from muster_tainter.policy.file import parse_policy

cluster, tainters, bench = end_to_end.cluster, end_to_end.tainters, publishing.bench  # fixtures
device_api = stand_in.device_api

POLICY = """
rules:
  - {name: hardware, match: {class: [reset, reboot, replace]}, action: taint, holdDown: 0s}
devices: {quarantine: rules}
"""
XID = "[%d.0] NVRM: Xid (PCI:0000:23:00): 95, pid=7, name=python, Uncontained\n"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    return file


def bad(number: int = 1, occurrence: int = 1, **fields: Any) -> dict[str, Any]:
    return finding("Xid95", occurrence, component=gpu(number)) | {"class": "reset"} | fields


async def publish(api: KubeClient, node: str, **fields: Any) -> None:
    """What the driver of the node publishes: four GPUs."""
    served = await find_api(api)
    body = resource_slice(node, **fields) | {"apiVersion": f"resource.k8s.io/{served.slice_version}"}
    del body["metadata"]["resourceVersion"]
    await api.create(served.slices, body | {"kind": "ResourceSlice"})


async def rules(api: KubeClient, node: str = "") -> list[dict[str, Any]]:
    found = (await api.get((await find_api(api)).rules))["items"]
    return [
        rule for rule in found if rule["metadata"].get("annotations", {}).get("muster.dev/node") == node or not node
    ]


async def until_rules(api: KubeClient, node: str, count: int) -> list[dict[str, Any]]:
    async def there() -> bool:
        return len(await rules(api, node)) == count

    await until(there, f"{node} has {count} rules")
    return await rules(api, node)


async def until_alone(replica: Replica) -> str:
    """Its metrics, once they count one device: its rule is written before the Node's PATCH is answered."""

    async def counted() -> str:
        page = (await replica.get("/metrics")).text
        return page if 'muster_tainter_devices_quarantined{state="alone"} 1.0' in page else ""

    return str(await until(counted, "one device is kept out alone"))


async def test_a_kernel_line_on_a_real_agent_keeps_out_one_gpu_until_a_person_clears_it(
    bench: Bench, tainters: Tainters, fleet: Any, cluster: Cluster, device_api: KubeClient, policy: Path
) -> None:
    replica = await tainters.start("--policy", str(policy))
    [name] = await fleet.create(1, prefix="gpuout")
    await until(lambda: cluster.api.get(f"{HEALTHS}/{name}"), "its NodeHealth")
    await publish(device_api, name)
    agent = bench.agent(name).start()
    agent.write(XID % 1)
    [rule] = await until_rules(device_api, name, 1)
    assert rule["spec"]["deviceSelector"] == {"driver": "gpu.nvidia.com", "pool": name, "device": "gpu-1"}
    taint = rule["spec"]["taint"]
    assert (taint["key"], taint["effect"]) == ("muster.dev/faulty", "NoSchedule")
    page = await until_alone(replica)
    assert "muster_tainter_healthy_devices_lost 0.0" in page
    assert not await cluster.taints(name)

    async def told() -> bool:
        return {"NodeFaultOpened", "DeviceQuarantined"} <= (await cluster.events(name)).keys()

    await until(told, "the Events")
    clear = [{"check": "dmesg", "component": gpu(1), "occurrence": 1, "by": "ada"}]
    await cluster.api.patch(f"{HEALTHS}/{name}", {"spec": {"clear": clear}})
    await until_rules(device_api, name, 0)
    assert not await cluster.taints(name)


async def test_a_rule_that_a_person_deletes_or_edits_counts_as_cleared(
    tainters: Tainters, fleet: Any, cluster: Cluster, device_api: KubeClient, policy: Path
) -> None:
    replica = await tainters.start("--policy", str(policy))
    for name in await fleet.create(2, prefix="gpuperson"):
        await publish(device_api, name)
        await cluster.report(name, bad())
        [rule] = await until_rules(device_api, name, 1)
        await until_alone(replica)  # a rule that goes before is created again
        path = f"{(await find_api(device_api)).rules}/{rule['metadata']['name']}"
        if name.endswith("0"):
            await device_api.delete(path)
        else:
            edit = {"spec": {"taint": {"effect": "None"}}}
            await device_api.patch(path, edit, params={"fieldManager": "kubectl-edit"})

        async def cleared(name: str = name) -> bool:
            annotations = (await cluster.node(name))["metadata"].get("annotations", {})  # written after the rule
            record = json.loads(annotations.get("muster.dev/faults", "{}"))
            return [each["how"] for each in record.get("closed", [])] == ["person"]

        await until(cleared, f"the fault of {name} counts as cleared")
        await until_rules(device_api, name, 0)
        assert not await cluster.taints(name)


@pytest.mark.parametrize(("resource", "left", "said"), [
    ("devicetaintrules", ["get", "list", "watch"], "cannot create a DeviceTaintRule"),
    ("devicetaintrules", [], "cannot read DeviceTaintRules"),
    ("resourceslices", [], "cannot read ResourceSlices"),
])  # fmt: skip
async def test_without_its_rights_the_node_is_tainted_and_an_event_says_so(
    tainters: Tainters,
    fleet: Any,
    cluster: Cluster,
    device_api: KubeClient,
    policy: Path,
    resource: str,
    left: list[str],
    said: str,
) -> None:
    role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/muster-tainter"
    full = (await device_api.get(role))["rules"]
    less = [each for each in full if resource not in each["resources"]]
    if left:
        less.append({"apiGroups": ["resource.k8s.io"], "resources": [resource], "verbs": left})
    await device_api.patch(role, {"rules": less})
    try:
        [name] = await fleet.create(1, prefix="gpuright")
        await publish(device_api, name)
        replica = await tainters.start("--policy", str(policy))  # it has read the slice, if it may, when it decides
        await cluster.report(name, bad())
        await cluster.until_faulty(name)
        assert not await rules(device_api, name)

        async def told() -> bool:
            event = (await cluster.events(name)).get("DeviceNotQuarantined")
            return event is not None and gpu(1) in event["message"] and said in event["message"]

        await until(told, "the Event says why")
        await replica.until_logged("WARNING" if not left else "ERROR", said)
    finally:
        await device_api.patch(role, {"rules": full})


async def test_a_fault_of_the_whole_node_comes_before_the_rule_goes(
    tainters: Tainters, fleet: Any, cluster: Cluster, device_api: KubeClient, policy: Path
) -> None:
    await tainters.start("--policy", str(policy))
    [name] = await fleet.create(1, prefix="gpunode")
    await publish(device_api, name)
    await cluster.report(name, bad())
    await until_rules(device_api, name, 1)
    await cluster.report(name, bad(), bad(occurrence=2, reason="Xid79", **{"class": "reboot"}))
    await until_rules(device_api, name, 0)
    assert await cluster.faulty(name)
    await cluster.report(name, bad(occurrence=3), boot="boot-2")  # only the first is there again
    await until_rules(device_api, name, 1)
    await cluster.until_free(name)


async def test_the_budget_holds_and_what_has_no_room_follows(
    tainters: Tainters, fleet: Any, cluster: Cluster, device_api: KubeClient, policy: Path
) -> None:
    policy.write_text(POLICY + "pools: [{name: all, selector: {}, budget: {devices: 1}}]\n")
    replica = await tainters.start("--policy", str(policy))
    first, second = await fleet.create(2, prefix="gpubudget")
    for name in (first, second):
        await publish(device_api, name)
    await cluster.report(first, bad())
    await until_rules(device_api, first, 1)
    await cluster.report(second, bad())

    async def told() -> bool:
        event = (await cluster.events(second)).get("TaintWithheld")
        return event is not None and "1 of 1 devices" in event["message"]

    await until(told, "the Event of what has no room")
    assert not await rules(device_api, second)
    assert not await cluster.taints(second)
    page = (await replica.get("/metrics")).text
    assert 'muster_tainter_devices_quarantined{state="withheld"} 1.0' in page
    await cluster.report(first, boot="boot-2")
    await until_rules(device_api, first, 0)
    await until_rules(device_api, second, 1)


async def test_a_person_can_release_a_node_while_no_tainter_runs(
    tainters: Tainters, fleet: Any, cluster: Cluster, device_api: KubeClient, policy: Path
) -> None:
    replica = await tainters.start("--policy", str(policy))
    released, other = await fleet.create(2, prefix="gpurelease")
    for name in (released, other):
        await publish(device_api, name)
        await cluster.report(name, bad())
        await until_rules(device_api, name, 1)
    await replica.stop()
    of = parse_policy(POLICY)
    results = await NodeRelease(device_api, "ada", of).by_hand(await find_targets(device_api, [released], of))
    assert [(each.name, each.done) for each in results] == [(released, True)]
    assert not await rules(device_api, released)
    assert await rules(device_api, other)


async def test_explain_shows_what_kubernetes_reports_on_the_rule_of_a_preview(
    tainters: Tainters,
    fleet: Any,
    cluster: Cluster,
    control_plane: ControlPlane,
    device_api: KubeClient,
    policy: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    policy.write_text(POLICY.replace("quarantine: rules", "quarantine: preview"))
    await tainters.start("--policy", str(policy))
    [name] = await fleet.create(1, prefix="gpupreview")
    await publish(device_api, name)
    await cluster.report(name, bad())
    [rule] = await until_rules(device_api, name, 1)
    assert rule["spec"]["taint"]["effect"] == "None"
    await cluster.until_faulty(name)
    if control_plane.minor < 36:  # nobody there reports on rules
        report = {"type": "EvictionInProgress", "status": "False", "message": "0 pods would be evicted in 0 namespaces"}
        path = f"{(await find_api(device_api)).rules}/{rule['metadata']['name']}"
        await device_api.patch(path, {"status": {"conditions": [report]}})

    async def shown() -> bool:
        words = ["explain", name, "-o", "json", "--kubeconfig", str(control_plane.kubeconfig)]
        await asyncio.to_thread(main, words)
        notes = json.loads(capsys.readouterr().out)["notes"]
        return any(gpu(1) in note and rule["metadata"]["name"] in note and "evicted" in note for note in notes)

    await until(shown, "explain shows the report")


async def test_a_policy_that_turns_it_off_taints_the_node_and_then_deletes_the_rule(
    tainters: Tainters, fleet: Any, cluster: Cluster, device_api: KubeClient, policy: Path
) -> None:
    replica = await tainters.start("--policy", str(policy))
    [name] = await fleet.create(1, prefix="gpuoff")
    await publish(device_api, name)
    await cluster.report(name, bad())
    await until_rules(device_api, name, 1)
    policy.write_text(POLICY.replace("quarantine: rules", "quarantine: off"))
    await until_rules(device_api, name, 0)
    assert await cluster.faulty(name)
    policy.write_text(POLICY)
    await until_rules(device_api, name, 1)
    await cluster.until_free(name)
    await replica.stop(signal.SIGKILL)
    policy.write_text(POLICY.replace("quarantine: rules", "quarantine: off"))
    await tainters.start("--policy", str(policy))  # finds what the other one left
    await until_rules(device_api, name, 0)
    assert await cluster.faulty(name)


async def test_leaders_that_are_killed_leave_no_rule_without_a_fault_and_no_fault_without_a_rule(
    tainters: Tainters, fleet: Any, cluster: Cluster, device_api: KubeClient, policy: Path
) -> None:
    names = await fleet.create(8, prefix="gpukill")
    for name in names:
        await publish(device_api, name)
    for round_ in range(3):
        replica = await tainters.start("--policy", str(policy))
        writing = asyncio.gather(*(cluster.report(name, bad(occurrence=round_ + 1)) for name in names[round_:]))
        healed = asyncio.gather(*(cluster.report(name, boot=f"again-{round_}") for name in names[:round_]))
        await asyncio.gather(writing, healed)
        await replica.stop(signal.SIGKILL)
    await tainters.start("--policy", str(policy))
    for name in names:
        await until_rules(device_api, name, int(name not in names[:2]))
        await cluster.until_free(name)  # a leader that is slow to read the slices taints it until the rule is there
        assert not await cluster.taints(name)
    assert len(await rules(device_api)) == len(names) - 2
