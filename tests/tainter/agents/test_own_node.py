"""Who may write which NodeHealth's status: decided by the token's pod, or by the node that the token itself names."""

import asyncio
import contextlib
import io
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import httpx2
import pytest
from msgspec import structs
from prometheus_client import CollectorRegistry

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.errors import ApiError, NotFound, Unreachable
from muster_kube.api.objects import Metadata, Pod, PodSpec
from muster_kube.api.reviews import Identity
from muster_kube.process.settings import SettingsError
from muster_kube.webhook.key_pairs import make_key_pair
from muster_kube.webhook.review import AdmissionRequest, Resource
from muster_tainter.agents.own_node import AgentAccount, OwnNodeRule, TokenPodNodes
from muster_tainter.agents.webhook import prepare, read_account, server_names
from muster_tainter.app import bind_webhook
from muster_tainter.settings import load

AGENTS = AgentAccount("muster", "muster-agent")
CLAIM = "authentication.kubernetes.io/"


class Pods:
    """The API server's pods; answers GETs only."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.asked: list[str] = []
        self.error: ApiError | None = None

    def add(self, name: str, uid: str, node: str) -> None:
        self.pods[f"/api/v1/namespaces/muster/pods/{name}"] = Pod(
            metadata=Metadata(name=name, uid=uid), spec=PodSpec(node_name=node)
        )

    async def get(self, path: str, *, type: type[Pod], timeout_s: float) -> Pod:
        self.asked.append(path)
        if self.error is not None:
            raise self.error
        if path not in self.pods:
            raise NotFound(404, "NotFound", "no such pod", path)
        return self.pods[path]


@pytest.fixture
def pods() -> Pods:
    made = Pods()
    made.add("agent-1", "u-1", "node-1")
    made.add("agent-2", "u-2", "node-2")
    return made


class Judge:
    def __init__(self, pods: Pods, limit: int) -> None:
        self.now = 100.0
        self.told: list[str] = []
        nodes = TokenPodNodes(cast("KubeClient", pods), AGENTS.namespace, limit=limit)
        self.rule = OwnNodeRule(AGENTS, nodes, tell=self.told.append, clock=lambda: self.now)

    def of(self, request: AdmissionRequest) -> tuple[bool, int, str]:
        answer = asyncio.run(self.rule.review(request))
        return answer.allowed, answer.code, answer.message


@pytest.fixture
def judge(pods: Pods) -> Judge:
    return Judge(pods, 100)


def request(
    node: str = "node-1", *, user: str = str(AGENTS), resource: str = "nodehealths", sub: str = "status", **claims: str
) -> AdmissionRequest:
    extra: dict[str, tuple[str, ...]] = {CLAIM + name.replace("_", "-"): (value,) for name, value in claims.items()}
    return AdmissionRequest(
        uid="r-1",
        user_info=Identity(user=user, extra=extra),
        resource=Resource(group="muster.dev", version="v1alpha1", resource=resource),
        sub_resource=sub,
        name=node,
        operation="UPDATE",
    )


def bound(node: str = "node-1", pod: str = "agent-1", uid: str = "u-1", **more: str) -> AdmissionRequest:
    return request(node, pod_name=pod, pod_uid=uid, **more)


def test_an_agent_writes_its_own_nodes_status(judge: Judge) -> None:
    assert judge.of(bound())[0]
    assert judge.told == ["allowed"]


def test_an_agent_writes_no_other_nodes_status_and_is_told_which_is_its_own(judge: Judge) -> None:
    allowed, code, message = judge.of(bound("node-2"))
    assert (allowed, code) == (False, 403)
    for name in ("agent-1", "node-1", "node-2"):
        assert name in message
    assert judge.told == ["refused"]


def test_a_token_that_names_its_node_costs_no_lookup(judge: Judge, pods: Pods) -> None:
    assert judge.of(bound(node_name="node-1"))[0]
    allowed, _, message = judge.of(bound("node-2", node_name="node-1"))
    assert not allowed
    for name in ("agent-1", "node-1"):
        assert name in message
    assert pods.asked == []


def test_what_the_token_says_of_its_node_outranks_the_pod(judge: Judge) -> None:
    assert not judge.of(bound("node-1", node_name="node-9"))[0]


def test_each_pod_is_looked_up_once(judge: Judge, pods: Pods) -> None:
    for _ in range(3):
        assert judge.of(bound())[0]
        assert not judge.of(bound("node-2"))[0]
    assert pods.asked == ["/api/v1/namespaces/muster/pods/agent-1"]


def test_of_too_many_pods_the_one_that_was_silent_longest_is_looked_up_again(pods: Pods) -> None:
    judge = Judge(pods, 2)
    pods.add("agent-3", "u-3", "node-3")
    for name in ("1", "2", "1", "3", "1", "2"):
        assert judge.of(bound(f"node-{name}", f"agent-{name}", f"u-{name}"))[0]
    assert [path[-1] for path in pods.asked] == ["1", "2", "3", "2"]


@pytest.mark.parametrize("claims", [{}, {"pod_name": "agent-1"}, {"pod_uid": "u-1"}], ids=["none", "no uid", "no name"])
def test_a_token_that_is_bound_to_no_pod_is_refused_and_told_what_to_do(
    judge: Judge, pods: Pods, claims: dict[str, str]
) -> None:
    allowed, code, message = judge.of(request(**claims))
    assert (allowed, code) == (False, 403)
    assert str(AGENTS) in message
    assert "serviceAccountToken" in message
    assert pods.asked == []


def test_two_values_of_a_claim_are_none(judge: Judge) -> None:
    asked = bound()
    twice = asked.user_info.extra | {CLAIM + "pod-name": ("agent-1", "agent-2")}
    assert not judge.of(structs.replace(asked, user_info=Identity(user=str(AGENTS), extra=twice)))[0]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda pods: pods.pods.clear(),
        lambda pods: pods.add("agent-1", "u-9", "node-1"),
        lambda pods: pods.add("agent-1", "u-1", ""),
    ],
    ids=["gone", "another of that name", "on no node yet"],
)
def test_a_pod_that_is_not_there_may_write_nothing(judge: Judge, pods: Pods, spoil: Callable[[Pods], None]) -> None:
    spoil(pods)
    allowed, code, message = judge.of(bound())
    assert (allowed, code) == (False, 403)
    assert "agent-1" in message
    pods.add("agent-1", "u-1", "node-1")
    assert judge.of(bound())[0]  # a no is not kept


def test_while_the_pod_cannot_be_looked_up_nothing_is_allowed_and_it_is_said_to_try_again(
    judge: Judge, pods: Pods
) -> None:
    pods.error = Unreachable("not within 1 s", "/api/v1/namespaces/muster/pods/agent-1")
    allowed, code, message = judge.of(bound())
    assert (allowed, code) == (False, 503)
    assert "agent-1" in message
    assert "not within 1 s" in message
    assert judge.told == ["undecided"]
    pods.error = None
    assert judge.of(bound())[0]


def test_a_known_pod_is_judged_while_the_api_server_is_away(judge: Judge, pods: Pods) -> None:
    assert judge.of(bound())[0]
    pods.error = Unreachable("not within 1 s", "/x")
    assert judge.of(bound())[0]
    assert not judge.of(bound("node-2"))[0]


@pytest.mark.parametrize(
    "user",
    [
        "system:serviceaccount:muster:muster-tainter",
        "system:serviceaccount:other:muster-agent",
        "system:serviceaccount:muster:muster-agent2",
        "system:node:node-1",
        "ann",
        "",
    ],
)
def test_whoever_is_not_the_agents_account_is_for_rbac_to_judge(judge: Judge, pods: Pods, user: str) -> None:
    assert judge.of(request("node-2", user=user, pod_name="agent-1", pod_uid="u-1"))[0]
    assert (pods.asked, judge.told) == ([], [])


@pytest.mark.parametrize(("resource", "sub"), [("nodehealths", ""), ("nodes", "status")])
def test_what_else_a_configuration_may_send_here_is_not_judged(judge: Judge, resource: str, sub: str) -> None:
    assert judge.of(request("node-2", resource=resource, sub=sub))[0]


@pytest.mark.parametrize("name", ["../secrets/x", "a/b", "x?watch=1", "x\ny", "", "Ä"])
def test_what_is_no_pods_name_is_not_asked_for(judge: Judge, pods: Pods, name: str) -> None:
    """Anybody may send a review, with any name in it."""
    assert not judge.of(bound(pod=name))[0]
    assert pods.asked == []


def test_refusals_are_logged_with_the_reason_and_at_most_once_a_second(
    judge: Judge, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(4):
        judge.of(bound("node-2"))
    judge.now += 1.0
    judge.of(bound("node\nforged"))
    first, second = [record.getMessage() for record in caplog.records]
    for name in ("node-2", "agent-1", "node-1"):
        assert name in first
    assert r"'node\nforged'" in second
    assert "3" in second
    assert "\n" not in second


# -- settings


@pytest.mark.parametrize(
    ("text", "account"),
    [("muster-agent", AGENTS), ("gpu/agents.v2", AgentAccount("gpu", "agents.v2"))],
)
def test_the_agents_account_is_in_the_tainters_namespace_unless_it_says_so(text: str, account: AgentAccount) -> None:
    settings = load(None, {"agent_account": text}, {})
    assert read_account(settings.agent_account, "muster") == account


@pytest.mark.parametrize("text", ["", "a/b/c", "system:serviceaccount:a:b", "Agent", "/a"])
def test_what_is_no_account_stops_the_start(text: str) -> None:
    with pytest.raises(SettingsError, match="agent-account"):
        load(None, {"agent_account": text}, {})


@pytest.mark.parametrize(
    ("host", "more"),
    [("0.0.0.0", []), ("::", []), ("10.0.0.7", ["10.0.0.7"]), ("localhost", ["localhost"])],  # noqa: S104
)
def test_the_certificate_is_for_the_service_and_for_an_address_of_its_own(host: str, more: list[str]) -> None:
    names = ["muster-own-node.muster.svc", "muster-own-node.muster.svc.cluster.local"]
    assert server_names("muster-own-node", "muster", host) == [*names, *more]


async def test_files_of_others_are_served_and_no_secret_is_asked_for(tmp_path: Path) -> None:
    pair = make_key_pair(["127.0.0.1"], time.time())
    (tmp_path / "tls.crt").write_bytes(pair.certificate)
    (tmp_path / "tls.key").write_bytes(pair.key)
    trust = ssl.create_default_context(cadata=pair.authority.decode())
    settings = load(None, {"webhook_port": 0, "host": "127.0.0.1", "cert_dir": str(tmp_path)}, {})
    nobody = ClusterConfig("test", "http://127.0.0.1:9")  # an API server that is away
    printed = io.StringIO()
    bound = bind_webhook(settings)
    assert bound is not None
    async with prepare(settings, bound, nobody, "muster", "test", CollectorRegistry()) as serving:
        with contextlib.redirect_stdout(printed):
            running = asyncio.create_task(serving)
            async with asyncio.timeout(60):
                while not printed.getvalue().endswith("\n"):  # noqa: ASYNC110 - a print sets no event
                    await asyncio.sleep(0.01)
        url = f"https://{printed.getvalue().split()[-1]}"
        async with httpx2.AsyncClient(verify=trust, trust_env=False, timeout=60) as http:
            async with asyncio.timeout(60):
                while not await _healthy(http, url):
                    assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    bound.close()


async def _healthy(http: httpx2.AsyncClient, url: str) -> bool:
    try:
        return (await http.get(f"{url}/healthz")).status_code == 200
    except httpx2.ConnectError:
        await asyncio.sleep(0.01)
        return False
