"""Every part of Muster as a process of its own, with things going on, and a Prometheus that scrapes them.

Nodes with eight GPUs, NICs and InfiniBand ports as samples have them; agents, tainter, operator, V-IPU proxy and
simulator, and a stand-in for Loki. It is the stage of the dashboards' test and of their pictures.
"""

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tests.agent.kubelet_socket import Kubelet
from tests.checks.ib.port_tree import H100_PORTS, lay_out_ports
from tests.checks.nic.conftest import Node as Nics
from tests.checks.nvidia.samples_of import H100, NVLINK_STATUS
from tests.cluster.agent.node_under_test import TRAINING, NodeUnderTest
from tests.cluster.agent.recorded_gpu_agent import FIRST, SECOND, FleetAgent
from tests.cluster.ipujob.operator_bed import Bed, inference, training, until
from tests.cluster.tainter.test_end_to_end import HEALTHS, Replica, Tainters
from tests.machine import require
from tests.tainter.sources.loki_stub import LokiServer, serving

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import NotFound
from muster_operator.job.status import NOT_READY
from muster_sandbox.controlplane.cluster import free_ports
from muster_sandbox.prometheus import Prometheus, PrometheusPrograms, scrape_config
from muster_sandbox.simulation.agents import create_agent_pods, delete_agent_pods
from muster_sandbox.simulation.nodes import NODES, NodeShape

POOL_LABEL = "dashboards.test"
JOBS = "/apis/batch/v1/namespaces/muster/jobs"
PERIOD = "10s"
PEERS = "gpu-a=127.0.0.2,gpu-b=127.0.0.3"  # who is pinged
OPERATOR_READER = "dashboards-scraper"
GPU = "0000:3b:00"

XID_79 = f"NVRM: Xid (PCI:{GPU}): 79, pid=1234, GPU has fallen off the bus."
XID_119 = "NVRM: Xid (PCI:0000:2a:00): 119, pid=1, Timeout after 6s of waiting for RPC response from GPU0 GSP!"
XID_31 = "NVRM: Xid (PCI:0000:18:00): 31, pid=77, name=python, Ch 00000008, MMU Fault"
LINE_OF_LOKI = f"[1235733.431527] NVRM: Xid ({GPU}): 14, Channel 00000001"


def policy(loki: str, pool: str) -> dict[str, Any]:
    """Two nodes may be tainted at once. What a reset mends is drained and repaired."""
    container = {"name": "reset", "image": "x", "args": ["${device}"]}
    pod = {"nodeName": "${node}", "restartPolicy": "Never", "containers": [container]}
    reset = {"attempts": 2, "wait": "1h", "job": {"template": {"spec": {"backoffLimit": 0, "template": {"spec": pod}}}}}
    return {
        "rules": [
            {"name": "hardware", "match": {"verdict": "FAIL", "class": ["reset", "reboot"]}, "action": "taint"},
            {"name": "ipu-quarantine", "match": {"component": "ipu/*", "verdict": "FAIL"}, "action": "quarantine"},
            {"name": "said", "match": {"verdict": ["FAIL", "WARN"]}, "action": "event"},
        ],
        "pools": [
            {
                "name": "gpu",
                "selector": {"matchLabels": {POOL_LABEL: pool}},
                "budget": {"tainted": 2},
                "drain": {"when": "now"},
                "repair": {"atOnce": 1, "reset": reset},
            }
        ],
        "incidents": {"nodes": 2, "within": "60s"},
        "holdDown": {"base": "2s", "longest": "4s", "halfLife": "6h"},
        "testing": {"atOnce": "100%", "pause": "1s"},
        "goodput": {},
        "sources": {
            "loki": {
                "url": loki,
                "every": "1s",
                "kernel": [{"query": '{k8s_daemonset_name="dmesg"}', "nodeLabel": "k8s_node_name"}],
            }
        },
    }


