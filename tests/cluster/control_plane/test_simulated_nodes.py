"""Simulated nodes under the real scheduler, and the stand-in for their kubelets."""

import asyncio
import json
import re
import time
from typing import Any

import pytest

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import AlreadyExists, NotFound
from muster_kube.api.list_decoder import ListPage
from muster_kube.api.objects import Node, Pod
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.controlplane.install import NAMESPACE
from muster_sandbox.simulation.agents import create_agent_pods, delete_agent_pods, pod_name
from muster_sandbox.simulation.kubelets import Kubelets
from muster_sandbox.simulation.nodes import NODES, NodeShape, SimulatedNodes
from muster_sandbox.simulation.pods import SCRIPT, SimulatedPod

TAINT = {"key": "muster.dev/faulty", "value": "true", "effect": "NoSchedule"}
MANY = 1_000  # `make bench` makes 15,000
MANY_LIMIT_S = 100.0  # takes about two; this guards against a hang
GUARD_S = 120.0  # the scheduler itself looks again every 60 s at what it could not place


def pod(name: str, *, script: dict[str, Any] | None = None, selector: dict[str, str] | None = None) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "annotations": {SCRIPT: json.dumps(script)} if script else {}},
        "spec": {
            "nodeSelector": selector or {},
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "main",
                    "image": "muster.invalid/none",
                    "resources": {"limits": {"nvidia.com/gpu": "1"}},
                }
            ],
        },
    }


async def bound_to(api: KubeClient, path: str) -> str:
    deadline = time.monotonic() + GUARD_S
    while time.monotonic() < deadline:
        found = await api.get(path, type=Pod)
        if found.spec.node_name:
            return found.spec.node_name
        await asyncio.sleep(0.05)
    raise TimeoutError(f"{path} is not bound after {GUARD_S:.0f} s")


async def unschedulable(api: KubeClient, path: str) -> str:
    """The scheduler's message once it has given up on the pod for now."""
    deadline = time.monotonic() + GUARD_S
    while time.monotonic() < deadline:
        found = await api.get(path, type=Pod)
        for condition in found.status.conditions:
            if condition.reason == "Unschedulable":
                return condition.message
        await asyncio.sleep(0.05)
    raise TimeoutError(path)


async def test_the_scheduler_binds_to_an_untainted_node_and_never_to_a_tainted_one(
    api: KubeClient, fleet: SimulatedNodes, namespace: str
) -> None:
    # only to these: the scheduler may not have heard yet that the nodes of the test before are gone
    here = {"bed": namespace}
    await fleet.create(1, prefix="free", shape=NodeShape(labels=here))
    await fleet.create(3, prefix="tainted", shape=NodeShape(labels=here, taints=[TAINT]))
    pods = f"/api/v1/namespaces/{namespace}/pods"
    names = [f"work-{number}" for number in range(8)]
    for name in names:
        await api.create(pods, pod(name, selector=here))
    assert {await bound_to(api, f"{pods}/{name}") for name in names} == {"free-0"}

    # the free node's accelerators are taken: the ninth waits rather than go to a tainted one
    await api.create(pods, pod("ninth", selector=here))
    # newer schedulers do not name the taint
    assert re.search(r"\b3 node\(s\) had [^,.]*\btaint", await unschedulable(api, f"{pods}/ninth"))
    await api.patch(f"{NODES}/tainted-2", {"spec": {"taints": None}})
    assert await bound_to(api, f"{pods}/ninth") == "tainted-2"


@pytest.mark.parametrize(("exit_code", "phase"), [(0, "Succeeded"), (3, "Failed")])
async def test_a_pod_runs_becomes_ready_and_ends_as_its_script_says(
    api: KubeClient, fleet: SimulatedNodes, namespace: str, exit_code: int, phase: str
) -> None:
    await fleet.create(1)
    path = f"/api/v1/namespaces/{namespace}/pods"
    await api.create(path, pod("job", script={"run_s": 3600, "exit_code": exit_code}))
    key = f"{namespace}/job"
    passed_s = 0.0
    async with Kubelets(api, clock=lambda: time.monotonic() + passed_s) as kubelets:
        await kubelets.wait_for(key, lambda each: each is not None and each.status.ready)
        running = await api.get(f"{path}/job")
        assert running["status"]["phase"] == "Running"
        assert running["status"]["podIP"].startswith("127.")
        assert {each["type"] for each in running["status"]["conditions"]} >= {"PodScheduled", "Initialized", "Ready"}
        passed_s = 3600.0
        kubelets.set_ready(key, None)  # has it looked at
        await kubelets.wait_for(key, lambda each: each is not None and each.status.phase == phase)
    ended = (await api.get(f"{path}/job"))["status"]
    assert ended["containerStatuses"][0]["state"]["terminated"]["exitCode"] == exit_code


