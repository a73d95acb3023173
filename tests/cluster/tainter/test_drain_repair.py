"""Drains and repairs by the tainter's own account on a real API server: its eviction handler, disruption controller and
Job controller are the real ones; only what would run in the pods is left out."""

import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.commands import test_release
from tests.cluster.tainter import test_end_to_end as end_to_end
from tests.cluster.tainter.test_end_to_end import Cluster, Tainters, finding, until

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import NotFound

cluster, tainters = end_to_end.cluster, end_to_end.tainters  # fixtures
person, resumed = test_release.person, test_release.resumed

JOBS = "/apis/batch/v1/namespaces/muster/jobs"
MAPS = "/api/v1/namespaces/muster/configmaps"
POOL = """
rules: [{name: hardware, match: {class: [reset, reboot]}, action: taint}]
pools:
  - name: test
    selector: {}
"""
REPAIR = """
    drain: {when: now}
    repair:
      atOnce: 1
      reset:
        attempts: 2
        wait: 1h
        job:
          template:
            spec:
              backoffLimit: 0
              template:
                spec:
                  nodeName: "${node}"
                  restartPolicy: Never
                  containers: [{name: reset, image: x, args: ["${device}"]}]
"""


@pytest.fixture
async def no_jobs(api: KubeClient) -> AsyncIterator[None]:
    yield
    for job in (await api.get(JOBS))["items"]:
        await api.delete(f"{JOBS}/{job['metadata']['name']}", {"propagationPolicy": "Background"})


def policy(folder: Path, text: str) -> str:
    file = folder / "policy.yaml"
    file.write_text(POOL + text)
    return str(file)


async def run_pod(api: KubeClient, namespace: str, name: str, node: str, **fields: Any) -> str:
    """A pod that is bound to the node already. fields: labels, resources, tolerations."""
    pods = f"/api/v1/namespaces/{namespace}/pods"
    container = {"name": "c", "image": "x", "resources": {"limits": fields.get("resources", {})}}
    metadata = {"name": name, "labels": fields.get("labels", {})}
    spec = {"nodeName": node, "containers": [container], "tolerations": fields.get("tolerations", [])}
    await api.create(pods, {"metadata": metadata, "spec": spec})
    return f"{pods}/{name}"


async def run_daemon(api: KubeClient, namespace: str, node: str) -> str:
    """The pod that a DaemonSet has there."""
    template = {
        "metadata": {"labels": {"app": "daemon"}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [{"name": "c", "image": "x"}],
        },
    }
    spec = {"selector": {"matchLabels": {"app": "daemon"}}, "template": template}
    sets = f"/apis/apps/v1/namespaces/{namespace}/daemonsets"
    await api.create(sets, {"metadata": {"name": "daemon"}, "spec": spec})
    pods = f"/api/v1/namespaces/{namespace}/pods"

    async def placed() -> str:
        items = (await api.get(pods, params={"labelSelector": "app=daemon"}))["items"]
        bound = [pod["metadata"]["name"] for pod in items if pod["spec"].get("nodeName") == node]
        return bound[0] if bound else ""

    return f"{pods}/{await until(placed, 'the DaemonSet has its pod there')}"


async def budgets_of(api: KubeClient, namespace: str) -> str:
    version = (await api.get("/apis/policy"))["preferredVersion"]["groupVersion"]  # policy/v1beta1 before 1.21
    return f"/apis/{version}/namespaces/{namespace}/poddisruptionbudgets"


async def gone(api: KubeClient, pod: str) -> bool:
    try:
        await api.get(pod)
    except NotFound:
        return True
    return False


async def until_gone(api: KubeClient, pod: str) -> None:
    await until(lambda: gone(api, pod), f"{pod} is gone")


async def jobs_of(api: KubeClient, node: str) -> list[dict[str, Any]]:
    items = (await api.get(JOBS))["items"]
    return [job for job in items if job["metadata"]["annotations"]["muster.dev/node"] == node]


async def memory(cluster: Cluster, node: str) -> dict[str, Any]:
    text = (await cluster.node(node))["metadata"]["annotations"]["muster.dev/faults"]
    return dict(json.loads(text))


RESET: dict[str, Any] = {"class": "reset"}