class NodeAgent:
    """One node's agent and its kubelet's socket. iperf: the port of its server. slow: a GPU's and a
    NIC's link are slower than they have to be."""

    def __init__(self, folder: Path, name: str, kubeconfig: Path, *, iperf: int, slow: bool):
        folder.mkdir()
        self.kubelet = Kubelet()
        self.socket = folder / "kubelet.sock"
        every = {"period": PERIOD}
        checks: dict[str, dict[str, Any]] = {
            "dmesg": {},
            "pciebw": {"parameters": {"min_bandwidth_gb_per_s": 8}},
            "dcgm": {},
            "iperf": {
                "parameters": {
                    "server": "127.0.0.1", "port": iperf, "seconds": 1, "omit_seconds": 0, "clients": 1,
                    "max_retransmits_per_gb": 1e9,
                }
            },
            "ping": {**every, "parameters": {"peers": PEERS, "count": 2}},
            "nic": {**every, "parameters": {"min_speed_mbit_per_s": 200000} if slow else {}},
            **dict.fromkeys(("gputemp", "gpupower", "nvlink", "ib"), every),
        }  # fmt: skip
        self.agent = FleetAgent(
            folder, name, kubeconfig, "127.0.0.1", FIRST if slow else SECOND, checks=checks,
            pod_resources=str(self.socket), pod_uid=f"pod-of-{name}",
        )  # fmt: skip
        (folder / "nvlink.txt").write_bytes(NVLINK_STATUS.replace(b"<inactive>", b"26.562 GB/s"))  # one is down there
        (folder / "smi.xml").write_bytes(H100)
        smi = self.agent.tools / "nvidia-smi"
        smi.write_text(f'#!/bin/sh\n[ "$1" = nvlink ] && exec cat {folder}/nvlink.txt\nexec cat {folder}/smi.xml\n')
        smi.chmod(0o755)
        _network(folder / "root")

    def says(self, line: str) -> None:
        uptime = Path("/proc/uptime").read_text().split()[0]
        self.agent.write(f"[{float(uptime):.6f}] {line}\n")


def _network(root: Path) -> None:
    """Two Ethernet ports, the second slower than its equal, and the InfiniBand ports of a node with eight GPUs."""
    nics = Nics(root)
    nics.add("eth0")
    nics.add("eth1", speed=100000, carrier_down_count=2, rx_errors=3)
    lay_out_ports(root / "sys/class/infiniband", H100_PORTS)


