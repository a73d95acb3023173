"""The wording of HTTP errors that people act on, asserted once per message."""

import httpx2
import pytest

from muster_agent.checks.local_node import LocalNode
from muster_agent.checks.snapshot_check import SnapshotCheck
from muster_agent.http.access import AccessControl, AccessDenied
from muster_agent.http.routes import make_app
from muster_agent.metrics.agent_metrics import AgentMetrics
from muster_agent.node_agent import Agent
from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_kube.nodehealth import AgentIdentity


class Depth(Parameters):
    r: int = 1


class Width(Parameters):
    lanes: int = 16


async def find_nothing(_node, _parameters):
    return ()


def make_agent() -> Agent:
    local = LocalNode(name="node-1", view=NodeView(), boot_id="boot")
    checks = []
    for name, model in (("dcgm", Depth), ("pciebw", Width)):
        check = Check(
            name=name,
            description="",
            cost=Cost.LIGHT,
            parameters=model,
            timeout_s=9.0,
            devices=("gpu",),
            probe=find_nothing,
        )
        checks.append(SnapshotCheck(check, model(), local, None))
    return Agent(local, checks, AgentIdentity(pod_uid="pod-1", version="1"))


async def answer(path: str, user_agent: str = "curl") -> str:
    transport = httpx2.ASGITransport(app=make_app(make_agent(), AgentMetrics("node-1", "1")))
    async with httpx2.AsyncClient(transport=transport, base_url="http://10.0.0.1:3333") as client:
        return (await client.get(path, headers={"user-agent": user_agent})).text


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (
            "check=pcie",
            'unknown check "pcie": did you mean "pciebw"? Run "muster checks" or request /checks to list all checks\n'
            "valid checks: dcgm, pciebw, all",
        ),
        (
            "speed=1",
            'unknown parameter "speed": run "muster checks" or request /checks to list the parameters of all checks\n'
            "valid parameters: check, host, batch, serverspernode, clientsperiface, plane, workload, pclients, "
            "startport, job, nodelabel, force, format, and the parameters of the checks",
        ),
        ("check=dcgm&check=pciebw", "'check': given twice; expected once"),
        ("job=train", "job: 'train': expected NAMESPACE:key=value"),
        (
            "host=node-2",
            "host: node-2: this agent runs without a cluster and knows only its own node; expected node-1",
        ),
    ],
)
async def test_a_wrong_query(query: str, message: str):
    assert await answer(f"/status?{query}") == f"{message}\n"


async def test_a_parameter_without_effect():
    text = await answer("/status?check=pciebw&r=2")
    assert "\nnote: r has no effect: it is a parameter of dcgm, which this query does not run\n" in text


async def test_another_agents_node():
    text = await answer("/status?host=node-2", "muster-agent")
    assert text == "host: node-2: this is the agent of node-1; agents may query each other only for their own node\n"


async def test_no_token():
    with pytest.raises(AccessDenied) as denied:
        await AccessControl(None).caller({}, "10.1.2.3", needs="force")
    assert denied.value.message == (
        "force: permission required: use muster run, request it over loopback (kubectl port-forward), or send a header "
        "Authorization: Bearer TOKEN of a user who may patch nodehealths.muster.dev; found no token. To let everybody "
        "run heavy checks, set open_heavy_checks"
    )