async def test_a_drain_evicts_all_but_daemons_and_waits_for_the_budget_of_others(
    tainters: Tainters, fleet: Any, cluster: Cluster, api: KubeClient, namespace: str, kubelets: Any, tmp_path: Path
) -> None:
    await tainters.start("--policy", policy(tmp_path, "    drain: {when: now}\n"))
    bad, good = await fleet.create(2, prefix="drain")
    daemons = await run_daemon(api, namespace, bad)
    web = await run_pod(api, namespace, "web", bad)
    guarded = await run_pod(api, namespace, "guarded", bad, labels={"app": "guarded"})
    spare = await run_pod(api, namespace, "spare", good, labels={"app": "guarded"})
    tolerant = await run_pod(api, namespace, "tolerant", bad, tolerations=[{"operator": "Exists"}])
    budgets = await budgets_of(api, namespace)
    spec = {"minAvailable": 2, "selector": {"matchLabels": {"app": "guarded"}}}
    await api.create(budgets, {"metadata": {"name": "guarded"}, "spec": spec})

    async def counted() -> bool:
        status = (await api.get(f"{budgets}/guarded")).get("status", {})
        return bool(status.get("currentHealthy") == 2 and status.get("disruptionsAllowed") == 0)

    await until(counted, "the budget has counted its pods")
    await cluster.report(bad, finding(**RESET))
    await cluster.until_faulty(bad)
    await until_gone(api, web)

    async def blocked() -> bool:
        event = (await cluster.events(bad)).get("DrainBlocked")
        return event is not None and "disruption budget" in event["message"]

    await until(blocked, "the Event that names the budget")
    assert not await gone(api, guarded)
    await api.patch(f"{budgets}/guarded", {"spec": {"minAvailable": 1}})
    await until_gone(api, guarded)

    async def drained() -> bool:
        return "NodeDrained" in await cluster.events(bad)

    await until(drained, "the Event of its end")
    assert [await gone(api, pod) for pod in (daemons, spare, tolerant)] == [False] * 3
    await cluster.report(bad, boot="boot-2")
    await cluster.until_free(bad)


async def test_completion_waits_for_the_job_and_then_repairs_once(
    tainters: Tainters, fleet: Any, cluster: Cluster, api: KubeClient, namespace: str, kubelets: Any, no_jobs: None,
    tmp_path: Path,
) -> None:  # fmt: skip
    text = REPAIR.replace("when: now", "when: completion")
    await tainters.start("--policy", policy(tmp_path, text))
    bad, second = await fleet.create(2, prefix="complete")
    train = await run_pod(api, namespace, "train", bad, resources={"nvidia.com/gpu": "8"})
    await cluster.report(bad, finding(**RESET))
    await cluster.until_faulty(bad)
    await cluster.report(second, finding(**RESET))  # nothing runs there: its repair shows that one might have begun

    async def under_repair() -> bool:
        return len(await jobs_of(api, second)) == 1

    await until(under_repair, "the node without pods is under repair")
    assert await jobs_of(api, bad) == []
    assert not await gone(api, train)
    [job] = await jobs_of(api, second)
    assert job["spec"]["template"]["spec"]["containers"][0]["args"] == ["0000:3b:00.0"]
    assert (await cluster.node(second))["metadata"]["labels"]["muster.dev/repair"] == "reset"
    kubelets.finish(f"{namespace}/train")
    over = {"component": "gpu/0000:3b:00.0", "reason": "Xid79", "occurrence": 1, "how": "driver", "at": "x"}
    await cluster.report(second, cleared=(over,))
    await cluster.until_free(second)

    async def repaired() -> bool:
        return (
            len(await jobs_of(api, bad)) == 1
            and "muster.dev/repair" not in ((await cluster.node(second))["metadata"]["labels"])
        )

    await until(repaired, "the other one's turn, its own pods gone")
    await cluster.report(bad, cleared=(over,))
    await cluster.until_free(bad)


