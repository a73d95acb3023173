"""A Node is written and no answer comes: what the write did is logged and counted once, as soon as it is known."""

import asyncio
import json
import logging
from typing import Any

import pytest
from tests.kube.conftest import Asked, Drop, Reply, Wire
from tests.tainter.test_new_leader import CountingClient, client, node, tainter  # noqa: F401 - fixtures

from muster_tainter.controller import Tainter
from muster_tainter.fleet.interface import NODES_PATH

ILL = f"{NODES_PATH}/ill"
CONFLICT = Reply(409, {"kind": "Status", "reason": "Conflict", "message": "the object has been modified", "code": 409})
OTHERS = {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}


class IllNode:
    """On the API server. lost: writes whose answer does not come, and whether each is made. Others write after them."""

    def __init__(self, *lost: bool) -> None:
        self._lost = list(lost)
        self.now = node("ill")

    def patch(self, asked: Asked) -> Reply | Drop:
        change = json.loads(asked.body)
        meta = self.now["metadata"]
        if change["metadata"]["resourceVersion"] != meta["resourceVersion"]:
            return CONFLICT
        lost = self._lost.pop(0) if self._lost else None
        if lost is not False:
            for field in ("labels", "annotations"):
                meta[field] = meta.get(field, {}) | change["metadata"].get(field, {})
            meta["resourceVersion"] = str(int(meta["resourceVersion"]) + 1)
            self.now["spec"] = change.get("spec", self.now.get("spec", {}))
        if lost:
            meta["resourceVersion"] = str(int(meta["resourceVersion"]) + 1)
            self.now["spec"]["taints"].append(OTHERS)
        return Reply(200, self.now) if lost is None else Drop()


@pytest.mark.parametrize("lost", [(), (True,), (False,), (False, True), (False, False, False, False, False, True)])
async def test_what_was_written_is_logged_and_counted_once(
    tainter: Tainter,  # noqa: F811 - the fixture
    client: CountingClient,  # noqa: F811 - the fixture
    caplog: pytest.LogCaptureFixture,
    lost: tuple[bool, ...],
) -> None:
    ill = IllNode(*lost)
    client.api.on("PATCH", ILL, ill.patch)
    client.api.on("GET", ILL, lambda _: Reply(200, ill.now))
    caplog.set_level(logging.INFO, "muster_tainter.taints")
    leading = asyncio.create_task(tainter.lead())

    def said() -> list[str]:
        return [line for line in caplog.messages if line.startswith("Node ill tainted: muster.dev/faulty")]

    def at_rest() -> bool:
        queues = (tainter._urgent, tainter._routine)
        return all(queue is not None and not len(queue) and not queue.in_hand for queue in queues)

    await Wire.until(said)
    for _ in range(2):  # another look finds nothing new
        await Wire.until(at_rest)
        tainter.look_at_all()
    await Wire.until(at_rest)
    assert len(said()) == 1
    assert _count(tainter, "muster_tainter_taint_changes_total", what="set") == 1
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)


def _count(tainter: Tainter, name: str, **labels: str) -> float:  # noqa: F811 - the fixture
    registry: Any = tainter._metrics.registry
    return registry.get_sample_value(name, labels) or 0.0
