"""The words of messages that people read on the fleet page, and of refusals. Nothing else asserts them."""

import httpx2
import pytest
from tests.browser.sample_fleet import LINK_DOWN, NO_TOOL, XID31, SampleFleet, make_fleet, xid79
from tests.tainter.http.service import NOW, bare_service

from muster_tainter.page.rows import row

FULL = "budget: pool h100 has 2 of 2 nodes tainted (3% of 48)"


@pytest.fixture
def fleet() -> SampleFleet:
    return make_fleet(1, NOW)


def done(fleet: SampleFleet) -> str:
    """What the page says was done about the only node."""
    [name] = fleet.nodes
    return str(row(fleet.nodes[name], fleet.healths[name], fleet.policy, NOW)[8])


def test_of_a_tainted_node(fleet: SampleFleet) -> None:
    fleet.break_node(next(iter(fleet.nodes)), "dmesg", xid79(), ago=90)
    assert done(fleet) == "tainted by rule hardware"


def test_of_a_node_that_waits_for_room(fleet: SampleFleet) -> None:
    fleet.break_node(next(iter(fleet.nodes)), "dmesg", xid79(), withhold=FULL)
    assert done(fleet) == f"not tainted: {FULL}"


def test_of_a_failure_without_a_taint(fleet: SampleFleet) -> None:
    fleet.break_node(next(iter(fleet.nodes)), "dmesg", XID31)
    assert done(fleet) == "reported as an Event, no taint"


def test_of_what_was_not_measured(fleet: SampleFleet) -> None:
    fleet.break_node(next(iter(fleet.nodes)), "dcgm", NO_TOOL)
    assert done(fleet) == "not measured, no taint"


def test_of_proof_under_way(fleet: SampleFleet) -> None:
    [name] = fleet.nodes
    fleet.break_node(name, "nic", LINK_DOWN, ago=600)
    fleet.ask(name, "nic", "muster-tainter-proof", f"proof-0123456789-{int(NOW) - 10}")
    assert done(fleet) == "still tainted, verification is running"


async def test_of_a_request_without_a_token() -> None:
    transport = httpx2.ASGITransport(app=bare_service())
    async with httpx2.AsyncClient(transport=transport, base_url="http://tainter") as http:
        refused = await http.post("/api/clear", json={"node": "n1"})
    assert refused.json()["message"] == "expected a header Authorization: Bearer TOKEN"
