"""/status of a whole fleet as people type it: real agents that find each other through a real API server, and replay
what their GPUs' tools have printed.

Here they listen wherever there is a free port; test_curl_commands.py types the founding page's calls, word by word.
"""

import asyncio
import contextlib
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.agent.recorded_gpu_agent import FIRST, SECOND, FleetAgent, Repeats
from tests.cluster.agent.test_agent_publishing import GUARD_S, HEALTHS, until
from tests.shared_data import SharedData

from muster_agent.http.access import AccessControl, AccessDenied, Caller
from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_kube.api.errors import ApiError, Forbidden
from muster_kube.api.self_reviews import SelfReviews
from muster_kube.run_permit import delete_permit, is_permitted, write_permit
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.controlplane.install import AGENT, NAMESPACE

SERVICE = "autopilot-healthchecks"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ROLES, BINDINGS = f"{RBAC}/clusterroles", f"{RBAC}/clusterrolebindings"
SERVICES = f"/api/v1/namespaces/{NAMESPACE}/services"


class FleetBench:
    """Makes what tainter, chart and kubelet make: NodeHealths, the Service, its EndpointSlices."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane, self.folder = plane, folder
        version = plane.admin.get("/version")
        old = int(re.sub(r"\D", "", version["minor"])) < 21
        self.slices = f"/apis/discovery.k8s.io/{'v1beta1' if old else 'v1'}/namespaces/{NAMESPACE}/endpointslices"
        # later servers take no loopback address in a slice; what is sent to one's own address stays on the machine, too
        self.host = "127.0.0.1" if old else _own_address()
        self.is_open = not old  # heavy checks for callers that are not on loopback
        self.kubeconfig = plane.kubeconfig_for(AGENT, NAMESPACE)
        self.agents: dict[str, FleetAgent] = {}
        self.repeats = Repeats()
        spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "ports": [{"name": "http", "port": 3333}]}
        self.plane.admin.create(SERVICES, {"metadata": {"name": SERVICE}, "spec": spec})

    def fleet(self, nodes: Mapping[str, Sequence[str]]) -> list[FleetAgent]:
        """Agents of ``nodes`` with the bandwidths of their GPUs; returns when they know each other."""
        until(lambda: not self._there(), what="nodes of other tests are gone")
        for node, bandwidths in nodes.items():
            body = {"apiVersion": "muster.dev/v1alpha1", "kind": "NodeHealth", "metadata": {"name": node}}
            self.plane.admin.create(HEALTHS, body)
            place = self.folder / node
            place.mkdir()
            agent = FleetAgent(place, node, self.kubeconfig, self.host, bandwidths, open_heavy_checks=self.is_open)
            self.agents[node] = agent
            self._publish(node, agent.start().port)
        for agent in self.agents.values():
            until(lambda agent=agent: self._knows_all(agent), what=f"{agent.node} knows the others\n{agent.log}")
        return list(self.agents.values())

    def _knows_all(self, agent: FleetAgent) -> bool:
        found = agent.nodes("check=dmesg")
        return found.keys() == self.agents.keys() and all(
            node["endpoint"] and "NoKey" not in str(node) for node in found.values()
        )

    def _publish(self, node: str, port: int) -> None:
        endpoint: dict[str, Any] = {"addresses": [self.host], "conditions": {"ready": True}, "nodeName": node}
        if "v1beta1" in self.slices:
            endpoint["topology"] = {"kubernetes.io/hostname": node}
        body = {
            "metadata": {"name": f"{SERVICE}-{node}", "labels": {"kubernetes.io/service-name": SERVICE}},
            "addressType": "IPv4",
            "endpoints": [endpoint],
            "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
        }
        self.plane.admin.create(self.slices, body)

    def _there(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.plane.admin.get(HEALTHS)["items"]]

    def text_of(self, agent: FleetAgent, query: str) -> str:
        return self.repeats.of(lambda: agent.ask(query))

    def nodes_of(self, agent: FleetAgent, query: str, *live: str) -> dict[str, dict[str, Any]]:
        """live: those that are reached."""
        return self.repeats.of(lambda: agent.nodes(query), lambda found: [found[node] for node in live])

    def close(self) -> None:
        for node, agent in self.agents.items():
            agent.close()
            self.plane.admin.delete(f"{self.slices}/{SERVICE}-{node}")
            self.plane.admin.delete(f"{HEALTHS}/{node}")
        self.plane.admin.delete(f"{SERVICES}/{SERVICE}")


def _own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.connect(("192.0.2.1", 9))  # sends nothing; the kernel says which address would
        return str(asked.getsockname()[0])


@pytest.fixture
def bench(control_plane: ControlPlane, tmp_path: Path) -> Iterator[FleetBench]:
    made = FleetBench(control_plane, tmp_path)
    yield made
    made.close()


def comparable(text: str) -> list[str]:
    """Without what cannot be the same: addresses, runtime, the order of bandwidths and of nodes; and without our own
    line on each slow GPU (docs/decisions.md)."""
    text = re.sub(r"\d+\.\d+\.\d+\.\d+(:\d+)?", "ADDRESS", text)
    text = re.sub(r"runtime: [\d.e-]+ sec", "runtime: N sec", text)
    text = re.sub(r"^FAIL gpu/.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^[\d. ]+$", lambda found: " ".join(sorted(found[0].split())), text, flags=re.MULTILINE)
    head, *blocks = text.split("Autopilot Endpoint: ")
    last, summary = blocks[-1].split("Node Summary:")
    return [head, *sorted(block.strip() for block in (*blocks[:-1], last)), summary.strip()]


def results(node: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["check"]: (each["verdict"], each.get("reason", "")) for each in node["results"]}


def test_the_pages_sample_comes_out_as_it_is_printed_there(bench: FleetBench, shared_data: SharedData):
    asked, other = bench.fleet({"hostname": FIRST, "hostname2": SECOND})
    sample = comparable(shared_data.text("autopilot/status_pciebw.txt"))
    assert comparable(bench.text_of(asked, "check=pciebw")) == sample
    assert comparable(bench.text_of(other, "check=pciebw")) == sample, "whichever agent answers"


def test_the_pages_other_calls_work_as_typed_and_a_dead_agent_is_told_of(bench: FleetBench):
    first, second, third = bench.fleet({"nodename1": FIRST, "nodename2": SECOND, "nodename3": SECOND})
    text = bench.text_of(second, "check=pciebw&host=nodename1")
    assert text.startswith("Checking status on nodename1\n")
    assert f"url(s): http://{bench.host}:{first.port}/status?host=nodename1&check=pciebw\n" in text
    assert text.count("Autopilot Endpoint: ") == 1
    assert "{'nodename1': ['PCIE Failed']}" in text

    names = ("nodename1", "nodename2", "nodename3")
    found = bench.nodes_of(first, "check=dcgm&r=2", *names)
    assert {node: results(answer) for node, answer in found.items()} == {node: {"dcgm": ("PASS", "")} for node in names}
    for agent in (first, second, third):
        assert "diag -r 2 -j" in (agent.tools / "calls").read_text(), "the level went to every node"

    third.kill()
    found = bench.nodes_of(first, "check=pciebw,dmesg", "nodename2")
    assert found["nodename2"]["verdict"] == "PASS"
    assert {reason for _, reason in results(found["nodename3"]).values()} == {"Unreachable"}
    assert f"{bench.host}:" in found["nodename3"]["error"]


@pytest.fixture
def person(control_plane: ControlPlane, namespace: str) -> Iterator[str]:
    """A token for the API server of somebody who may patch NodeHealths."""
    group, name = "rbac.authorization.k8s.io", f"may-disturb-{namespace}"
    rules = [{"apiGroups": ["muster.dev"], "resources": ["nodehealths"], "verbs": ["patch"]}]
    role = {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}
    control_plane.admin.create(ROLES, role)
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": "ann", "namespace": namespace}],
    }
    control_plane.admin.create(BINDINGS, binding)
    control_plane.admin.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "ann"}})
    yield issued(control_plane, namespace, "ann")
    control_plane.admin.delete(f"{BINDINGS}/{name}")
    control_plane.admin.delete(f"{ROLES}/{name}")


def issued(plane: ControlPlane, namespace: str, account: str, *audiences: str) -> str:
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": list(audiences), "expirationSeconds": 3600},
    }
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    return str(plane.admin.create(path, body)["status"]["token"])


async def test_the_api_server_says_who_may_disturb_a_job(control_plane: ControlPlane, namespace: str, person: str):
    config = load_config(control_plane.kubeconfig_for(AGENT, NAMESPACE))

    async def asked(token: str) -> Caller | int:
        access = AccessControl(SelfReviews(config), review_s=GUARD_S)  # a new one, as answers are kept
        try:
            return await access.caller({"authorization": f"Bearer {token}"}, "10.1.2.3", needs="force")
        except AccessDenied as denied:
            return denied.status

    async def trusted(token: str) -> Caller:
        """Rights are seen by the API server a moment after they were given."""
        async with asyncio.timeout(GUARD_S):
            while isinstance(caller := await asked(token), int):  # noqa: ASYNC110 - the server tells of no such event
                await asyncio.sleep(0.05)
        return caller

    ann = (await trusted(person)).user
    assert ann in (f"system:serviceaccount:{namespace}:ann", ""), "no name before Kubernetes 1.27"
    assert await asked(issued(control_plane, NAMESPACE, AGENT)) == 403, "an agent's own for the API server"
    assert await asked(issued(control_plane, NAMESPACE, AGENT, "muster")) == 401, "for another audience"
    assert await asked("made-up") == 401


REVIEWS = ("authentication.k8s.io/v1/tokenreviews", "authorization.k8s.io/v1/subjectaccessreviews")


@pytest.mark.parametrize("path", REVIEWS)
async def test_an_agents_account_can_test_nobodys_token(control_plane: ControlPlane, path: str):
    """A stolen token of an agent would otherwise be an oracle for every other token."""
    config = load_config(control_plane.kubeconfig_for(AGENT, NAMESPACE))
    async with KubeClient(config, timeout_s=30.0) as client:
        with pytest.raises(Forbidden):
            await client.create(f"/apis/{path}", {"spec": {"token": "x", "user": "ann"}})


async def test_a_permit_is_proof_for_who_may_write_it_and_an_agent_may_not(control_plane: ControlPlane):
    admin = control_plane.admin
    admin.create(HEALTHS, {"apiVersion": "muster.dev/v1alpha1", "kind": "NodeHealth", "metadata": {"name": "permit-1"}})
    try:
        agents = load_config(control_plane.kubeconfig_for(AGENT, NAMESPACE))
        async with (
            KubeClient(load_config(control_plane.kubeconfig), timeout_s=30.0) as person,
            KubeClient(agents, timeout_s=30.0) as agent,
        ):
            permit = await write_permit(person, "permit-1")
            assert await is_permitted(agent, permit.header)
            await delete_permit(person, permit)
            assert not await is_permitted(agent, permit.header)
            with pytest.raises(Forbidden):
                await write_permit(agent, "permit-1")
            body = {"metadata": {"annotations": {permit.annotation: "2999-01-01T00:00:00Z"}}, "status": {"verdict": ""}}
            with contextlib.suppress(ApiError):  # a rule for the node may refuse it; else the annotation is dropped
                await agent.patch(f"{HEALTHS}/permit-1/status", body)
            assert not await is_permitted(agent, permit.header)
    finally:
        admin.delete(f"{HEALTHS}/permit-1")
