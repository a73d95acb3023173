"""The own-node rule on a real API server: tokens bound to agents' pods, the tainter's webhook, and its absence.

Before Kubernetes 1.30 tokens do not name the node: the tainter looks the pod up.
"""

import base64
import itertools
import signal
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx2
import pytest
from tests.cluster.tainter.test_end_to_end import Replica, Tainters, tainters, until  # noqa: F401 - one is a fixture
from tests.idle_connections import idle_connections, unverified

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.credentials import StaticToken
from muster_kube.api.errors import ApiError, Forbidden, NotFound
from muster_kube.webhook.certificate_secret import validating_webhook_path
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.controlplane.install import AGENT, NAMESPACE
from muster_sandbox.simulation.agents import create_agent_pods, delete_agent_pods, pod_name
from muster_sandbox.simulation.nodes import SimulatedNodes
from muster_tainter.agents.webhook import PATH

HEALTHS = "/apis/muster.dev/v1alpha1/nodehealths"
NAME = "muster-own-node"
CONFIGURATION = validating_webhook_path(NAME)
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
TOKENS = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{AGENT}/token"
TRIED = {"dryRun": "All"}  # admission is asked, nothing is written
_numbers = itertools.count()


def configuration(url: str, failure_policy: str) -> dict[str, Any]:
    """As the chart makes it, but for the address, as there is no Service network here, and the time limit: a starved
    tainter that missed the chart's two seconds would let everything pass."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": NAME},
        "webhooks": [
            {
                "name": "own-node.muster.dev",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "timeoutSeconds": 30,
                "failurePolicy": failure_policy,
                "clientConfig": {"url": url + PATH},
                "rules": [
                    {
                        "apiGroups": ["muster.dev"],
                        "apiVersions": ["*"],
                        "resources": ["nodehealths/status"],
                        "operations": ["UPDATE"],
                        "scope": "Cluster",
                    }
                ],
            }
        ],
    }


@dataclass
class Guard:
    """Two nodes with an agent's pod each, and a tainter that serves the rule."""

    plane: ControlPlane
    api: KubeClient
    tainters: Tainters
    clients: AsyncExitStack
    one: str
    other: str
    uids: dict[str, str]
    replica: Replica | None = None

    async def start(self) -> tuple[Replica, str]:
        """A tainter and the address of its webhook."""
        replica = await self.tainters.start("--webhook-port", "0", wait=False)
        return replica, f"https://{await replica.next_address()}"

    async def change(self, **fields: Any) -> None:
        """Of the one webhook."""
        webhook = {"name": "own-node.muster.dev", **fields}
        await self.api.patch(CONFIGURATION, {"webhooks": [webhook]}, kind="strategic")

    async def trusted(self) -> bool:
        found = await self.api.get(CONFIGURATION)
        return bool(found["webhooks"][0]["clientConfig"].get("caBundle"))

    def token(self, node: str = "") -> str:
        """Bound to the agent's pod on ``node`` as the kubelet has it made; to none without a node."""
        spec: dict[str, Any] = {"expirationSeconds": 3600, "audiences": []}
        if node:
            pod = {"kind": "Pod", "apiVersion": "v1", "name": pod_name(node), "uid": self.uids[node]}
            spec["boundObjectRef"] = pod
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return str(self.plane.admin.create(TOKENS, body)["status"]["token"])

    async def agent(self, token: str) -> KubeClient:
        config = ClusterConfig(
            "test", self.plane.server, ca=self.plane.ca_file.read_bytes(), credentials=StaticToken(token)
        )
        return await self.clients.enter_async_context(KubeClient(config, timeout_s=60.0))

    async def in_force(self) -> None:
        """Until what is not an agent's own is refused: the API server takes a moment to heed a configuration."""
        agent = await self.agent(self.token(self.one))
        await until(lambda: _refused(agent, self.other), "the rule is in force")


async def write(client: KubeClient, node: str, message: str = "m", **params: str) -> str:
    body = {"status": {"verdict": "WARN", "message": message}}
    answer = await client.patch(f"{HEALTHS}/{node}/status", body, params=params)
    return str(answer["status"]["message"])


async def _refused(client: KubeClient, node: str) -> bool:
    try:
        await write(client, node, **TRIED)
    except Forbidden as error:
        return "admission webhook" in error.message
    return False


async def _passes(client: KubeClient, node: str) -> bool:
    return await write(client, node, "through", **TRIED) == "through"


