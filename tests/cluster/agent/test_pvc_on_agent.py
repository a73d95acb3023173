"""The check pvc asked of an agent, tried by the tainter: real processes, tokens, rights, volume binder and scheduler.

The pods' lives are played by the simulated kubelets; the tokens are such as a kubelet mounts, bound to the agent's pod.
"""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.cluster.agent.test_agent_publishing import AgentProcess
from tests.cluster.agent.test_pvc import volume  # noqa: F401 - a fixture
from tests.cluster.tainter.test_end_to_end import Replica, Tainters, tainters, until  # noqa: F401 - one is a fixture
from tests.plain_http import plain_http

from muster_kube.api.client import KubeClient
from muster_kube.volume_trial_objects import LABEL
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.controlplane.install import AGENT, NAMESPACE, TAINTER
from muster_sandbox.simulation.agents import PODS, create_agent_pods, delete_agent_pods, pod_name
from muster_sandbox.simulation.kubelets import Kubelets
from muster_sandbox.simulation.nodes import SimulatedNodes
from muster_sandbox.simulation.pods import PodScript, SimulatedPod
from muster_tainter.http.volume_trials import AUDIENCE

CLAIMS = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"
_numbers = itertools.count()


def script(pod: SimulatedPod) -> PodScript:
    """Trials end at once, agents run."""
    return PodScript(run_s=0.1) if LABEL in pod.metadata.labels else PodScript()


class Bench:
    """Two nodes with an agent's pod each, and a tainter."""

    def __init__(self, plane: ControlPlane, api: KubeClient, folder: Path, replica: Replica) -> None:
        self.plane, self.api, self.folder, self.replica = plane, api, folder, replica
        self.one = self.other = ""
        self.uids: dict[str, str] = {}
        self.agents: list[AgentProcess] = []

    def token(self, node: str = "", *, account: str = AGENT, audience: str = AUDIENCE) -> str:
        """Bound to the agent's pod on ``node`` as the kubelet has it made; to none without a node."""
        spec: dict[str, Any] = {"expirationSeconds": 3600, "audiences": [audience] if audience else []}
        if node:
            pod = {"kind": "Pod", "apiVersion": "v1", "name": pod_name(node), "uid": self.uids[node]}
            spec["boundObjectRef"] = pod
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
        return str(self.plane.admin.create(path, body)["status"]["token"])

    def agent(self, node: str, token: str, url: str | None = None) -> AgentProcess:
        place = self.folder / f"agent-{len(self.agents)}"
        place.mkdir()
        (place / "token").write_text(token)
        settings = {"tainter_url": url or self.replica.url, "tainter_token": str(place / "token")}
        (place / "agent.yaml").write_text(json.dumps(settings))
        kubeconfig = self.plane.kubeconfig_for(AGENT, NAMESPACE)
        agent = AgentProcess(place, node, kubeconfig, "--config", str(place / "agent.yaml"))
        self.agents.append(agent)  # to be ended also when it does not start
        return agent.start(loads_itself=True)  # its memory is measured

    async def ask(self, agent: AgentProcess, storage_class: str) -> dict[str, Any]:
        path = f"/status?check=pvc&host={agent.node}&storage_class={storage_class}&format=json"
        code, text = await asyncio.to_thread(agent.get, path)
        assert code == 200, text
        found: dict[str, Any] = json.loads(text)["nodes"][0]["results"][0]
        return found

    async def post(self, token: str, **changed: Any) -> httpx2.Response:
        body = {"node": self.one, "storageClass": "none", "bindTimeoutSeconds": 1, "writeTimeoutSeconds": 1} | changed
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with plain_http(120) as http:
            return await http.post(f"{self.replica.url}/api/trials/pvc", json=body, headers=headers)

    async def left(self) -> list[str]:
        """Names of what trials have made and not deleted."""
        marked = {"labelSelector": LABEL}
        items = [item for path in (PODS, CLAIMS) for item in (await self.api.get(path, params=marked))["items"]]
        return [item["metadata"]["name"] for item in items]

    async def until_nothing_is_left(self) -> None:
        async def nothing() -> bool:
            return not await self.left()

        await until(nothing, "pods and claims are deleted")


@pytest.fixture
async def bench(
    control_plane: ControlPlane,
    api: KubeClient,
    fleet: SimulatedNodes,
    tainters: Tainters,  # noqa: F811 - the fixture
    tmp_path: Path,
) -> AsyncIterator[Bench]:
    made = Bench(control_plane, api, tmp_path, await tainters.start(wait=False))
    made.one, made.other = await fleet.create(2, prefix=f"lent{next(_numbers)}")
    made.uids = await create_agent_pods(api, [made.one, made.other])
    yield made
    for agent in made.agents:
        agent.close()
    await delete_agent_pods(api, [made.one, made.other])
    await made.until_nothing_is_left()


