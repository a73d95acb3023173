"""The ConfigMap of quarantined IPUs, written by the tainter's own account on a real API server."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.tainter import test_end_to_end as end_to_end
from tests.cluster.tainter.test_end_to_end import Cluster, Tainters, finding, until

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import NotFound

cluster, tainters = end_to_end.cluster, end_to_end.tainters  # fixtures

MAP = "/api/v1/namespaces/muster/configmaps/muster-ipu-quarantine"
POLICY = """
rules:
  - {name: ipu-quarantine, match: {component: "ipu/*", class: quarantine}, action: quarantine, closeOn: [boot, proof]}
  - {name: hardware, match: {class: [reset, reboot]}, action: taint}
quarantine: {ipus: 2}
"""


@pytest.fixture
async def no_map(api: KubeClient) -> AsyncIterator[None]:
    yield
    with suppress(NotFound):
        await api.delete(MAP)


@pytest.fixture
def policy(tmp_path: Path) -> str:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    return str(file)


def bad_ipu(machine: str, index: int = 0, occurrence: int = 1) -> dict[str, Any]:
    return finding(
        "IpuErrorState",
        occurrence,
        **{"component": f"ipu/{machine}/{index}", "class": "quarantine", "message": "IPU error state: bad"},
    )


async def data(api: KubeClient) -> dict[str, str]:
    try:
        return dict((await api.get(MAP)).get("data", {}))
    except NotFound:
        return {}


async def until_keys(api: KubeClient, *keys: str) -> dict[str, str]:
    async def there() -> bool:
        return sorted(await data(api)) == sorted(keys)

    await until(there, f"the ConfigMap has {keys}")
    return await data(api)


async def test_an_ipu_comes_and_goes_and_its_host_is_left_alone(
    tainters: Tainters, fleet: Any, cluster: Cluster, api: KubeClient, no_map: None, policy: str
) -> None:
    await tainters.start("--policy", policy)
    [name] = await fleet.create(1, prefix="ipuhost")
    await cluster.report(name, bad_ipu("10.1.5.7", 2))
    found = await until_keys(api, "10.1.5.7_2")
    entry = json.loads(found["10.1.5.7_2"])
    assert (entry["ipu"], entry["machine"], entry["index"]) == ("ipu/10.1.5.7/2", "10.1.5.7", 2)
    assert [each["node"] for each in entry["faults"]] == [name]
    assert await cluster.taints(name) == []
    await cluster.report(name, boot="boot-2")
    await until_keys(api)


async def test_what_others_write_is_put_right_and_it_is_written_on_change_only(
    tainters: Tainters, fleet: Any, cluster: Cluster, api: KubeClient, no_map: None, policy: str
) -> None:
    await tainters.start("--policy", policy)
    [name] = await fleet.create(1, prefix="ipuedit")
    await cluster.report(name, bad_ipu("10.1.5.7"))
    await until_keys(api, "10.1.5.7_0")
    await api.patch(MAP, {"data": {"10.1.5.7_0": None, "theirs": "x"}})
    await until_keys(api, "10.1.5.7_0")
    await api.delete(MAP)
    await until_keys(api, "10.1.5.7_0")
    version = (await api.get(MAP))["metadata"]["resourceVersion"]
    [other] = await fleet.create(1, prefix="ipuelse")
    await cluster.report(other, finding())  # looked at after it, and nothing to write
    await cluster.until_faulty(other)
    assert (await api.get(MAP))["metadata"]["resourceVersion"] == version
    await cluster.report(other, boot="boot-2")
    await cluster.until_free(other)


async def test_the_budget_holds_and_what_has_no_room_is_told_and_follows(
    tainters: Tainters, fleet: Any, cluster: Cluster, api: KubeClient, no_map: None, policy: str
) -> None:
    await tainters.start("--policy", policy)
    first, second, third = await fleet.create(3, prefix="ipubudget")
    await cluster.report(first, bad_ipu("m1"))
    await until_keys(api, "m1_0")
    await asyncio.sleep(1.1)  # times on a Node are whole seconds: who was first is to be seen there
    await cluster.report(second, bad_ipu("m2"))
    await until_keys(api, "m1_0", "m2_0")
    await asyncio.sleep(1.1)
    await cluster.report(third, bad_ipu("m0"))

    async def told() -> bool:
        event = (await cluster.events(third)).get("QuarantineWithheld")
        return event is not None and "ipu/m0/0: budget: 2 IPUs" in event["message"]

    await until(told, "the Event of what has no room")
    assert sorted(await data(api)) == ["m1_0", "m2_0"]
    await cluster.report(first, boot="boot-2")
    await until_keys(api, "m0_0", "m2_0")


async def test_another_leader_comes_to_the_same_list(
    tainters: Tainters, fleet: Any, cluster: Cluster, api: KubeClient, no_map: None, policy: str
) -> None:
    replica = await tainters.start("--policy", policy)
    [name] = await fleet.create(1, prefix="ipulead")
    await cluster.report(name, bad_ipu("10.1.5.7"))
    await until_keys(api, "10.1.5.7_0")
    await replica.stop()
    await api.delete(MAP)
    await tainters.start("--policy", policy)
    await until_keys(api, "10.1.5.7_0")