@pytest.fixture
async def guard(
    control_plane: ControlPlane,
    api: KubeClient,
    fleet: SimulatedNodes,
    tainters: Tainters,  # noqa: F811 - the fixture
) -> AsyncIterator[Guard]:
    one, other = await fleet.create(2, prefix=f"own{next(_numbers)}")
    uids = await create_agent_pods(api, [one, other])
    # there before the tainter, as the chart makes it; nobody answers at port 1
    await api.create(CONFIGURATION.rpartition("/")[0], configuration("https://127.0.0.1:1", "Ignore"))
    async with AsyncExitStack() as clients:
        made = Guard(control_plane, api, tainters, clients, one, other, uids)
        try:
            made.replica, url = await made.start()
            await until(made.trusted, "the certificate is trusted")
            await made.change(clientConfig={"url": url + PATH})
            for node in (one, other):
                await until(partial(api.get, f"{HEALTHS}/{node}"), f"{node} has its NodeHealth")
            await made.in_force()
            yield made
        finally:
            await api.delete(CONFIGURATION)
            foreign = await made.agent(made.token(one))
            await until(lambda: _passes(foreign, other), "the rule is gone")  # else it would meet the next test
            with suppress(NotFound):
                await api.delete(f"{SECRETS}/{NAME}")
            await delete_agent_pods(api, [one, other])


async def test_an_agent_writes_its_own_nodes_status_and_no_others(guard: Guard) -> None:
    agent = await guard.agent(guard.token(guard.one))
    assert await write(agent, guard.one, "mine") == "mine"
    with pytest.raises(Forbidden) as refused:
        await write(agent, guard.other, "not mine")
    said = refused.value.message
    for name in (pod_name(guard.one), guard.one, guard.other):
        assert name in said
    kept = (await guard.api.get(f"{HEALTHS}/{guard.other}")).get("status", {})
    assert kept.get("message") != "not mine"
    assert guard.replica is not None
    metrics = (await guard.replica.get("/metrics")).text
    assert 'muster_tainter_own_node_reviews_total{answer="allowed"} 1.0' in metrics
    await guard.replica.until_logged("WARNING", guard.other, pod_name(guard.one))


@pytest.mark.parametrize("kind", ["unbound", "legacy"])
async def test_a_token_that_is_bound_to_no_pod_is_refused_and_told_what_to_do(guard: Guard, kind: str) -> None:
    if kind == "unbound":
        token = guard.token()
    else:
        name = "agent-legacy"
        note = {"kubernetes.io/service-account.name": AGENT}
        secret = {"metadata": {"name": name, "annotations": note}, "type": "kubernetes.io/service-account-token"}
        await guard.api.create(SECRETS, secret)

        async def filled() -> str:
            data = (await guard.api.get(f"{SECRETS}/{name}")).get("data", {})
            return base64.b64decode(data.get("token", "")).decode()

        token = await until(filled, "the controller-manager has made the token")
    agent = await guard.agent(token)
    with pytest.raises(Forbidden) as refused:
        await write(agent, guard.one)
    assert AGENT in refused.value.message
    assert "serviceAccountToken" in refused.value.message
    if kind == "legacy":
        await guard.api.delete(f"{SECRETS}/{name}")


async def test_whom_rbac_allows_and_is_no_agent_is_not_judged(guard: Guard) -> None:
    assert await write(guard.api, guard.one, "an administrator") == "an administrator"


async def test_agents_report_on_while_no_tainter_answers(guard: Guard) -> None:
    """failurePolicy Ignore, as the chart has it: neither a dead tainter nor one that hangs stops a report."""
    agent = await guard.agent(guard.token(guard.one))
    await guard.change(timeoutSeconds=2)
    assert guard.replica is not None
    guard.replica.process.send_signal(signal.SIGSTOP)
    assert await write(agent, guard.one, "while-stopped") == "while-stopped"
    guard.replica.process.send_signal(signal.SIGCONT)
    assert await guard.replica.stop() == 0
    assert await write(agent, guard.one, "while-dead") == "while-dead"


