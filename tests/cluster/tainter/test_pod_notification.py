"""Pods on a node whose fault opens, and what made them, hear of it: a real API server, the tainter's own rights."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.tainter import test_end_to_end as end_to_end
from tests.cluster.tainter.test_end_to_end import TAINT, Cluster, finding, until

cluster, tainters = end_to_end.cluster, end_to_end.tainters  # fixtures

RULES = """
rules: [{name: hardware, match: {verdict: FAIL}, action: taint}]
pools: [{name: all, selector: {}, budget: {tainted: 0}}]
"""
OPEN = "rules: [{name: hardware, match: {verdict: FAIL}, action: taint}]\n"
GPU = {"limits": {"nvidia.com/gpu": "1"}}


def pod_spec(node: str, resources: dict[str, Any]) -> dict[str, Any]:
    return {
        "nodeName": node,
        "restartPolicy": "Never",
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "c", "image": "x", "resources": resources}],
    }


class Work:
    """What users run on nodes, in one namespace."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._api = cluster.api
        self._namespace = namespace

    def _path(self, plural: str, group: str = "/api/v1") -> str:
        return f"{group}/namespaces/{self._namespace}/{plural}"

    async def pod(self, name: str, node: str, resources: dict[str, Any], **metadata: Any) -> None:
        body = {"metadata": {"name": name, **metadata}, "spec": pod_spec(node, resources)}
        await self._api.create(self._path("pods"), body)

    async def job(self, name: str, node: str) -> str:
        """Its pod's name."""
        template = {"spec": pod_spec(node, GPU)}
        body = {"metadata": {"name": name}, "spec": {"template": template}}
        await self._api.create(self._path("jobs", "/apis/batch/v1"), body)
        return await self._pod_of("job-name", name)

    async def deployment(self, name: str, node: str) -> str:
        labels = {"run": name}
        template = {"metadata": {"labels": labels}, "spec": pod_spec(node, GPU) | {"restartPolicy": "Always"}}
        spec = {"selector": {"matchLabels": labels}, "template": template}
        await self._api.create(self._path("deployments", "/apis/apps/v1"), {"metadata": {"name": name}, "spec": spec})
        return await self._pod_of("run", name)

    async def own_itself(self, job: str) -> None:
        """As a tenant can with the right to write Jobs."""
        path = f"{self._path('jobs', '/apis/batch/v1')}/{job}"
        uid = (await self._api.get(path))["metadata"]["uid"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": uid, "controller": True}
        await self._api.patch(path, {"metadata": {"ownerReferences": [owner]}})

    async def stop(self) -> None:
        """Nothing makes pods any more."""
        for plural, group in (("jobs", "/apis/batch/v1"), ("deployments", "/apis/apps/v1")):
            await self._api.delete(self._path(plural, group), {"propagationPolicy": "Background"})

    async def _pod_of(self, label: str, value: str) -> str:
        async def there() -> str:
            found = await self._api.get(self._path("pods"), params={"labelSelector": f"{label}={value}"})
            return str(found["items"][0]["metadata"]["name"]) if found["items"] else ""

        return str(await until(there, f"a pod of {value}"))

    async def told(self) -> dict[str, dict[str, Any]]:
        """Events of ours by kind/name; two about one object are an error."""
        found: dict[str, dict[str, Any]] = {}
        for event in (await self._api.get(self._path("events")))["items"]:
            if event["reason"] == "NodeFaulty":
                about = f"{event['involvedObject']['kind']}/{event['involvedObject']['name']}"
                assert about not in found, event
                found[about] = event
        return found

    async def until_told(self, *about: str) -> dict[str, dict[str, Any]]:
        async def all_told() -> dict[str, dict[str, Any]]:
            told = await self.told()
            return told if set(about) <= told.keys() else {}

        made: dict[str, dict[str, Any]] = await until(all_told, f"Events on {', '.join(about)}")
        return made


@pytest.fixture
async def work(cluster: Cluster, namespace: str) -> AsyncIterator[Work]:
    made = Work(cluster, namespace)
    yield made
    await made.stop()


async def test_pods_with_accelerators_and_their_owners_hear_of_the_fault_once_whoever_leads(
    tainters: Any, fleet: Any, cluster: Any, work: Any, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(OPEN)
    first = await tainters.start("--policy", str(policy))
    good, bad = await fleet.create(2, prefix="tell")
    of_job, of_deployment = await work.job("train", bad), await work.deployment("serve", bad)
    await work.pod("alone", bad, GPU)
    await work.pod("web", bad, {})
    await work.pod("elsewhere", good, GPU)
    await cluster.report(bad, finding())
    expected = {f"Pod/{of_job}", f"Pod/{of_deployment}", "Pod/alone", "Job/train", "Deployment/serve"}
    told = await work.until_told(*expected)
    text = told["Pod/alone"]["message"]
    for fact in (bad, TAINT, "hardware", "dmesg gpu/", "Xid79: NVRM: Xid (PCI:0000:3b:00): 79"):
        assert fact in text
    assert of_job in told["Job/train"]["message"]
    assert await first.stop() == 0
    # as if the first had died before it came to this one
    await work.pod("late", bad, GPU)
    await tainters.start("--policy", str(policy))
    told = await work.until_told("Pod/late", *expected)
    assert told.keys() - expected - {"Pod/late"} == {f"ReplicaSet/{of_deployment.rpartition('-')[0]}"}


async def test_a_fault_that_the_budget_withholds_is_told_too(
    tainters: Any, fleet: Any, cluster: Any, work: Any, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(RULES)
    await tainters.start("--policy", str(policy))
    [bad] = await fleet.create(1, prefix="hold")
    await work.pod("alone", bad, GPU)
    await cluster.report(bad, finding())
    told = await work.until_told("Pod/alone")
    text = told["Pod/alone"]["message"]
    for fact in (bad, "hardware", "dmesg gpu/", "budget:"):
        assert fact in text
    assert TAINT not in text
    assert not await cluster.faulty(bad)


async def test_a_job_that_owns_itself_is_told_and_holds_up_no_other_taint(
    tainters: Any, fleet: Any, cluster: Any, work: Any, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(OPEN)
    await tainters.start("--policy", str(policy))
    bad, other = await fleet.create(2, prefix="loop")
    pod = await work.job("ring", bad)
    await work.own_itself("ring")
    await cluster.report(bad, finding())
    await work.until_told(f"Pod/{pod}", "Job/ring")
    await cluster.report(other, finding())
    await cluster.until_faulty(other)