@dataclass
class Stage:
    """What runs. nodes: agents by node; beside them are one whose heavy check does not end, and one where it is due and
    work never ends."""

    bed: Bed
    tainter: Replica
    nodes: dict[str, NodeAgent]
    prometheus: Prometheus
    loki: LokiServer

    async def a_bad_night(self) -> None:
        """Something of all that the dashboards show."""
        first, second, third, fourth = list(self.nodes)[:4]
        for name in self.nodes:
            await until(lambda name=name: self._told(name), f"{name}: its agent has told of itself")  # type: ignore[misc]
        await self._jobs()
        for name in (second, third):
            answer = await asyncio.to_thread(self.nodes[name].agent.ask, f"check=iperf&host={name}&format=json")
            assert "PASS" in answer, answer
        pods = f"/api/v1/namespaces/{self.bed.namespace}/pods"
        container = {"name": "c", "image": "x"}
        await self.bed.api.create(
            pods, {"metadata": {"name": "work"}, "spec": {"nodeName": first, "containers": [container]}}
        )
        self.nodes[first].says(XID_119)
        await self.until_tainted(first)
        self.nodes[second].says(XID_79)
        await self.until_tainted(second)
        for name in (third, fourth):  # the budget allows two; the same on several nodes is an incident
            self.nodes[name].says(XID_79)
        self.loki.store.dmesg(fourth, LINE_OF_LOKI)
        await until(self._is_withheld, "more are withheld")
        await self.clear(second)
        await until(lambda: self._is_followed(second), "the next has its place")
        self.nodes[second].says(XID_31)

    async def _jobs(self) -> None:
        good = await self.bed.submit("good", training(ipus=4))
        bad = await self.bed.submit("bad", training())
        serve = await self.bed.submit("serve", inference())
        for job in (good, bad, serve):
            await job.until_running()
        good.finish("good-launcher")
        bad.finish("bad-launcher", 1)
        await good.until("is completed", lambda status: status["launcherStatus"] == "Completed")
        await bad.until("has failed", lambda status: status["launcherStatus"] == "Failed")
        await self.bed.fault(down=True)
        late = await self.bed.submit("late", inference())
        await late.until_says(NOT_READY)  # the job says so before its first call has failed
        await until(self._call_has_failed, "a call of the proxy has failed")
        await self.bed.end_faults()
        await late.until_running()
        moving = await self.bed.submit("moving", training(healthPolicy={"onFault": "Move", "gracePeriodSeconds": 1}))
        await moving.until_running()
        below = (await moving.until_pods_run())["moving-worker-0"]["spec"]["nodeName"]
        for ready in ("False", "True"):
            said = {"conditions": [{"type": "Ready", "status": ready, "reason": "Played"}]}
            await self.bed.api.patch(f"/api/v1/nodes/{below}/status", {"status": said}, kind="strategic")
            await moving.until("has moved", lambda s: (s.get("moves"), s["launcherStatus"]) == (1, "Running"))
        await self.bed.submit("large", training(ipus=64))

    async def _call_has_failed(self) -> bool:
        return "muster_operator_proxy_errors_total{" in await self.bed.metrics()

    async def _told(self, node: str) -> bool:
        return bool((await self.bed.api.get(f"{HEALTHS}/{node}")).get("status", {}).get("verdict"))

    async def _is_withheld(self) -> bool:
        text = (await self.tainter.get("/metrics")).text
        return 'muster_tainter_nodes_withheld{why="budget"} 0.0' not in text

    async def _is_followed(self, cleared: str) -> bool:
        return not await self.taints(cleared) and sum([bool(await self.taints(name)) for name in self.nodes]) == 2

    async def taints(self, node: str) -> list[str]:
        return [each["key"] for each in (await self.bed.api.get(f"{NODES}/{node}"))["spec"].get("taints", [])]

    async def until_tainted(self, node: str) -> None:
        await until(lambda: self.taints(node), f"{node} is tainted")

    async def clear(self, node: str) -> None:
        """As a person does: all that is open there."""
        told = (await self.bed.api.get(f"{HEALTHS}/{node}"))["status"]["checks"]
        clear = [
            {"check": check["name"], "component": each["component"], "occurrence": each["occurrence"], "by": "ada"}
            for check in told
            for each in check.get("findings", [])
        ]
        await self.bed.api.patch(f"{HEALTHS}/{node}", {"spec": {"clear": clear}})


@contextlib.asynccontextmanager
async def scraped_fleet(bed: Bed, found: PrometheusPrograms, folder: Path, *, nodes: int = 4) -> AsyncIterator[Stage]:
    """All of it runs and is scraped once a second; nothing has gone wrong yet. ``bed``: nothing runs in it yet."""
    folder.mkdir()
    api, plane = bed.api, bed.control_plane
    pool = bed.namespace
    async with contextlib.AsyncExitStack() as stack:
        loki = await stack.enter_async_context(serving(LokiServer()))
        loki.store.push("nothing yet", k8s_daemonset_name="dmesg")
        await bed.start(nodes=3)  # one more than a job is on: it can move
        tainters = Tainters(plane.kubeconfig_for("muster-tainter", "muster"), folder)
        rules = folder / "policy.yaml"
        rules.write_text(yaml.safe_dump(policy(loki.url, pool)))
        tainter = await tainters.start("--policy", str(rules))
        stack.push_async_callback(tainter.stop)
        shape = NodeShape(labels={POOL_LABEL: pool}, gpus=8)
        names = await bed.fleet.create(nodes, prefix=f"gpu-{pool}", shape=shape)
        iperf = stack.enter_context(_iperf_server())
        account = plane.kubeconfig_for("muster-agent", "muster")
        stack.push_async_callback(_forget_jobs, api)
        await _heavy_checks_that_last(bed, stack, folder, account)
        agents: dict[str, NodeAgent] = {}
        for number, name in enumerate(names):
            await until(lambda name=name: api.get(f"{HEALTHS}/{name}"), f"{name} has its NodeHealth")  # type: ignore[misc]
            agents[name] = made = NodeAgent(folder / name, name, account, iperf=iperf, slow=number == 0)
            stack.enter_context(made.kubelet.listens(made.socket))
            stack.callback(made.agent.close)
            made.agent.start()
        ports = {name: each.agent.port for name, each in agents.items()}
        await _have_pods(api, stack, ports)
        scraped = _scraped(bed, tainter, ports, folder)
        prometheus = stack.enter_context(Prometheus(found, folder / "prometheus", scraped))
        # the rate of a histogram without labels does not show what it counted before
        await asyncio.to_thread(prometheus.until_scraped)
        yield Stage(bed, tainter, agents, prometheus, loki)


