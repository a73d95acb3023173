"""`muster run` from a laptop: through a real API server's proxy to what plays an agent, as it comes."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.cli.recorded_agent import GUARD_S, RecordedAgent, bad, ending, node, serving
from tests.machine import skip

from muster_sandbox.controlplane.cluster import ControlPlane

GOOD = {"verdict": "PASS"}
SERVICE = "autopilot-healthchecks"


@pytest.fixture(scope="module")
def address() -> str:
    """One of this machine that is not on loopback, where the API server's proxy goes to none. Nothing is sent, and what
    a machine sends to its own address never leaves it."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("198.51.100.1", 9))
            return str(probe.getsockname()[0])
    except OSError as error:
        skip("an address that is not on loopback, where the API server's proxy goes to none", str(error))


class Laptop:
    """The command as a person runs it, with no right but the one to call the agents' Service."""

    def __init__(self, control_plane: ControlPlane, namespace: str, address: str) -> None:
        self.plane, self.namespace, self.address = control_plane, namespace, address
        self.kubeconfig = control_plane.kubeconfig_for_user(f"runner-{namespace}")
        self._grant(f"runner-{namespace}")
        self._opened = ExitStack()

    def _grant(self, user: str) -> None:
        roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self.namespace}"
        rule = {"apiGroups": [""], "resources": ["services/proxy"], "verbs": ["get"]}
        self.plane.admin.create(f"{roles}/roles", {"metadata": {"name": "runner"}, "rules": [rule]})
        group = "rbac.authorization.k8s.io"
        binding = {
            "metadata": {"name": "runner"},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "runner"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        }
        self.plane.admin.create(f"{roles}/rolebindings", binding)

    def serve(self, agent: RecordedAgent) -> None:
        """``agent`` is what the Service leads to."""
        self._opened.enter_context(serving(agent, self.address))
        core = f"/api/v1/namespaces/{self.namespace}"
        ports = [{"name": "http", "port": 3333}]
        self.plane.admin.create(
            f"{core}/services", {"metadata": {"name": SERVICE}, "spec": {"clusterIP": "None", "ports": ports}}
        )
        self._make_pod()
        # the proxy goes to addresses of pods only
        pod = {"kind": "Pod", "name": "agent", "namespace": self.namespace}
        subset = {
            "addresses": [{"ip": self.address, "targetRef": pod}],
            "ports": [{"name": "http", "port": urlsplit(agent.url).port}],
        }
        self.plane.admin.create(f"{core}/endpoints", {"metadata": {"name": SERVICE}, "subsets": [subset]})

    def _make_pod(self) -> None:
        """A pod that nobody schedules or runs, with the address of what plays the agent."""
        core = f"/api/v1/namespaces/{self.namespace}"
        containers = [{"name": "agent", "image": "muster.invalid/agent"}]
        spec = {"schedulerName": "nobody", "automountServiceAccountToken": False, "containers": containers}
        self.plane.admin.create(f"{core}/pods", {"metadata": {"name": "agent"}, "spec": spec})
        status = {"podIP": self.address, "podIPs": [{"ip": self.address}]}
        self.plane.admin.patch(f"{core}/pods/agent/status", {"status": status})

    def run(self, *flags: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "muster_cli", "run", "--kubeconfig", str(self.kubeconfig)]
        process = subprocess.Popen(
            [*command, "--namespace", self.namespace, *flags],
            env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._opened.callback(process.wait)
        self._opened.callback(process.kill)
        return process

    def close(self) -> None:
        self._opened.close()


@pytest.fixture
def laptop(control_plane: ControlPlane, namespace: str, address: str) -> Iterator[Laptop]:
    made = Laptop(control_plane, namespace, address)
    yield made
    made.close()


def test_nodes_are_told_as_they_answer_through_the_proxy(laptop: Laptop, tmp_path: Path):
    held = threading.Event()
    agent = RecordedAgent((200, [node("node1", "FAIL", ping=bad()), held, node("node2", "PASS", ping=GOOD), ending()]))
    laptop.serve(agent)
    process = laptop.run("--check", "ping", "--host", "node1,node2")
    assert process.stderr is not None
    told = ""
    for line in process.stderr:
        told += line
        if line.startswith("node1 FAIL"):
            break  # while the second node has not answered
    assert "node1 FAIL ping: gpu/0000:3b:00.0 LowBandwidth: slow" in told
    held.set()
    out, _ = process.communicate(timeout=GUARD_S)
    assert process.returncode == 2
    assert out.splitlines()[-1] == "2 nodes: 1 PASS, 1 FAIL; 1.5 s"
    assert agent.asked == [("/status", {"check": "ping", "host": "node1,node2", "format": "jsonl"})]
    given = {name.lower() for name in agent.headers[0]}
    assert "authorization" not in given, "the API server hands no token on, so --force is not for this way"


def test_what_an_agent_refuses_is_told_in_its_words(laptop: Laptop):
    refusal = "check: 'pingg': expected all or some of ping, pvc"
    laptop.serve(RecordedAgent((400, [f"{refusal}\n".encode()])))
    out, err = laptop.run("--check", "pingg").communicate(timeout=GUARD_S)
    assert (out, err.splitlines()[-1]) == ("", f"muster: {refusal}")


def test_json_comes_through_the_proxy_whole(laptop: Laptop):
    fleet = [node(f"node{n}", "PASS", ping=GOOD) for n in range(500)]
    laptop.serve(RecordedAgent((200, [*fleet, ending()])))
    out, _ = laptop.run("--json").communicate(timeout=GUARD_S)
    document = json.loads(out)
    assert len(document["nodes"]) == 500
    assert document["verdict"] == "PASS"


def test_without_a_service_the_error_says_so(laptop: Laptop):
    process = laptop.run()
    _, err = process.communicate(timeout=GUARD_S)
    assert process.returncode == 3
    assert f'services "{SERVICE}" not found' in err
