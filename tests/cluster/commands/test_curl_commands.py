"""The five calls of the founding page, typed as there into the real curl: four where a port-forward would lead them,
one by the Service's name from a pod. Those of our pages that only a fleet can answer, too.

Four agents as processes, each alone on its node's port 3333; a real API server, whose own controller makes the
EndpointSlices of the headless Service from the agents' pods; calls between agents over TLS; the
real iperf3. There is no kubelet: the pods' addresses are written by the test, `kubectl port-forward` is curl inside the
node's network (where a forward comes out, too), and what the pod is cluster_network.py says.
"""

import ast
import json
import re
import shlex
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest
import yaml
from tests.cluster.agent.recorded_gpu_agent import CHECKS, FIRST, SECOND, FleetAgent, Repeats
from tests.cluster.agent.test_agent_publishing import HEALTHS, until
from tests.cluster.chart.cluster_network import API_SERVER, ClusterNetwork, cluster_network
from tests.docs.command_list import commands_of_test
from tests.machine import require

from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.controlplane.install import AGENT, NAMESPACE, apply
from muster_sandbox.simulation.agents import agent_pod
from muster_sandbox.simulation.nodes import NODES, node_object

AUTOPILOT = "autopilot"  # the page's namespace
SERVICE = "autopilot-healthchecks"
NAMES = ("nodename1", "nodename2", "nodename3", "nodename4")
CORE = f"/api/v1/namespaces/{AUTOPILOT}"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
FAST, SLOW = "100mbit", "5mbit"  # so that no processor decides
# a second each way and no limit on losses, which are how a token bucket slows TCP down; a sound link may do a quarter
# of the others' rate, as machines stall
IPERF = {"seconds": 1, "omit_seconds": 0, "max_retransmits_per_gb": 1e9, "min_share_of_peers": 0.25}


@pytest.fixture(scope="module")
def curl() -> None:
    require("curl")