@pytest.mark.alone
async def test_tls_connections_of_a_stranger_do_not_turn_the_rule_off(guard: Guard) -> None:
    """The API server opens its own connection after them, and ignores the rule where it cannot."""
    _, url = await guard.start()
    assert guard.replica is not None
    await guard.replica.stop()
    with idle_connections("127.0.0.1", httpx2.URL(url).port or 0, 300, tls=True, again=True):
        async with httpx2.AsyncClient(trust_env=False, timeout=30.0, verify=unverified()) as newcomer:
            assert (await newcomer.get(f"{url}/healthz")).status_code == 200, "the stranger keeps nobody out"
        # the chart's time limit: sooner than the tainter would close idle connections for their age
        await guard.change(clientConfig={"url": url + PATH}, timeoutSeconds=2)
        await guard.in_force()
        agent = await guard.agent(guard.token(guard.one))
        with pytest.raises(Forbidden):
            await write(agent, guard.other, "not mine")
        assert await write(agent, guard.one, "mine") == "mine"


async def test_failure_policy_fail_holds_reports_until_the_tainter_is_back(guard: Guard) -> None:
    """What a site gets that trusts its nodes less than it needs their reports."""
    agent = await guard.agent(guard.token(guard.one))
    await guard.change(failurePolicy="Fail")
    assert guard.replica is not None
    await guard.replica.stop()

    async def fails() -> str:
        try:
            await write(agent, guard.one, **TRIED)
        except ApiError as error:
            return error.message
        return ""

    assert "failed calling webhook" in await until(fails, "reports fail")
    _, url = await guard.start()
    await guard.change(clientConfig={"url": url + PATH})
    await until(lambda: _passes(agent, guard.one), "reports go through again")


async def test_a_second_replica_takes_the_first_ones_certificate_and_writes_nothing(guard: Guard) -> None:
    since = guard.plane.audit.mark()
    _, url = await guard.start()
    await guard.change(clientConfig={"url": url + PATH})
    assert guard.replica is not None
    await guard.replica.stop()
    await guard.in_force()  # by the second, with the bundle of the first
    written = [
        (request.verb, request.resource)
        for request in guard.plane.audit.requests(since)
        if request.writes and request.name == NAME and "muster-tainter" in request.user_agent
    ]
    assert written == []


async def test_a_secret_that_is_deleted_is_made_anew_by_word_of_a_watch(guard: Guard) -> None:
    """With the rights of the test bed, which are the chart's: a watch of that one name is allowed."""
    assert guard.replica is not None
    since = guard.plane.audit.mark()
    former = (await guard.api.get(f"{SECRETS}/{NAME}"))["data"]["ca.crt"]
    await guard.api.delete(f"{SECRETS}/{NAME}")

    async def anew() -> bool:
        with suppress(NotFound):
            bundle = (await guard.api.get(f"{SECRETS}/{NAME}"))["data"]["ca.crt"]
            (webhook,) = (await guard.api.get(CONFIGURATION))["webhooks"]
            return bundle != former and webhook["clientConfig"]["caBundle"] == bundle
        return False

    await until(anew, "another authority is trusted")
    await guard.in_force()
    assert not guard.replica.logged("WARNING", SECRETS, "Forbidden"), "the watch is allowed"
    asked = [request for request in guard.plane.audit.requests(since) if request.name == NAME]
    assert not [each for each in asked if each.verb == "list" and "muster-tainter" in each.user_agent]


async def test_what_a_review_costs(guard: Guard) -> None:
    """A figure, printed; each pod is looked up once."""
    agent = await guard.agent(guard.token(guard.one))
    await write(agent, guard.one, **TRIED)
    since = guard.plane.audit.mark()
    reviewed = [await _milliseconds(agent, guard.one) for _ in range(100)]
    lookups = [
        request
        for request in guard.plane.audit.requests(since)
        if (request.verb, request.resource) == ("get", "pods") and "muster-tainter" in request.user_agent
    ]
    assert lookups == []
    await guard.change(
        rules=[{"apiGroups": ["none.invalid"], "apiVersions": ["*"], "resources": ["*"], "operations": ["UPDATE"]}]
    )
    await until(lambda: _passes(agent, guard.other), "the rule is out of force")
    plain = [await _milliseconds(agent, guard.one) for _ in range(100)]
    before, after = statistics.median(plain), statistics.median(reviewed)
    print(f"\na write of the status: median {before:.1f} ms, reviewed {after:.1f} ms")


async def _milliseconds(client: KubeClient, node: str) -> float:
    started = time.perf_counter()
    await write(client, node, **TRIED)
    return 1000 * (time.perf_counter() - started)