async def test_a_failed_job_is_followed_by_another_and_then_the_node_is_given_up(
    tainters: Tainters, fleet: Any, cluster: Cluster, api: KubeClient, kubelets: Any, no_jobs: None, tmp_path: Path
) -> None:
    def fail(jobs: list[dict[str, Any]], but_for: int = 0) -> None:
        """End their pods with an error, upon which the Job controller calls the jobs failed."""
        if len(jobs) == but_for:
            return
        for job in jobs:
            for pod in kubelets.pods:
                if pod.startswith(f"muster/{job['metadata']['name']}-"):
                    kubelets.finish(pod, exit_code=1)

    await tainters.start("--policy", policy(tmp_path, REPAIR))
    [bad] = await fleet.create(1, prefix="giveup")
    await cluster.report(bad, finding(**RESET))
    for number in (1, 2):

        async def made(number: int = number) -> bool:
            fail(await jobs_of(api, bad), but_for=number)
            return len(await jobs_of(api, bad)) == number

        await until(made, f"attempt {number}")

    async def given_up() -> bool:
        fail(await jobs_of(api, bad))
        labels = (await cluster.node(bad))["metadata"]["labels"]
        return labels.get("muster.dev/repair") == "gave-up" and "RepairGaveUp" in await cluster.events(bad)

    await until(given_up, "the label and the Event that say so")
    assert await cluster.faulty(bad)
    assert (await memory(cluster, bad))["attempts"]["reset"]["n"] == 2
    await cluster.report(bad, boot="boot-2")
    await cluster.until_free(bad)

    async def untold() -> bool:
        return "muster.dev/repair" not in (await cluster.node(bad))["metadata"]["labels"]

    await until(untold, "the label goes with the faults")


async def test_a_leader_killed_in_a_repair_is_followed_by_one_that_begins_none_twice(
    tainters: Tainters, fleet: Any, cluster: Cluster, api: KubeClient, no_jobs: None, tmp_path: Path
) -> None:
    flags = ("--policy", policy(tmp_path, REPAIR))
    first = await tainters.start(*flags)
    names = await fleet.create(3, prefix="killed")
    for name in names:
        await cluster.report(name, finding(**RESET))
    for name in names:
        await cluster.until_faulty(name)

    async def begun() -> bool:
        return any([await jobs_of(api, name) for name in names])

    await until(begun, "one of them is under repair")
    await first.stop(signal.SIGKILL)
    second = await tainters.start(*flags)
    left = list(names)
    over = {"component": "gpu/0000:3b:00.0", "reason": "Xid79", "occurrence": 1, "how": "driver", "at": "x"}
    while left:

        async def next_one() -> Any:
            for name in left:
                if "muster.dev/repair" in (await cluster.node(name))["metadata"]["labels"] and await jobs_of(api, name):
                    return name
            return ""

        name = await until(next_one, f"one of {left} has its turn")
        labelled = [each for each in names if "muster.dev/repair" in (await cluster.node(each))["metadata"]["labels"]]
        assert labelled == [name], "one at a time"
        attempts = (await memory(cluster, name))["attempts"]["reset"]
        assert attempts["n"] == 1
        await cluster.report(name, cleared=(over,))
        await cluster.until_free(name)
        left.remove(name)
    for name in names:
        begun = [replica.logged("WARNING", name, "reset", "1 of 2") for replica in (first, second)]
        assert sum(begun) <= 1


async def test_nothing_is_drained_or_repaired_while_it_is_paused(
    tainters: Tainters, fleet: Any, cluster: Cluster, api: KubeClient, namespace: str, kubelets: Any, no_jobs: None,
    resumed: None, tmp_path: Path,
) -> None:  # fmt: skip
    replica = await tainters.start("--policy", policy(tmp_path, "    drain: {when: after, after: 1s}\n"))
    [bad] = await fleet.create(1, prefix="paused")
    guard = await run_pod(api, namespace, "guarded", bad, labels={"app": "guarded"})
    budgets = await budgets_of(api, namespace)
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}}
    await api.create(budgets, {"metadata": {"name": "guarded"}, "spec": spec})

    async def counted() -> bool:
        return bool((await api.get(f"{budgets}/guarded")).get("status", {}).get("currentHealthy") == 1)

    await until(counted, "the budget has counted its pod")
    await cluster.report(bad, finding(**RESET))

    async def blocked() -> bool:
        return "DrainBlocked" in await cluster.events(bad)

    await until(blocked, "the drain has begun, and waits for the budget")
    await api.create(MAPS, {"metadata": {"name": "muster-pause"}, "data": {"by": "ada"}})
    await until(lambda: replica_paused(replica), "the tainter has heard of it")
    await api.patch(f"{budgets}/guarded", {"spec": {"minAvailable": 0}})
    [other] = await fleet.create(1, prefix="pausedelse")  # something that happens after it
    await cluster.report(other)
    await cluster.settled(other, "pass")
    assert not await gone(api, guard)
    await api.delete(f"{MAPS}/muster-pause")
    await until_gone(api, guard)
    await cluster.report(bad, boot="boot-2")
    await cluster.until_free(bad)


async def replica_paused(replica: Any) -> bool:
    return "muster_tainter_paused 1.0" in (await replica.get("/metrics")).text
