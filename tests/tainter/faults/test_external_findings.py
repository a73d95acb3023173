"""What sources beside NodeHealth have said, as long as it counts."""

import asyncio
import time
from typing import cast

import pytest

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ConfigError
from muster_kube.nodehealth import ClearedFault, ReportedFinding
from muster_tainter.controller import Tainter
from muster_tainter.faults.external_findings import KEYS_LIMIT, ExternalFindings
from muster_tainter.fleet.replica import Connections, Replica
from muster_tainter.metrics import TainterMetrics
from muster_tainter.policy.file import parse_policy

WAIT_S = 60.0


def finding(reason: str = "R", occurrence: int = 1) -> ReportedFinding:
    return ReportedFinding(component="host", reason=reason, verdict="FAIL", occurrence=occurrence)


def over(reason: str, occurrence: int = 1) -> ClearedFault:
    return ClearedFault("host", reason, occurrence, "source", "2026-01-01T00:00:00Z", "")


def test_what_one_source_says_leaves_room_for_the_others() -> None:
    outside = ExternalFindings(lambda _: None)
    for n in range(KEYS_LIMIT + 5):
        outside.add("n1", "podlog", finding(f"Pattern{n}"))
    outside.add("n1", "agent", finding("Silent"))
    found, _ = outside.of("n1")
    assert ("agent", "host", "Silent") in found
    assert len(found) == KEYS_LIMIT + 1
    assert outside.dropped == 5


class NoCluster:
    """An API server that nobody may call."""

    async def list_page(self, *_: object, **__: object) -> object:
        raise ConfigError("no token")

    get = create = patch = list_page


@pytest.fixture
def tainter() -> Tainter:
    made = Tainter(
        Connections.shared(cast("KubeClient", NoCluster())),
        lambda: parse_policy("rules: []\n"),
        Replica(may_write=lambda: True),
        TainterMetrics(),
    )

    async def synced() -> None:
        pass

    made.fleet.wait_synced = made.fleet.read_tainted = synced  # type: ignore[method-assign]  # nothing is there to be listed
    return made


async def test_who_leads_again_believes_no_source_of_its_earlier_time(tainter: Tainter) -> None:
    """Another leader has seen to it meanwhile; what it closed is forgotten after a day, and would be opened anew."""
    outside = tainter.fleet.external_findings
    outside.add("n1", "loki", finding("Xid79"))
    outside.add("n1", "agent", finding("Silent"))
    outside.close("n1", "condition", over("KernelDeadlock"))
    leading = asyncio.create_task(tainter.lead())
    deadline = time.monotonic() + WAIT_S
    try:
        while outside.of("n1")[1] or len(outside.of("n1")[0]) > 1:
            assert time.monotonic() < deadline, outside.of("n1")
            assert not leading.done() or leading.result()
            await asyncio.sleep(0.01)
    finally:
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
    assert set(outside.of("n1")[0]) == {("agent", "host", "Silent")}