class Cluster:
    """Makes what the chart, the tainter and the kubelets make."""

    def __init__(self, plane: ControlPlane, network: ClusterNetwork, folder: Path) -> None:
        self.plane, self.network, self.folder = plane, network, folder
        self.agents: dict[str, FleetAgent] = {}
        self.repeats = Repeats()
        self.lines: set[str] = set()  # that were typed and answered
        self._bindings: list[str] = []

    def make(self) -> None:
        admin = self.plane.admin
        kubeconfig = self._install()
        spec = {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": agent_pod("")["metadata"]["labels"],
            "ports": [{"name": "http", "port": 3333}],
        }
        admin.create(f"{CORE}/services", {"metadata": {"name": SERVICE}, "spec": spec})
        for index, (node, address) in enumerate(self.network.nodes.items()):
            admin.create(NODES, node_object(node, index))
            admin.create(
                HEALTHS, {"apiVersion": "muster.dev/v1alpha1", "kind": "NodeHealth", "metadata": {"name": node}}
            )
            self._pod(node, address)
            place = self.folder / node
            place.mkdir()
            agent = FleetAgent(
                place,
                node,
                kubeconfig,
                "0.0.0.0",  # noqa: S104 - in a network of its own
                FIRST if index == 0 else SECOND,
                port=3333,
                checks={**CHECKS, "iperf": {"parameters": IPERF}, "ping": {}},
                inside=self.network.on(node),
                namespace=AUTOPILOT,
            )
            self.agents[node] = agent
            # who listens at its own network's ports is found there
            (place / "root/proc/net").symlink_to("/proc/self/net")
        for agent in self.agents.values():
            agent.start()
        until(lambda: self.slices() == set(self.network.nodes.values()), what="the agents' Service has endpoints")

    def _install(self) -> Path:
        """The agent's account and rights in the page's namespace."""
        admin = self.plane.admin
        admin.create("/api/v1/namespaces", {"metadata": {"name": AUTOPILOT}})
        text = resources.files("muster_sandbox").joinpath("rbac.yaml").read_text()
        for body in yaml.safe_load_all(text.replace(f"namespace: {NAMESPACE}", f"namespace: {AUTOPILOT}")):
            if not body["metadata"]["name"].startswith(AGENT) or body["kind"] == "ClusterRole":
                continue
            if body["kind"] == "ClusterRoleBinding":
                body["metadata"]["name"] += f"-{AUTOPILOT}"
                self._bindings.append(body["metadata"]["name"])
            apply(admin, body)
        return self._inside(self.plane.kubeconfig_for(AGENT, AUTOPILOT))

    def _inside(self, kubeconfig: Path) -> Path:
        """As seen from the nodes: the API server is the Service ``kubernetes``."""
        inside = self.folder / "kubeconfig"
        inside.write_text(kubeconfig.read_text().replace(self.plane.server, f"https://{API_SERVER}:443"))
        return inside

    def _pod(self, node: str, address: str) -> None:
        body = agent_pod(node)
        self.plane.admin.create(f"{CORE}/pods", body)
        status = {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        self.plane.admin.patch(f"{CORE}/pods/{body['metadata']['name']}/status", {"status": status})

    def slices(self) -> set[str]:
        """Addresses in the Service's EndpointSlices."""
        preferred = self.plane.admin.get("/apis/discovery.k8s.io")["preferredVersion"]["groupVersion"]
        listed = self.plane.admin.get(f"/apis/{preferred}/namespaces/{AUTOPILOT}/endpointslices")["items"]
        return {address for each in listed for endpoint in each["endpoints"] or () for address in endpoint["addresses"]}

    def knows_all(self, node: str) -> bool:
        nodes = json.loads(self._printed('curl "http://localhost:3333/status?check=dmesg&format=json"', node))["nodes"]
        endpoints = {name: f"{address}:3333" for name, address in self.network.nodes.items()}
        return {each["node"]: each["endpoint"] for each in nodes if "NoKey" not in str(each)} == endpoints

    def typed(self, line: str, *, on: str = "") -> str:
        """What the command line prints, on node ``on``, or else in the pod."""
        text = self.repeats.of(lambda: self._printed(line, on))
        self.lines.add(" ".join(shlex.split(line)))
        return text

    def _printed(self, line: str, on: str) -> str:
        done = self.network.run(self.network.on(on) if on else self.network.in_pod(), shlex.split(line))
        assert done.returncode == 0, f"{line}: {done.returncode}\n{done.stderr}"
        return done.stdout

    @property
    def logs(self) -> str:
        return "".join(f"--- {node}\n{agent.log}" for node, agent in self.agents.items())

    def close(self) -> None:
        for agent in self.agents.values():
            agent.close()
        admin = self.plane.admin
        for node in self.network.nodes:
            admin.delete(f"{NODES}/{node}")
            admin.delete(f"{HEALTHS}/{node}")
        for binding in self._bindings:
            admin.delete(f"{BINDINGS}/{binding}")
        admin.delete(f"{CORE}/services/{SERVICE}")
        admin.delete(f"{CORE}/pods", grace_s=0)
        admin.delete(f"/api/v1/namespaces/{AUTOPILOT}")


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory, curl: None) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    until(lambda: not control_plane.admin.get(HEALTHS)["items"], what="nodes of other tests are gone")
    with cluster_network(NAMES, folder, control_plane.kubeconfig) as network:
        network.hold("", FAST)
        network.hold("", FAST, "net1")
        made = Cluster(control_plane, network, folder)
        try:
            made.make()
            for node in NAMES:
                until(lambda node=node: made.knows_all(node), what=f"{node} knows the others\n{made.logs}")
            yield made
        finally:
            made.close()


def summary(text: str) -> dict[str, list[str]]:
    """The dict at the end."""
    found = re.search(r"^Node Summary:\n\n(\{.*?\})\n\n", text, re.MULTILINE | re.DOTALL)
    assert found, text
    return dict(ast.literal_eval(found[1]))


def nodes_in(text: str) -> list[str]:
    return sorted(re.findall(r"^Node: (\S+)$", text, re.MULTILINE))


def test_one_check_on_one_node(cluster: Cluster):
    text = cluster.typed('curl "http://localhost:3333/status?check=pciebw&host=nodename1"', on="nodename2")
    assert text.startswith("Checking status on nodename1\n")
    assert nodes_in(text) == ["nodename1"]
    assert summary(text) == {"nodename1": ["PCIE Failed"]}