async def test_an_agent_has_a_volume_tried_on_its_node_without_any_right_to_it(
    bench: Bench,
    volume: str,  # noqa: F811 - the fixture
):
    agent = bench.agent(bench.one, bench.token(bench.one))
    await asyncio.to_thread(agent.get, f"/status?check=dmesg&host={agent.node}")
    before_mb = agent.rss_mb()
    since = bench.plane.audit.mark()
    async with Kubelets(bench.api, script=script):
        result = await bench.ask(agent, volume)
        await bench.until_nothing_is_left()
    assert (result["verdict"], result["findings"][0]["component"]) == ("PASS", f"storage/{volume}"), result
    assert {m["name"] for m in result["findings"][0]["measurements"]} == {"bound", "written"}
    asked = bench.plane.audit.requests(since)
    makers = {r.user for r in asked if r.resource in ("pods", "persistentvolumeclaims") and r.verb == "create"}
    assert makers == {f"system:serviceaccount:{NAMESPACE}:{TAINTER}"}
    await bench.replica.until_logged(bench.one, "written")
    assert agent.rss_mb() - before_mb < 2, f"it costs memory: {before_mb} MB before, {agent.rss_mb()} MB now"


async def test_a_token_of_another_nodes_pod_is_refused_which_says_nothing_of_the_storage(bench: Bench):
    agent = bench.agent(bench.one, bench.token(bench.other))
    result = await bench.ask(agent, "none")
    assert (result["verdict"], result["reason"]) == ("UNKNOWN", "ClaimRefused")
    assert bench.one in result["message"]
    assert AUDIENCE in result["message"]
    assert await bench.left() == []


async def test_a_tainter_that_is_away_is_unknown(bench: Bench):
    agent = bench.agent(bench.one, bench.token(bench.one))
    await bench.replica.stop()
    result = await bench.ask(agent, "none")
    assert (result["verdict"], result["reason"]) == ("UNKNOWN", "ClaimRefused")
    assert bench.replica.url in result["message"]


async def test_only_the_nodes_agent_and_who_may_make_pods_get_a_trial(bench: Bench):
    good = bench.token(bench.one)
    answers = {
        "no token": (await bench.post("")).status_code,
        "garbage": (await bench.post("x.y.z")).status_code,
        "of another audience": (await bench.post(bench.token(bench.one, audience="vipu"))).status_code,
        "of no pod": (await bench.post(bench.token())).status_code,
        "for the API server": (await bench.post(bench.token(bench.one, audience=""))).status_code,
        "for another node": (await bench.post(good, node=bench.other)).status_code,
        "of another account": (await bench.post(bench.token(account="default"))).status_code,
    }
    assert answers == {
        "no token": 401,
        "garbage": 401,
        "of another audience": 401,
        "of no pod": 403,
        "for the API server": 403,
        "for another node": 403,
        "of another account": 403,
    }
    assert await bench.left() == []
    for token in (good, bench.token(account=TAINTER, audience="")):  # the latter's account may make pods there
        answer = await bench.post(token)
        assert (answer.status_code, answer.json()["stage"]) == (200, "unbound"), answer.text


async def test_a_token_whose_pod_is_gone_is_nobodys(bench: Bench):
    token = bench.token(bench.one)
    await delete_agent_pods(bench.api, [bench.one])
    review = {"spec": {"token": token, "audiences": [AUDIENCE]}}

    async def unknown() -> bool:
        # the API server itself hears of the pod's end a moment later
        said = await bench.api.create("/apis/authentication.k8s.io/v1/tokenreviews", review)
        return not said["status"].get("authenticated")

    await until(unknown, "the API server knows that the pod is gone")
    assert (await bench.post(token)).status_code == 401


async def test_who_hangs_up_leaves_nothing_behind(bench: Bench):
    asking = asyncio.create_task(bench.post(bench.token(bench.one), bindTimeoutSeconds=600))

    async def both() -> bool:
        return len(await bench.left()) == 2

    await until(both, "claim and pod are there")
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    await bench.until_nothing_is_left()


async def test_a_tainter_that_is_stopped_deletes_what_it_has_made(bench: Bench):
    asking = asyncio.create_task(bench.post(bench.token(bench.one), bindTimeoutSeconds=600))
    await until(bench.left, "something is there")
    assert await bench.replica.stop() == 0
    code = 0
    with contextlib.suppress(httpx2.TransportError):
        code = (await asking).status_code
    # who deletes for too long is cut off, by uvicorn's own word
    assert code == 503 or bench.replica.logged("graceful shutdown exceeded"), code
    await bench.until_nothing_is_left()
