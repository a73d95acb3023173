"""`/docs` of an agent in Chromium: Swagger draws every request and parameter, and asks nobody but the agent."""

import base64
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser.chromium import Browser
from tests.browser.served import served

from muster_agent.checks.local_node import LocalNode
from muster_agent.checks.node_check import NodeCheck
from muster_agent.checks.snapshot_check import SnapshotCheck
from muster_agent.checks.stream_check import StreamCheck
from muster_agent.http.routes import AgentService, make_app
from muster_agent.metrics.agent_metrics import AgentMetrics
from muster_agent.node_agent import Agent
from muster_checks.base.declaration import NodeView
from muster_checks.registry import load_registry
from muster_kube.http.server import listen, make_server
from muster_kube.nodehealth import AgentIdentity


def agent_app() -> AgentService:
    local = LocalNode(name="node-1", view=NodeView(), boot_id="boot")
    checks: list[NodeCheck] = []
    for check in load_registry(plug_ins=[]).values():
        kind = StreamCheck if check.stream is not None else SnapshotCheck
        checks.append(kind(check, check.parameters(), local, None))
    agent = Agent(local, checks, AgentIdentity(pod_uid="pod-1", version="1.2.3"))
    return make_app(agent, AgentMetrics("node-1", "1.2.3"))


@pytest.fixture(scope="module")
def agent() -> Iterator[str]:
    with served(make_server(agent_app()), listen("127.0.0.1", 0)) as url:
        yield url


def test_swagger_draws_the_agents_requests_and_parameters_without_the_internet(agent: str, browser: Browser) -> None:
    browser.window(1280, 1600, dark=False)
    browser.open(f"{agent}/docs")
    browser.until(lambda: browser.find("#operations-default-status_status_get"), "Swagger lists /status")
    paths = {each.text.replace("\u200b", "") for each in browser.find(".opblock-summary-path")}
    assert {"/status", "/report", "/checks", "/metrics", "/healthz", "/readyz", "/iperf/client"} <= paths
    browser.click("#operations-default-status_status_get button.opblock-summary-control")
    browser.until(lambda: browser.find("tr[data-param-name='min_bandwidth_gb_per_s']"), "pciebw's parameter is there")
    browser.click("#operations-default-status_status_get .try-out__btn")
    assert browser.find("tr[data-param-name='check'] select option[value='pciebw']"), "checks are a list to choose from"
    assert browser.requests(), "what it loads is seen"
    picture = base64.b64decode(browser.cdp("Page.captureScreenshot", {"format": "png"})["data"])
    if folder := os.environ.get("MUSTER_PICTURES"):
        Path(folder, "agent-docs.png").write_bytes(picture)


def test_swagger_asks_the_agent_alone_and_breaks_no_rule_of_the_page(agent: str, browser: Browser) -> None:
    browser.open(f"{agent}/docs")
    browser.until(lambda: browser.find(".opblock"), "Swagger is drawn")
    asked = browser.requests()
    assert {url.removeprefix(agent) for url in asked if url.startswith(agent)} >= {
        "/docs",
        "/docs/swagger-ui.css",
        "/docs/swagger-ui-bundle.js",
        "/openapi.json",
    }
    assert [url for url in asked if not url.startswith((agent, "data:", "about:"))] == []
    assert browser.complaints() == []
