"""What the OpenAPI document says is true: schemathesis makes queries of it, right ones and wrong ones, and holds the
answers against it. The shipped checks' declarations are the real ones; what they would do is left out."""

from dataclasses import replace

import schemathesis
from hypothesis import HealthCheck, settings

from muster_agent.checks.node_check import Context, NodeCheck
from muster_agent.checks.snapshot_check import SnapshotCheck
from muster_agent.checks.stream_check import StreamCheck
from muster_agent.http.routes import make_app
from muster_agent.metrics.agent_metrics import AgentMetrics
from muster_agent.node_agent import Agent
from muster_checks.base.declaration import Check, NodeView
from muster_checks.base.vocabulary import Finding, Measurement, Verdict
from muster_checks.registry import registry

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


def running(check: Check, context: Context) -> NodeCheck:
    parameters = check.parameters()
    if check.stream is not None:
        return Quiet(check, parameters, context, None)
    return SnapshotCheck(replace(check, probe=find), parameters, context, None)


def app():
    context = Context(node="node-1", view=NodeView(), boot_id="boot")
    checks = [running(check, context) for check in registry(plug_ins=[]).values()]
    agent = Agent(checks, context, pod_uid="pod-1", version="1.2.3")
    return make_app(agent, AgentMetrics("node-1", "1.2.3"))


schema = schemathesis.openapi.from_asgi("/openapi.json", app())


@schema.parametrize()
@settings(max_examples=30, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None)
def test_answers_are_as_the_document_says(case):
    case.call_and_validate()
