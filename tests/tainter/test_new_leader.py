"""What the first taint of a new leader waits for, and what it does not."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.kube.conftest import FakeApi, Reply, Stream, Wire

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.nodehealth import PATH
from muster_tainter.controller import Tainter
from muster_tainter.fleet.interface import NODES_PATH
from muster_tainter.fleet.replica import Connections, Replica
from muster_tainter.metrics import TainterMetrics
from muster_tainter.policy.file import parse_policy

LOOKS_A_TURN = 20
HEALTHY = 8 * LOOKS_A_TURN
POLICY = parse_policy("rules: [{name: all, match: {verdict: FAIL}, action: taint}]\n")


class CountingClient(KubeClient):
    """Notes how many nodes wait for their first look when a Node is written for the first time."""

    api: FakeApi
    tainter: Tainter
    waiting: int | None = None

    async def patch(self, path: str, body: object, **given: Any) -> Any:
        if self.waiting is None and path.startswith(NODES_PATH):
            self.waiting = self.tainter._depths()["routine"]
        return await super().patch(path, body, **given)


def listed(*items: Any) -> Reply:
    return Reply(200, {"kind": "List", "metadata": {"resourceVersion": "9"}, "items": list(items)})


def node(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": "5", "labels": {"muster.dev/health": "pass"}}}


@pytest.fixture
async def client(make: Any) -> AsyncIterator[CountingClient]:
    """Of an API server with healthy nodes, and one that fails."""
    api = FakeApi()
    await api.start()
    names = [f"n{number}" for number in range(HEALTHY)]
    ill = msgspec.to_builtins(make.health(make.finding()))
    ill["metadata"]["name"] = "ill"
    well = msgspec.to_builtins(make.health())
    healths = [well | {"metadata": well["metadata"] | {"name": name}} for name in names]
    nodes = [node(name) for name in [*names, "ill"]]
    api.on("GET", PATH, lambda asked: listed(*(() if "labelSelector" in asked.query else [*healths, ill])))
    for path in (NODES_PATH, PATH):
        api.on("WATCH", path, Stream())
    api.on("PATCH", f"{NODES_PATH}/ill", Reply(200, node("ill")))
    config = ClusterConfig(origin="test", server=f"http://127.0.0.1:{api.port}")
    async with CountingClient(config, timeout_s=30.0) as made:
        made.api = api
        api.on("GET", NODES_PATH, lambda asked: listed() if "labelSelector" in asked.query else listed(*nodes))
        yield made
    await api.stop()


@pytest.fixture
async def tainter(client: CountingClient, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Tainter]:
    monkeypatch.setattr("muster_tainter.controller.LOOKS_A_TURN", LOOKS_A_TURN)
    made = Tainter(Connections.shared(client), lambda: POLICY, Replica(may_write=lambda: True), TainterMetrics())
    client.tainter = made
    watching = asyncio.create_task(made.watch())
    yield made
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_it_does_not_wait_for_a_look_at_each_healthy_node(tainter: Tainter, client: CountingClient) -> None:
    leading = asyncio.create_task(tainter.lead())
    await Wire.until(lambda: client.waiting is not None)
    assert client.waiting is not None
    assert client.waiting < HEALTHY
    await Wire.until(lambda: not tainter._depths()["routine"])  # all have been looked at, in the end
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)


async def test_it_waits_for_the_pause_and_everything_else_is_read_meanwhile(
    tainter: Tainter, client: CountingClient
) -> None:
    known = asyncio.Event()

    async def pause_known() -> None:
        await known.wait()

    tainter.wait_pause_known = pause_known
    leading = asyncio.create_task(tainter.lead())
    api = client.api
    await Wire.until(lambda: any("labelSelector" in asked.query for asked in api.asked_for("GET", NODES_PATH)))
    await tainter.fleet.wait_synced()
    for _ in range(50):
        await asyncio.sleep(0)
    assert not api.asked_for("PATCH", f"{NODES_PATH}/ill")
    known.set()
    await Wire.until(lambda: bool(api.asked_for("PATCH", f"{NODES_PATH}/ill")))
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)


async def test_after_a_pause_all_are_decided_again_though_one_was_before_the_end_was_told(
    tainter: Tainter, client: CountingClient
) -> None:
    """Between the end of a pause and the look at all nodes other decisions may be made, which know of the end."""
    paused = "paused by ada"
    tainter.fleet.withheld = lambda: paused
    leading = asyncio.create_task(tainter.lead())

    def taints() -> list[Any]:
        bodies = (json.loads(asked.body) for asked in client.api.asked_for("PATCH", f"{NODES_PATH}/ill"))
        return [body["spec"]["taints"] for body in bodies if body.get("spec", {}).get("taints")]

    await Wire.until(lambda: bool(client.api.asked_for("PATCH", f"{NODES_PATH}/ill")))
    await Wire.until(lambda: not any(tainter._depths().values()))
    assert taints() == []
    paused = ""
    known = tainter.fleet.node("n0")
    assert known is not None
    await tainter._decider.decide(known)
    tainter.pause_changed()
    await Wire.until(lambda: bool(taints()))
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)


def test_it_does_not_wait_for_the_libraries_of_the_http_interface_and_of_the_webhook() -> None:
    words = "import muster_tainter.__main__, muster_tainter.app, sys; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    loaded = ended.stdout.split()
    assert "muster_tainter.app" in loaded
    assert not {"fastapi", "cryptography"}.intersection(loaded)
