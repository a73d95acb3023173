"""The fleet's plan of heavy checks on a real API server: the tainter as processes of its own, agents that answer."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.tainter.test_end_to_end import HEALTHS, Tainters, until

from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_kube.api.errors import ApiError
from muster_sandbox.simulation.nodes import NodeShape
from muster_tainter.faults.record.check_history import ANNOTATION

NODES = "/api/v1/nodes"
TESTING = "muster.dev/testing"
STARTUP = {"key": "muster.dev/startup", "effect": "NoSchedule"}


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


class Agents:
    """The agents of some nodes, with their account: they begin what is asked, and end it when they may.

    may_end: nodes whose agents end what they run; most: how many requests were open at once, over all that was seen
    """

    def __init__(self, api: KubeClient, names: list[str]) -> None:
        self._api = api
        self.names = names
        self.may_end: set[str] = set()
        self.most = 0
        self.open: set[str] = set()
        self.ended: list[tuple[str, str]] = []
        self.verdict = "PASS"

    async def report(self, name: str, **status: Any) -> None:
        """The whole status of a healthy node; ``status`` stands over it."""
        checks = [{"name": "dmesg", "verdict": "PASS"}]
        body = {"verdict": "PASS", "bootID": "boot-1", "agent": {"podUID": f"pod-of-{name}"}, "checks": checks,
                "observedAt": now(), **status}  # fmt: skip

        async def written() -> bool:
            await self._api.patch(f"{HEALTHS}/{name}/status", {"status": body})
            return True

        await until(written, f"the NodeHealth of {name} takes a status")

    async def run(self) -> None:
        while True:
            with suppress(ApiError):
                await self._look()
            await asyncio.sleep(0.05)

    async def _look(self) -> None:
        healths = [h for h in (await self._api.get(HEALTHS))["items"] if h["metadata"]["name"] in self.names]
        asked = {h["metadata"]["name"]: request for h in healths if (request := self._open_request(h)) is not None}
        self.open = set(asked)
        self.most = max(self.most, len(asked))
        for health in healths:
            name = health["metadata"]["name"]
            if name in asked:
                await self._serve(health, asked[name])

    @staticmethod
    def _open_request(health: dict[str, Any]) -> dict[str, Any] | None:
        answered = {a["id"] for a in health.get("status", {}).get("answers", []) if a.get("finished")}
        for request in health.get("spec", {}).get("requests", []):
            if request["id"].startswith("plan-") and request["id"] not in answered:
                return dict(request)
        return None

    async def _serve(self, health: dict[str, Any], request: dict[str, Any]) -> None:
        name, [check] = health["metadata"]["name"], request["checks"]
        status = health.get("status", {})
        others = [a for a in status.get("answers", []) if a["id"] != request["id"]]
        answer = {"id": request["id"], "verdict": "UNKNOWN"}
        due = status.get("due", [])
        if name in self.may_end:
            answer |= {"verdict": self.verdict, "runs": 1, "finished": now()}
            due = [each for each in due if each != check]
        elif len(others) < len(status.get("answers", [])):
            return  # has begun
        await self._api.patch(f"{HEALTHS}/{name}/status", {"status": {"answers": [*others, answer][-16:], "due": due}})
        if "finished" in answer:
            self.ended.append((name, check))


@pytest.fixture
async def tainters(control_plane: Any, tmp_path: Path) -> AsyncIterator[Tainters]:
    made = Tainters(control_plane.kubeconfig_for("muster-tainter", "muster"), tmp_path)
    yield made
    for replica in made.replicas:
        await replica.stop()


@pytest.fixture
async def agent_api(control_plane: Any) -> AsyncIterator[KubeClient]:
    config = load_config(control_plane.kubeconfig_for("muster-agent", "muster"))
    async with KubeClient(config, user_agent="agents", timeout_s=30.0) as client:
        yield client


@pytest.fixture
async def serving() -> AsyncIterator[Any]:
    tasks: list[asyncio.Task[None]] = []

    def start(agents: Agents) -> Agents:
        tasks.append(asyncio.create_task(agents.run()))
        return agents

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def policy_file(folder: Path, testing: str, pools: str = "[]") -> Path:
    file = folder / "policy.yaml"
    file.write_text(f"rules: []\ntesting: {testing}\npools: {pools}\n")
    return file


async def label(api: KubeClient, name: str) -> str | None:
    found = (await api.get(f"{NODES}/{name}"))["metadata"]["labels"].get(TESTING)
    return None if found is None else str(found)


async def plan_requests(api: KubeClient, name: str) -> list[str]:
    health = await api.get(f"{HEALTHS}/{name}")
    return [r["id"] for r in health.get("spec", {}).get("requests", []) if r["id"].startswith("plan-")]


async def test_eight_nodes_two_at_a_time_over_a_leader_s_death(
    tainters: Tainters, fleet: Any, api: KubeClient, agent_api: KubeClient, serving: Any, tmp_path: Path
) -> None:
    file = policy_file(tmp_path, "{atOnce: 2}")
    first = await tainters.start("--policy", str(file))
    second = await tainters.start("--policy", str(file), wait=False)
    names = await fleet.create(8, prefix="heavy")
    agents = Agents(agent_api, names)
    # a person's own request, on a node that is to be tested, too: not under way any more, but not deleted either
    theirs = {"id": "ann-1", "checks": ["dcgm"], "params": {"dcgm.level": "2"}, "by": "ann", "force": True}
    await until(lambda: api.get(f"{HEALTHS}/{names[0]}"), "the NodeHealth is made")
    body = {"apiVersion": "muster.dev/v1alpha1", "kind": "NodeHealth", "metadata": {"name": names[0]},
            "spec": {"requests": [theirs]}}  # fmt: skip
    await api.apply(f"{HEALTHS}/{names[0]}", body, field_manager="ann")
    answered = {"id": "ann-1", "verdict": "PASS", "runs": 1, "passes": 1, "finished": now()}
    for name in names:
        await agents.report(name, idleSince=now(), due=["pciebw"], answers=[answered] if name == names[0] else [])
    serving(agents)

    async def full() -> bool:
        return len(agents.open) == 2

    await until(full, "two are asked")
    waiting = sorted(agents.open)

    async def labelled() -> bool:
        return [await label(api, name) for name in waiting] == ["pciebw", "pciebw"]

    await until(labelled, "both are labelled")
    await first.stop(signal.SIGKILL)
    await until(second.leads, "the other replica leads")

    async def planned() -> bool:
        text = (await second.get("/metrics")).text
        return all(f'muster_tainter_tests_{what}{{check="pciebw"}} {number}.0' in text
                   for what, number in (("running", 2), ("waiting", 6)))  # fmt: skip

    await until(planned, "it has made its plan")
    assert sorted(agents.open) == waiting
    agents.may_end.update(names)

    async def all_tested() -> bool:
        return {name for name, _ in agents.ended} == set(names)

    await until(all_tested, "every node has had its turn")

    async def at_rest() -> bool:
        return not any([await plan_requests(api, name) or await label(api, name) for name in names])

    await until(at_rest, "requests and labels are gone")
    assert agents.most == 2
    assert len(agents.ended) == 8  # each once
    health = await api.get(f"{HEALTHS}/{names[0]}")
    assert health["spec"]["requests"] == [theirs]
    assert TESTING not in health["metadata"].get("labels", {})
    assert '"pciebw":{"at":' in health["metadata"]["annotations"][ANNOTATION]
    text = (await second.get("/metrics")).text
    assert 'muster_tainter_tests_answered_total{check="pciebw",verdict="PASS"}' in text
    assert "muster_tainter_tests_cap 2.0" in text


async def test_a_new_node_has_its_first_job_only_after_its_pool_s_checks(
    tainters: Tainters, fleet: Any, api: KubeClient, agent_api: KubeClient, serving: Any, tmp_path: Path
) -> None:
    pools = "[{name: new, selector: {matchLabels: {size: big}}, testing: {preFlight: [pciebw, gpumem]}}]"
    replica = await tainters.start("--policy", str(policy_file(tmp_path, "{atOnce: 5}", pools)))
    [held] = await fleet.create(1, prefix="held", shape=NodeShape(taints=[STARTUP], labels={"size": "big"}))
    [plain] = await fleet.create(1, prefix="plain", shape=NodeShape(taints=[STARTUP]))
    agents = serving(Agents(agent_api, [held, plain]))
    for name in (held, plain):
        await agents.report(name, idleSince=now())

    async def keys(name: str) -> list[str]:
        return [taint["key"] for taint in (await api.get(f"{NODES}/{name}"))["spec"].get("taints", [])]

    async def free(name: str) -> bool:
        return STARTUP["key"] not in await keys(name)

    await until(lambda: free(plain), "a node without a pool goes by its first full pass")

    async def asked() -> bool:
        return agents.open == {held}

    await until(asked, "it is asked for the first check")
    assert not await free(held)
    agents.may_end.add(held)
    await until(lambda: free(held), "it is free")
    assert {check for _, check in agents.ended} == {"pciebw", "gpumem"}
    await replica.until_logged(held, "muster.dev/startup:NoSchedule")

    async def at_rest() -> bool:
        return not await plan_requests(api, held) and await label(api, held) is None

    await until(at_rest, "nothing is left of it")


async def test_requests_go_also_where_somebody_else_s_manager_owns_them(
    tainters: Tainters, fleet: Any, api: KubeClient, agent_api: KubeClient, serving: Any, tmp_path: Path
) -> None:
    # Kubernetes 1.20 gives what is applied below an empty spec to whoever created that, as well
    [name] = await fleet.create(1, prefix="owned-spec")
    made = {"apiVersion": "muster.dev/v1alpha1", "kind": "NodeHealth", "metadata": {"name": name}, "spec": {}}
    await api.create(HEALTHS, made)
    theirs = {"id": "ann-1", "checks": ["dcgm"], "by": "ann", "expires": "2026-01-01T00:00:00Z"}
    agents = Agents(agent_api, [name])
    await agents.report(name, idleSince=now(), due=["pciebw"])
    await tainters.start("--policy", str(policy_file(tmp_path, "{atOnce: 1}")))
    serving(agents)

    async def asked() -> bool:
        return agents.open == {name}

    await until(asked, "it is asked")
    body = made | {"spec": {"requests": [theirs]}}
    await api.apply(f"{HEALTHS}/{name}", body, field_manager="ann")
    agents.may_end.add(name)

    async def gone() -> bool:
        return not await plan_requests(api, name) and await label(api, name) is None

    await until(gone, "ours is gone")
    assert (await api.get(f"{HEALTHS}/{name}"))["spec"]["requests"] == [theirs]


async def test_a_job_s_end_and_a_pool_that_is_named_while_running(
    tainters: Tainters, fleet: Any, api: KubeClient, agent_api: KubeClient, serving: Any, tmp_path: Path
) -> None:
    file = policy_file(tmp_path, "{atOnce: 5}")
    replica = await tainters.start("--policy", str(file))
    after, other = await fleet.create(1, prefix="after", shape=NodeShape(labels={"team": "ml"})) + await fleet.create(
        1, prefix="other"
    )
    agents = Agents(agent_api, [after, other])
    agents.may_end.update((after, other))
    serving(agents)
    for name in (after, other):
        await agents.report(name, idleSince=None)  # as agents say empty
    policy_file(
        tmp_path, "{atOnce: 5}", "[{name: ml, selector: {matchLabels: {team: ml}}, testing: {postFlight: pciebw}}]"
    )

    async def in_force() -> bool:
        return 'muster_tainter_policy_reloads_total{result="good"} 1.0' in (await replica.get("/metrics")).text

    await until(in_force, "the policy is in force")
    for name in (after, other):
        await agents.report(name, idleSince=now())

    async def tested() -> bool:
        return (after, "pciebw") in agents.ended

    await until(tested, "the node of the pool is tested, though nothing is due")
    assert {name for name, _ in agents.ended} == {after}


async def test_a_dry_run_asks_for_nothing(
    tainters: Tainters, fleet: Any, api: KubeClient, agent_api: KubeClient, tmp_path: Path
) -> None:
    [name] = await fleet.create(1, prefix="dry-heavy")
    await api.create(HEALTHS, {"apiVersion": "muster.dev/v1alpha1", "kind": "NodeHealth", "metadata": {"name": name}})
    await Agents(agent_api, [name]).report(name, idleSince=now(), due=["pciebw"])
    replica = await tainters.start("--dry-run", "--policy", str(policy_file(tmp_path, "{atOnce: 1}")))

    async def told() -> bool:
        return replica.logged(f"{name} pciebw") > 0

    await until(told, "it says what it would do")
    assert await plan_requests(api, name) == []


async def test_which_nodes_a_job_runs_on_and_which_have_a_label(
    tainters: Tainters, fleet: Any, api: KubeClient, agent_api: KubeClient, namespace: str, tmp_path: Path
) -> None:
    replica = await tainters.start()
    big = await fleet.create(2, prefix="big", shape=NodeShape(labels={"size": "huge"}))
    [small] = await fleet.create(1, prefix="small")
    pods = f"/api/v1/namespaces/{namespace}/pods"
    for pod, node, job in (("a", big[0], "train"), ("b", small, "train"), ("c", big[1], "eval"), ("d", "", "train")):
        spec: dict[str, Any] = {"containers": [{"name": "c", "image": "x"}], "schedulingGates": []}
        spec = {k: v for k, v in spec.items() if v} | (
            {"nodeName": node} if node else {"nodeSelector": {"no": "where"}}
        )
        await api.create(pods, {"metadata": {"name": pod, "labels": {"job": job}}, "spec": spec})
    await api.patch(f"{pods}/b/status", {"status": {"phase": "Succeeded"}})

    async def names(query: str) -> list[str]:
        answer = await replica.get(f"/api/nodes?{query}")
        assert answer.status_code == 200, answer.text
        return sorted(row["node"] for row in answer.json())

    async def known() -> bool:
        return {*big, small} <= set(await names(""))

    await until(known, "the tainter knows the nodes")
    assert await names("nodelabel=size=huge") == sorted(big)
    assert await names(f"job={namespace}:job=train") == [big[0]]  # not the finished one, nor the one without a place
    assert await names(f"job={namespace}:job=eval&nodelabel=size=huge,testbed.muster.dev/simulated=true") == [big[1]]
    assert await names("nodelabel=size=none") == []
    refused = await replica.get("/api/nodes?nodelabel=size")
    assert refused.status_code == 400
    assert all(fact in refused.json()["message"] for fact in ("nodelabel", "'size'", "key=value"))
    [row] = [row for row in (await replica.get("/api/nodes")).json() if row["node"] == small]
    assert (row["testing"], row["idleSince"], row["due"]) == ("", "", [])
