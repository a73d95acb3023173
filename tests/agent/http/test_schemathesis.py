"""What the OpenAPI document says is true: schemathesis makes requests of it, right ones and wrong ones, and holds the
answers against it. The shipped checks' declarations are the real ones; what they would do is left out.

It runs beside the other tests: schemathesis makes up its requests while tests are collected, which takes each of the
processes that share the others a second.
"""

from dataclasses import replace
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from tests.machine import needs

from muster_agent.checks.local_node import LocalNode
from muster_agent.checks.node_check import NodeCheck
from muster_agent.checks.snapshot_check import SnapshotCheck
from muster_agent.checks.stream_check import StreamCheck
from muster_agent.http.access import AccessControl, Caller
from muster_agent.http.routes import AgentService, make_app
from muster_agent.metrics.agent_metrics import AgentMetrics
from muster_agent.node_agent import Agent
from muster_checks.base.declaration import Check, NodeView
from muster_checks.base.vocabulary import Finding, Measurement, Verdict
from muster_checks.registry import load_registry
from muster_kube.nodehealth import AgentIdentity

pytestmark = pytest.mark.beside
FOUND = Finding(
    component="gpu/0000:3b:00.0",
    verdict=Verdict.FAIL,
    reason="SlowLink",
    message="link is slow",
    measurements=(Measurement("to_device", 3.1, "GB/s", 4.0),),
)
MEASURING = "^/iperf/"


async def find(_node, _parameters):
    return [FOUND]


class Quiet(StreamCheck):
    """Has read all there is."""

    def unready(self) -> str:
        return ""


class Trusting(AccessControl):
    """Takes everybody for an agent."""

    async def caller(self, *_: Any, **__: Any) -> Caller:
        return Caller(trusted=True, agent=True)


def running(check: Check, local: LocalNode) -> NodeCheck:
    parameters = check.parameters()
    if check.stream is not None:
        return Quiet(check, parameters, local, None)
    return SnapshotCheck(replace(check, probe=find), parameters, local, None)


def make_agent() -> Agent:
    local = LocalNode(name="node-1", view=NodeView(), boot_id="boot")
    checks = [running(check, local) for check in load_registry(plug_ins=[]).values()]
    return Agent(local, checks, AgentIdentity(pod_uid="pod-1", version="1.2.3"))


def app() -> AgentService:
    return make_app(make_agent(), AgentMetrics("node-1", "1.2.3"))


def measuring_app() -> AgentService:
    """For a caller who may measure the network, while another heavy check runs: no iperf3 is started."""
    agent = make_agent()
    agent.queue.running_heavy = "gpumem"
    return make_app(agent, AgentMetrics("node-1", "1.2.3"), access=Trusting(None))


asking = schemathesis.openapi.from_asgi("/openapi.json", app()).exclude(path_regex=MEASURING)
measuring = schemathesis.openapi.from_asgi("/openapi.json", measuring_app()).include(path_regex=MEASURING)
limits = settings(
    max_examples=30, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None
)


@asking.parametrize()
@limits
def test_answers_are_as_the_document_says(case):
    case.call_and_validate()


@needs("ip")
@measuring.parametrize()
@limits
def test_bodies_are_taken_and_refused_as_the_document_says(case):
    case.call_and_validate()