async def _heavy_checks_that_last(bed: Bed, stack: contextlib.AsyncExitStack, folder: Path, account: Path) -> None:
    """Until one runs and another waits, both for as long as the stage stands: the gauges of that are never empty."""
    names = await bed.fleet.create(2, prefix=f"long-{bed.namespace}", shape=NodeShape())
    nodes = [NodeUnderTest(bed.api, name, folder / name, account) for name in names]
    tested, at_work = nodes
    at_work.kubelet.answer = TRAINING
    for node in nodes:
        stack.callback(node.close)
        stack.enter_context(node.kubelet.listens(node.socket))
        await until(node.health, f"{node.name} has its NodeHealth")
        node.agent.start()
    await _have_pods(bed.api, stack, {node.name: node.agent.port for node in nodes})
    await until(tested.is_under_test, "a heavy check runs")
    await until(at_work.is_due, "another waits for an idle node")


async def _have_pods(api: KubeClient, stack: contextlib.AsyncExitStack, ports: dict[str, int]) -> None:
    """Agents' own, as ready as these are. ports: of agents, by node."""
    stack.push_async_callback(delete_agent_pods, api, list(ports))
    ready = {name: f"http://127.0.0.1:{port}/readyz" for name, port in ports.items()}
    await create_agent_pods(api, list(ports), ready_urls=ready)


def _scraped(bed: Bed, tainter: Replica, agents: dict[str, int], folder: Path) -> list[dict[str, Any]]:
    """As the chart's monitors have it: with the labels namespace and node."""
    assert bed.operator is not None
    assert bed.proxy is not None
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(bed.token_for(OPERATOR_READER, reader=True))
    protected = {
        "scheme": "https",
        "tls_config": {"insecure_skip_verify": True},
        "authorization": {"credentials_file": str(token)},
    }
    where = {"namespace": "muster"}
    return [
        {
            "job_name": "muster-agent",
            "honor_labels": True,
            "static_configs": [
                {"targets": [f"127.0.0.1:{port}"], "labels": {"node": node, **where}} for node, port in agents.items()
            ],
        },
        scrape_config("muster-tainter", tainter.url.removeprefix("http://"), **where),
        scrape_config("muster-operator", bed.operator.told["metrics"], more=protected, **where),
        scrape_config("muster-vipu-proxy", bed.proxy.told["listening"], **where),
    ]


@contextlib.contextmanager
def _iperf_server() -> Iterator[int]:
    """The port where the real one serves."""
    require("iperf3")
    [port] = free_ports(1)
    command = ["iperf3", "-s", "-B", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            yield port
        finally:
            server.kill()


async def _forget_jobs(api: KubeClient) -> None:
    """Of repairs."""
    for job in (await api.get(JOBS))["items"]:
        with contextlib.suppress(NotFound):
            await api.delete(f"{JOBS}/{job['metadata']['name']}", {"propagationPolicy": "Background"})
