"""`muster pause`, `resume` and `release` as people type them, with a tainter that runs and without one."""

import asyncio
import json
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.cluster.tainter import test_end_to_end as end_to_end
from tests.cluster.tainter.test_end_to_end import FAULTY, HEALTHS, TAINT, Cluster, finding, until
from tests.part_processes import run_muster

from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_kube.api.errors import NotFound
from muster_tainter.pause import Pause

cluster, tainters = end_to_end.cluster, end_to_end.tainters  # fixtures

MAPS = "/api/v1/namespaces/muster/configmaps"
FOREIGN = {"key": "example.com/theirs", "value": "x", "effect": "NoSchedule"}
LEASES = "/apis/coordination.k8s.io/v1/namespaces/muster/leases"


@dataclass
class Said:
    code: int
    out: str
    err: str


@dataclass
class Person:
    kubeconfig: Path

    async def types(self, *words: str, namespace: str | None = "muster") -> Said:
        place = (*(("--namespace", namespace) if namespace else ()), "--kubeconfig", str(self.kubeconfig))
        environ = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
        done = await asyncio.to_thread(run_muster, [*words, *place], environ, 240.0)
        return Said(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def person(kubeconfig: Path) -> Person:
    return Person(kubeconfig)


@pytest.fixture
async def resumed(api: KubeClient) -> Any:
    """Whatever a test does, nothing is paused for the next one."""
    yield
    with suppress(NotFound):
        await api.delete(f"{MAPS}/muster-pause")


async def add_taint(api: KubeClient, node: str, *taints: dict[str, str]) -> None:
    await api.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": list(taints)}})


async def test_pause_says_who_and_why_and_resume_how_long(person: Person, api: KubeClient, resumed: None) -> None:
    first = await person.types("pause", "--reason", "switch maintenance")
    assert first.code == 0, first
    data = (await api.get(f"{MAPS}/muster-pause"))["data"]
    assert (data["reason"], data["by"]) == ("switch maintenance", load_config(person.kubeconfig).user)
    again = await person.types("pause", "--reason", "another")
    assert again.code == 0
    for fact in (data["by"], data["at"], data["reason"]):
        assert fact in again.out
    assert (await api.get(f"{MAPS}/muster-pause"))["data"] == data
    ended = await person.types("resume")
    assert (ended.code, data["by"] in ended.out) == (0, True), ended
    none = await person.types("resume")
    assert (none.code, data["by"] in none.out) == (0, False), none


async def test_the_tainters_account_hears_of_a_pause_and_of_its_end(
    control_plane: Any, api: KubeClient, person: Person, resumed: None
) -> None:
    config = load_config(control_plane.kubeconfig_for("muster-tainter", "muster"))
    async with KubeClient(config) as client:
        heard: list[str] = []
        registry = CollectorRegistry()
        pause = Pause(client, "muster", on_change=lambda: heard.append(pause.reason), registry=registry)
        assert pause.reason, "until it is known"
        task = asyncio.create_task(pause.run())
        try:

            async def now(reason: str) -> bool:
                return reason in pause.reason if reason else pause.reason == ""

            await until(lambda: now(""), "it has looked, and nothing is there")
            await person.types("pause", "--reason", "disk swap")
            await until(lambda: now("disk swap"), "it has heard of the pause")
            assert registry.get_sample_value("muster_tainter_paused") == 1.0
            await api.create(MAPS, {"metadata": {"name": "another"}, "data": {}})  # nobody's pause
            await person.types("resume")
            await until(lambda: now(""), "it has heard of its end")
            assert registry.get_sample_value("muster_tainter_paused") == 0.0
            assert ["disk swap" in each for each in heard] == [False, True, False]
            assert pause.not_ready == ""
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await api.delete(f"{MAPS}/another")


async def test_third_hole_what_a_person_released_is_not_tainted_again_by_a_reset(
    tainters: Any,
    fleet: Any,
    cluster: Cluster,
    person: Person,
    resumed: None,
) -> None:
    """NVSentinel re-cordons what was just released when its breaker is reset: it replays what had piled up."""
    replica = await tainters.start()
    names = await fleet.create(6, prefix="reset")
    for name in names:
        await cluster.report(name, finding(occurrence=3))
    for name in names:
        await cluster.until_faulty(name)
    assert (await person.types("pause")).code == 0
    said = await person.types("release", "--all", "--yes", "--json")
    told = json.loads(said.out)
    assert (said.code, told["released"], told["failed"]) == (0, 6, 0), said
    for name in names:
        await cluster.until_free(name)
    assert (await person.types("resume")).code == 0
    await replica.stop(signal.SIGKILL)  # and the next leader knows nothing but what the cluster holds
    second = await tainters.start()
    await cluster.report(names[0], finding(occurrence=3), finding("Xid95", 4, message="one thing more"))
    await cluster.until_faulty(names[0])  # what fires anew taints, so the others would have been by now
    assert [await cluster.faulty(name) for name in names[1:]] == [False] * 5
    assert not second.logged(names[1], TAINT)
    memory = json.loads((await cluster.node(names[1]))["metadata"]["annotations"]["muster.dev/faults"])
    assert [(closed["how"], "open" in memory) for closed in memory["closed"]] == [("person", False)]
    assert (await person.types("release", names[0], "--yes")).code == 0
    await cluster.until_free(names[0])


async def test_without_a_tainter_everything_of_ours_comes_off_and_nothing_of_others(
    tainters: Any,
    fleet: Any,
    cluster: Cluster,
    api: KubeClient,
    person: Person,
) -> None:
    replica = await tainters.start()
    [bad, lost, sound] = await fleet.create(3, prefix="byhand")
    await cluster.report(bad, finding(occurrence=2))
    await cluster.report(sound)
    await cluster.until_faulty(bad)
    await cluster.settled(sound, "pass")
    await until(lambda: cluster.condition(bad), "the condition")
    await replica.stop()
    await add_taint(api, bad, FAULTY, FOREIGN)
    await add_taint(api, lost, {"key": "muster.dev/startup", "effect": "NoSchedule"}, FAULTY)
    asked = await person.types("release", "--all")
    assert (asked.code, "--yes" in asked.err) == (64, True), asked
    said = await person.types("release", "--all", "--yes")
    assert said.code == 0, said
    assert [word in said.out for word in (bad, lost, "muster.dev/startup:NoSchedule")] == [True] * 3
    assert await cluster.taints(bad) == [FOREIGN]
    for name in (bad, lost, sound):
        node = await cluster.node(name)
        kept = [key for key in {**node["metadata"]["labels"], **node["metadata"].get("annotations", {})}
                if key.startswith("muster.dev/")]  # fmt: skip
        assert (kept, await cluster.condition(name)) == ([], None)
    assert await cluster.taints(lost) == []
    again = json.loads((await person.types("release", "--all", "--yes", "--json")).out)
    assert again["released"] == 0
    await tainters.start()
    await cluster.settled(sound, "pass")
    await cluster.report(bad, finding(occurrence=2), finding("Xid13", 3, verdict="WARN"))
    await cluster.settled(bad, "fail")  # it was decided about, and what was closed stays closed
    assert not await cluster.faulty(bad)
    assert not await cluster.faulty(lost)
    await add_taint(api, bad)


async def test_a_holder_that_is_dead_is_not_waited_for(
    tainters: Any,
    fleet: Any,
    cluster: Cluster,
    api: KubeClient,
    person: Person,
) -> None:
    replica = await tainters.start()
    [name] = await fleet.create(1, prefix="dead")
    await cluster.report(name, finding())
    await cluster.until_faulty(name)
    await replica.stop(signal.SIGKILL)
    assert (await api.get(f"{LEASES}/muster-tainter"))["spec"]["holderIdentity"]
    said = await person.types("release", name, "--yes")
    assert (said.code, await cluster.taints(name)) == (0, []), said
    health = await api.get(f"{HEALTHS}/{name}")
    assert [(entry["check"], entry["occurrence"]) for entry in health["spec"]["clear"]] == [("dmesg", 1)]


async def test_the_tainter_is_found_by_its_lease_and_explain_shows_pause_policy_and_chain(
    tainters: Any, fleet: Any, cluster: Cluster, api: KubeClient, person: Person, resumed: None, tmp_path: Path
) -> None:
    await tainters.start()
    [name] = await fleet.create(1, prefix="why")
    await cluster.report(name, finding())
    await cluster.until_faulty(name)
    paused = await person.types("pause", "--reason", "look first", namespace=None)
    assert paused.code == 0, paused
    assert (await api.get(f"{MAPS}/muster-pause"))["data"]["reason"] == "look first"
    said = await person.types("explain", name, namespace=None)
    banner, first, *_ = said.out.splitlines()
    assert (said.code, banner.startswith("PAUSED by ")) == (2, True), said
    assert first.startswith(f"{name} TAINTED  for ")
    for fact in ("reboot", "dmesg gpu/0000:3b:00.0 Xid79"):
        assert fact in first
    assert "built-in" in said.out, "whose rules these are"
    text = "rules: [{name: mine, match: {}, action: taint}]"
    await api.create(MAPS, {"metadata": {"name": "muster-policy"}, "data": {"policy.yaml": text}})
    try:
        document = json.loads((await person.types("explain", name, "--json", namespace=None)).out)
    finally:
        await api.delete(f"{MAPS}/muster-policy")
    [chain] = document["chains"]
    rule = dict(chain["links"])["rule"]
    assert (document["state"], rule.startswith("mine "), "hardware" in rule) == ("TAINTED", True, True)
    (tmp_path / "p.yaml").write_text("rules: [{name: x, action: no}]")
    refused = await person.types("explain", name, "--policy", str(tmp_path / "p.yaml"))
    assert (refused.code, "rules[0].action" in refused.err) == (64, True)
    assert (await person.types("release", name, "--yes", namespace=None)).code == 0
    await cluster.until_free(name)


async def test_a_node_that_is_none_is_said(person: Person) -> None:
    said = await person.types("release", "nowhere", "--yes")
    assert (said.code, "nowhere" in said.err) == (3, True), said
