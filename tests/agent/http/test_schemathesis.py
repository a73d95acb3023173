"""What the OpenAPI document says is true: schemathesis makes queries of it, right ones and wrong ones, and holds the
answers against it. The shipped checks' declarations are the real ones; what they would do is left out."""

from dataclasses import replace

import schemathesis
from hypothesis import HealthCheck, settings

from muster_agent.checks.local_node import LocalNode
from muster_agent.checks.node_check import NodeCheck
from muster_agent.checks.snapshot_check import SnapshotCheck
from muster_agent.checks.stream_check import StreamCheck
from muster_agent.http.routes import make_app
from muster_agent.metrics.agent_metrics import AgentMetrics
from muster_agent.node_agent import Agent
from muster_checks.base.declaration import Check, NodeView
from muster_checks.base.vocabulary import Finding, Measurement, Verdict
from muster_checks.registry import load_registry
from muster_kube.nodehealth import AgentIdentity

FOUND = Finding(
    component="gpu/0000:3b:00.0",
    verdict=Verdict.FAIL,
    reason="SlowLink",
    message="link is slow",
    measurements=(Measurement("to_device", 3.1, "GB/s", 4.0),),
)


async def find(_node, _parameters):
    return [FOUND]


class Quiet(StreamCheck):
    """Has read all there is."""

    def unready(self) -> str:
        return ""


def running(check: Check, local: LocalNode) -> NodeCheck:
    parameters = check.parameters()
    if check.stream is not None:
        return Quiet(check, parameters, local, None)
    return SnapshotCheck(replace(check, probe=find), parameters, local, None)


def app():
    local = LocalNode(name="node-1", view=NodeView(), boot_id="boot")
    checks = [running(check, local) for check in load_registry(plug_ins=[]).values()]
    agent = Agent(local, checks, AgentIdentity(pod_uid="pod-1", version="1.2.3"))
    return make_app(agent, AgentMetrics("node-1", "1.2.3"))


schema = schemathesis.openapi.from_asgi("/openapi.json", app())


@schema.parametrize()
@settings(max_examples=30, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None)
def test_answers_are_as_the_document_says(case):
    case.call_and_validate()
