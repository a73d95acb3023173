"""Somebody with an agent's token, or the right to send requests to agents, chooses the image of a pod that the tainter
creates in its namespace.
"""

import httpx2
import pytest
from tests.tainter.http.test_volume_trials import Bench, bench  # noqa: F401 - the fixture

from muster_agent.checks.local_node import LocalNode
from muster_agent.checks.request_parser import BadRequest, read_request
from muster_agent.checks.snapshot_check import SnapshotCheck
from muster_agent.http.routes import make_app
from muster_agent.metrics.agent_metrics import AgentMetrics
from muster_agent.node_agent import Agent
from muster_checks.base.declaration import NodeView
from muster_checks.pvc import PVC, PvcParameters
from muster_kube.nodehealth import AgentIdentity, CheckRequest

EVIL = "registry.example/of-the-attacker"


async def test_the_tainter_starts_no_image_that_a_caller_chooses(bench: Bench):  # noqa: F811 - the fixture
    answer = await bench.ask(image=EVIL)
    assert answer.status_code == 400
    assert all(fact in answer.json()["message"] for fact in (EVIL, "busybox", "trials_image"))
    bench.knows_person("t-ann", ("create", "pods"))
    assert (await bench.ask("t-ann", image=EVIL)).status_code == 400
    assert bench.volumes.asked == []


def volume_check() -> SnapshotCheck:
    return SnapshotCheck(PVC, PvcParameters(), LocalNode(name="node-1", view=NodeView(), boot_id="boot"), None)


@pytest.mark.parametrize("name", ["image", "pvc.image"])
async def test_a_query_cannot_set_the_image_even_over_loopback(name: str):
    check = volume_check()
    agent = Agent(check.local, [check], AgentIdentity(pod_uid="pod-1"))
    transport = httpx2.ASGITransport(app=make_app(agent, AgentMetrics("node-1", "1")))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:3333") as person:
        answer = await person.get("/status", params={"check": "pvc", name: EVIL})
    assert answer.status_code == 400
    assert "checks.pvc.parameters.image" in answer.text


@pytest.mark.parametrize("name", ["image", "pvc.image"])
def test_a_request_in_a_nodehealth_cannot_set_the_image(name: str):
    with pytest.raises(BadRequest, match=r"checks\.pvc\.parameters\.image"):
        read_request(CheckRequest(id="r1", checks=("pvc",), params={name: EVIL}), {"pvc": volume_check()})