async def test_a_test_ends_a_pod_and_says_whether_it_is_ready(
    api: KubeClient, fleet: SimulatedNodes, kubelets: Kubelets, namespace: str
) -> None:
    await fleet.create(1)
    path, key = f"/api/v1/namespaces/{namespace}/pods", f"{namespace}/service"
    await api.create(path, pod("service"))
    await kubelets.wait_for(key, lambda each: each is not None and each.status.ready)
    kubelets.set_ready(key, False)
    await kubelets.wait_for(key, lambda each: each is not None and not each.status.ready)
    kubelets.finish(key, exit_code=1)
    await kubelets.wait_for(key, lambda each: each is not None and each.status.phase == "Failed")


async def test_a_deleted_pod_goes_although_no_kubelet_runs_it(
    api: KubeClient, fleet: SimulatedNodes, kubelets: Kubelets, namespace: str
) -> None:
    await fleet.create(1)
    path, key = f"/api/v1/namespaces/{namespace}/pods", f"{namespace}/leaving"
    await api.create(path, pod("leaving"))
    await kubelets.wait_for(key, lambda each: each is not None and each.status.ready)
    await api.delete(f"{path}/leaving")
    await kubelets.wait_for(key, lambda each: each is None)
    with pytest.raises(NotFound):
        await api.get(f"{path}/leaving")


async def test_a_pod_with_a_bad_script_stays_pending_and_the_log_says_why(
    api: KubeClient, fleet: SimulatedNodes, kubelets: Kubelets, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    await fleet.create(1)
    path, key = f"/api/v1/namespaces/{namespace}/pods", f"{namespace}/odd"
    await api.create(path, pod("odd", script={"run_s": "soon"}))
    await kubelets.wait_for(key, lambda _: "$.run_s" in caplog.text)
    assert kubelets.pods[key].status.phase == "Pending"


async def test_agent_pods_follow_their_probe(
    api: KubeClient, fleet: SimulatedNodes, control_plane: ControlPlane
) -> None:
    names = await fleet.create(3)
    answers: dict[str, bool] = dict.fromkeys(names, True)

    def probe(each: SimulatedPod) -> bool:
        return answers[each.spec.node_name]

    async with Kubelets(api, probe=probe) as kubelets:
        try:
            uids = await create_agent_pods(api, names)
            assert sorted(uids) == names
            keys = {name: f"{NAMESPACE}/{pod_name(name)}" for name in names}
            for key in keys.values():
                await kubelets.wait_for(key, lambda each: each is not None and each.status.ready)
            answers["node-1"] = False
            await kubelets.wait_for(keys["node-1"], lambda each: each is not None and not each.status.ready)
            assert kubelets.pods[keys["node-0"]].status.ready
        finally:
            await delete_agent_pods(api, names)


async def test_a_probe_that_raises_does_not_pass_for_a_quiet_cluster(api: KubeClient, fleet: SimulatedNodes) -> None:
    names = await fleet.create(1)

    def probe(each: SimulatedPod) -> bool:
        raise ZeroDivisionError(each.key)

    kubelets = Kubelets(api, probe=probe)
    await kubelets.__aenter__()
    try:
        await create_agent_pods(api, names)
        with pytest.raises(ExceptionGroup):
            await kubelets.wait_for("never/there", lambda each: each is not None)
    finally:
        await delete_agent_pods(api, names)
        with pytest.raises(ExceptionGroup):
            await kubelets.__aexit__(None, None, None)


async def test_idle_kubelets_ask_nothing_and_write_nothing(
    api: KubeClient, fleet: SimulatedNodes, control_plane: ControlPlane
) -> None:
    names = await fleet.create(20)
    async with Kubelets(api) as kubelets:
        try:
            await create_agent_pods(api, names)
            for name in names:
                await kubelets.wait_for(
                    f"{NAMESPACE}/{pod_name(name)}", lambda each: each is not None and each.status.ready
                )
            start = control_plane.audit.mark()
            await asyncio.sleep(3)  # real time: the server's log is what is measured
            end = control_plane.audit.mark()
        finally:
            await delete_agent_pods(api, names)
    counted = control_plane.audit.count(start, end, keep=lambda request: request.user_agent == "muster-test")
    assert not counted


async def test_a_node_of_somebody_else_is_not_taken_for_ones_own(api: KubeClient, fleet: SimulatedNodes) -> None:
    await fleet.create(1, prefix="taken")
    other = SimulatedNodes(api)
    with pytest.raises(AlreadyExists):
        await other.create(1, prefix="taken")
    assert other.names == []


async def test_a_thousand_nodes_are_made_in_seconds(
    api: KubeClient, fleet: SimulatedNodes, record_property: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    start = time.monotonic()
    names = await fleet.create(MANY, prefix="many")
    took_s = time.monotonic() - start
    record_property("nodes_per_s", MANY / took_s)
    with capsys.disabled():
        print(f"\n{MANY} nodes in {took_s:.1f} s: {MANY / took_s:.0f} a second")
    assert took_s < MANY_LIMIT_S
    page: ListPage[Node] = await api.list_page(NODES, Node)
    assert {each.metadata.name for each in page.items} >= set(names)
    assert all(not each.spec.taints for each in page.items)
