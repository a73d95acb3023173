"""The real ping, between network namespaces that the test makes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.checks.ping.namespaces import Inside, Wire, wire

from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import run_probe
from muster_checks.base.vocabulary import Result, Verdict
from muster_checks.ping import PING, PingParameters

# a busy machine is late, too; ping is given two seconds more than it needs for these
PATIENT = {"max_rtt_ms": 2000, "max_mdev_ms": 2000, "count": 5, "interval_s": 1.0}
EIGHT = tuple(f"10.77.0.{number}/24" for number in range(11, 19))
PEERS = ",".join(f"node-{number}=10.77.0.{number}" for number in range(11, 19))


@pytest.fixture
def made() -> Iterator[Wire]:
    with wire() as pair:
        yield pair


async def ping(made: Wire, peers: str, view: NodeView | None = None, **values: object) -> Result:
    node = view or view_of(made)
    return await run_probe(PING, node, PingParameters.model_validate({"peers": peers, **PATIENT, **values}))


def view_of(made: Wire) -> NodeView:
    return NodeView(Path("/"), Inside(made.here), name="node-1")


async def test_peers_that_answer_pass_with_loss_and_round_trip(made: Wire):
    made.add_addresses(*EIGHT)
    result = await ping(made, PEERS)
    assert result.verdict is Verdict.PASS, result
    assert len(result.findings) == 9
    named = {finding.component: {m.name: m.value for m in finding.measurements} for finding in result.findings}
    assert named["host"]["peers"] == 8
    assert named["peer/node-11"]["loss"] == 0
    assert 0 < named["peer/node-11"]["rtt"] < 1000
    assert named["peer/node-11"]["mdev"] >= 0


async def test_ipv6_is_asked_as_well(made: Wire):
    result = await ping(made, "node-2=fd77::2")
    assert result.verdict is Verdict.PASS, result


async def test_one_peer_that_does_not_answer_is_named_and_this_node_passes(made: Wire):
    made.add_addresses(*EIGHT[1:])
    result = await ping(made, PEERS)
    assert (result.verdict, result.findings[0].component) == (Verdict.WARN, "peer/node-11")
    assert {f.component for f in result.findings if f.verdict is not Verdict.PASS} == {"peer/node-11"}


async def test_when_the_wire_is_cut_it_is_this_node(made: Wire):
    made.add_addresses(*EIGHT)
    view = view_of(made)
    assert (await ping(made, PEERS, view)).verdict is Verdict.PASS
    made.ip(made.there, "link", "set", "wire", "down")
    result = await ping(made, PEERS, view)
    assert (result.verdict, result.reason, result.findings[0].component) == (Verdict.FAIL, "PeersSilent", "host")
    assert len(result.findings) == 1


async def test_no_route_at_all_is_silence_and_not_an_error(made: Wire):
    made.add_addresses(*EIGHT)
    view = view_of(made)
    assert (await ping(made, PEERS, view)).verdict is Verdict.PASS
    made.ip(made.here, "addr", "del", "10.77.0.1/24", "dev", "wire")
    result = await ping(made, PEERS, view)
    assert (result.verdict, result.findings[0].component) == (Verdict.FAIL, "host"), result


async def test_peers_that_ignore_icmp_are_silent(made: Wire):
    made.add_addresses(*EIGHT)
    made.inside(made.there, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/icmp_echo_ignore_all")
    result = await ping(made, PEERS)
    assert (result.verdict, result.reason) == (Verdict.WARN, "PeersSilent")
    assert "filtered" in result.message


async def test_lost_and_late_answers_of_a_single_peer_warn(made: Wire):
    # 98 bytes a question and 125 bytes a second, one of them waiting at most: of ten in 1.8 s about half get through
    made.narrow("rate", "1kbit", "burst", "100", "limit", "100")
    result = await ping(made, "node-2=10.77.0.2", count=10, interval_s=0.2, max_rtt_ms=10)
    assert (result.verdict, result.reason) == (Verdict.WARN, "Poor"), result
    named = {m.name: m.value for m in result.findings[0].measurements}
    assert 0 < named["loss"] < 100
    assert named["rtt"] > 10


async def test_poor_answers_of_all_peers_are_this_nodes_doing(made: Wire):
    made.add_addresses(*EIGHT)
    made.narrow("rate", "20kbit", "burst", "200", "limit", "600")
    result = await ping(made, PEERS, count=5, interval_s=0.2, max_rtt_ms=10)
    assert (result.verdict, result.reason, result.findings[0].component) == (Verdict.WARN, "NetworkPoor", "host"), (
        result
    )
