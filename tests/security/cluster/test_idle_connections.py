"""A network stranger holds thousands of idle connections on each port: nodes are tainted, jobs run, probes and reviews
are answered."""

import asyncio
import contextlib
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.agent.kernel_log_only import kernel_log_only
from tests.cluster.agent.test_agent_publishing import AgentProcess
from tests.cluster.ipujob.operator_bed import Bed, bed_fixture, training  # noqa: F401 - one is a fixture
from tests.cluster.tainter.test_end_to_end import FAULTY, HEALTHS, Replica, tainters, until  # noqa: F401 - a fixture
from tests.idle_connections import idle_connections, unverified
from tests.part_processes import start_program

from muster_kube.api.client import KubeClient
from muster_sandbox.simulation.nodes import SimulatedNodes

pytestmark = pytest.mark.alone  # a busy machine accepts 8,000 connections in seconds

COUNT = 8000
SHELL_LIMIT = ("prlimit", "--nofile=1024:8192")  # the soft limit of a shell, below what the stranger opens
XID = "[%d.5] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.\n"
PROBE_S = 1.0  # the kubelet's default; the chart gives its probes 5 s or more
TAINT_S = 1.0  # DESIGN.md: a kernel line taints within a second


async def test_idle_connections_delay_neither_taints_nor_probes(
    tainters: Any,  # noqa: F811 - the fixture
    fleet: SimulatedNodes,
    api: KubeClient,
    control_plane: Any,
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr("tests.cluster.tainter.test_end_to_end.PartProcess", partial(start_program, inside=SHELL_LIMIT))
    replica: Replica = await tainters.start("--webhook-port", "0", wait=False)
    webhook = f"https://{await replica.next_address()}"
    await until(replica.leads, "the replica leads")
    names = await fleet.create(3, prefix="idle-connections")
    agents = []
    for name in names:
        folder = tmp_path / name
        folder.mkdir()
        config = kernel_log_only(folder, {"start": "boot"})
        kubeconfig = control_plane.kubeconfig_for("muster-agent", "muster")
        agents.append(AgentProcess(folder, name, kubeconfig, "--config", str(config), inside=SHELL_LIMIT))
    with contextlib.ExitStack() as stack:
        for agent in agents:
            stack.callback(agent.close)
            agent.start()

        async def passes(name: str) -> bool:
            return bool((await api.get(f"{HEALTHS}/{name}")).get("status", {}).get("verdict") == "PASS")

        for name in names:
            await until(partial(passes, name), "its first report")
        probed = [replica.url, f"http://127.0.0.1:{agents[0].port}", webhook]
        for url in probed:
            held = idle_connections("127.0.0.1", httpx2.URL(url).port or 0, COUNT)
            await asyncio.to_thread(stack.enter_context, held)
        for url in probed:
            await probe(f"{url}/healthz")
        for agent in agents[:2]:
            agent_url = f"http://127.0.0.1:{agent.port}"
            await probe(f"{agent_url}/readyz")
        await probe(f"{replica.url}/readyz")
        waited = [await time_to_taint(api, agent) for agent in agents]
        assert statistics.median(waited) < TAINT_S, waited
    assert len(replica.lines()) < 20_000, "the log says so once a minute"


async def test_idle_connections_delay_no_job_and_no_review(bed: Bed, monkeypatch: Any) -> None:
    monkeypatch.setattr("tests.cluster.ipujob.operator_bed.PartProcess", partial(start_program, inside=SHELL_LIMIT))
    await bed.start()
    assert bed.operator is not None
    assert bed.proxy is not None
    with contextlib.ExitStack() as stack:
        for address in (*bed.operator.told.values(), bed.proxy.told["listening"]):
            host, _, port = address.rpartition(":")
            held = idle_connections(host, int(port), COUNT, again=True)
            await asyncio.to_thread(stack.enter_context, held)
        for path in ("/healthz", "/readyz"):
            await probe(bed.operator.url + path)
        await probe(f"https://{bed.operator.told['webhooks']}/healthz")
        await probe(f"{bed.proxy.url}/health")
        await bed.until_admission()
        job = await bed.submit("train", training())
        await job.until_running()
    assert len(bed.operator.lines()) < 20_000


async def probe(url: str) -> None:
    async with httpx2.AsyncClient(trust_env=False, timeout=PROBE_S, verify=unverified()) as http:
        assert (await http.get(url)).status_code == 200, url


async def time_to_taint(api: KubeClient, agent: AgentProcess) -> float:
    """Seconds from the kernel line to the taint."""

    async def tainted() -> bool:
        return FAULTY in (await api.get(f"/api/v1/nodes/{agent.node}"))["spec"].get("taints", [])

    begun = time.monotonic()
    agent.write(XID % 12)
    await until(tainted, "the node is tainted", 20)
    return time.monotonic() - begun