def test_one_check_on_all_nodes(cluster: Cluster):
    text = cluster.typed('curl "http://127.0.0.1:3333/status?check=pciebw"', on="nodename3")
    assert nodes_in(text) == list(NAMES)
    assert summary(text) == {"nodename1": ["PCIE Failed"], **{node: ["Ok"] for node in NAMES[1:]}}


def test_a_diagnosis_of_level_2_on_all_nodes(cluster: Cluster):
    text = cluster.typed('curl "http://localhost:3333/status?check=dcgm&r=2"', on="nodename1")
    assert summary(text) == {node: ["Ok"] for node in NAMES}
    for agent in cluster.agents.values():
        assert "diag -r 2 -j" in (agent.tools / "calls").read_text(), "the level went to every node"


def measured(text: str) -> dict[str, list[str]]:
    """The summary without warnings: a pair that a stalled machine made slow accuses nobody."""
    return {node: ["Ok"] if said == ["IPERF Warning"] else said for node, said in summary(text).items()}


def no_server_is_left(cluster: Cluster) -> None:
    """Peers end theirs when they notice that the caller is gone; servers alone would live for more than a minute."""
    until(lambda: not cluster.network.fabric.iperfs(), timeout_s=30.0, what="no iperf3 is left")


@pytest.mark.parametrize("where", ["http://localhost:3333", "localhost:3333"])
def test_the_management_network_between_all_nodes(cluster: Cluster, where: str):
    text = cluster.typed(f'curl "{where}/status?check=iperf&plane=mgmt"', on="nodename1")
    assert nodes_in(text) == list(NAMES)
    assert measured(text) == {node: ["Ok"] for node in NAMES}, text
    no_server_is_left(cluster)


def test_the_network_for_data_between_all_nodes(cluster: Cluster):
    text = cluster.typed("curl 'localhost:3333/status?check=iperf'", on="nodename1")
    assert nodes_in(text) == list(NAMES)
    assert measured(text) == {node: ["Ok"] for node in NAMES}, text
    no_server_is_left(cluster)


def test_a_node_whose_management_network_is_slow(cluster: Cluster):
    cluster.network.hold("nodename3", SLOW)
    try:
        text = cluster.typed('curl "http://localhost:3333/status?check=iperf&plane=mgmt"', on="nodename1")
    finally:
        cluster.network.hold("nodename3", FAST)
    assert measured(text) == {**{node: ["Ok"] for node in NAMES}, "nodename3": ["IPERF Failed"]}, text
    assert "FAIL nic/eth0 SlowNetwork: nodename3 eth0: slow" in text
    no_server_is_left(cluster)


def test_every_node_is_pinged_by_each_where_a_sample_would_be_one(cluster: Cluster):
    text = cluster.typed("curl 'localhost:3333/status?check=ping&peers=all'", on="nodename1")
    assert summary(text) == {node: ["Ok"] for node in NAMES}, text
    for asked, peers in (("peers=all&sample=1", 3), ("sample=1", 1)):
        line = f"curl 'localhost:3333/status?check=ping&{asked}&host=nodename4&format=json'"
        found = json.loads(cluster.typed(line, on="nodename1"))["nodes"][0]["results"][0]["findings"]
        answered = {each["component"] for each in found if each["reason"] == "Answers"}
        assert len(answered) == peers, found
        assert answered <= {f"peer/{node}" for node in NAMES[:3]}


def test_a_pod_asks_by_the_services_name_and_gets_light_checks_only(cluster: Cluster):
    """Of a heavy check only with the setting open_heavy_checks, as test_chart_on_node.py has it."""
    service = "http://autopilot-healthchecks.autopilot.svc:3333"
    text = cluster.typed(f'curl "{service}/status?check=dmesg"')
    assert nodes_in(text) == list(NAMES)
    text = cluster.typed(f'curl "{service}/status?check=pciebw"')
    assert "permission required" in text
    assert not nodes_in(text)


def test_the_services_name_stands_for_every_agent(cluster: Cluster):
    found = cluster.typed("getent ahostsv4 autopilot-healthchecks.autopilot.svc")
    assert {line.split()[0] for line in found.splitlines()} == set(cluster.network.nodes.values())


def test_no_line_of_our_pages_was_left_out(cluster: Cluster):
    assert not commands_of_test(__file__) - cluster.lines
