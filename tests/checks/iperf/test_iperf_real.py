"""The real iperf3: over loopback, and between network namespaces that the test makes."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.checks.ping.namespaces import Inside, Wire, wire
from tests.loop_time import LoopTime
from tests.machine import needs
from tests.processes import processes_with

from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, run_probe
from muster_checks.base.vocabulary import Result, Verdict
from muster_checks.iperf import IPERF, IperfParameters
from muster_checks.iperf.server import run_server
from muster_checks.testing.recorded import lay_out

pytestmark = needs("iperf3")
FAR_S = 60.0  # no machine is that slow
SHORT = {"seconds": 1, "omit_seconds": 0, "clients": 2, "max_retransmits_per_gb": 1e9}


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number: int = free.getsockname()[1]
        return number


@pytest.fixture
def made() -> Iterator[Wire]:
    with wire() as pair:
        yield pair


async def measure(view: NodeView, address: str, port: int, **values: object) -> Result:
    given = {"server": address, "port": port, **SHORT, **values}
    return await run_probe(IPERF, view, IperfParameters.model_validate(given))


def still_runs(port: int) -> list[psutil.Process]:
    """The iperf3 of this port that are left."""
    return processes_with(lambda words: bool(words) and words[0].endswith("iperf3") and str(port) in words)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_a_pair_over_loopback_is_measured_and_nothing_stays_behind(port: int, address: str):
    view = NodeView()
    async with run_server(view, address, port, start_s=FAR_S):
        assert still_runs(port)
        result = await measure(view, address, port)
    assert result.verdict is Verdict.PASS, result
    bandwidth = result.findings[0].measurements[0]
    assert bandwidth.value > 0.1
    assert bandwidth.threshold is None  # loopback has no speed
    assert not still_runs(port)


async def test_a_server_that_nobody_used_is_ended_also_when_the_block_fails(port: int):
    serving = run_server(NodeView(), "127.0.0.1", port, start_s=FAR_S)
    await serving.__aenter__()
    assert still_runs(port)
    failure = LookupError()
    assert not await serving.__aexit__(LookupError, failure, None)
    assert not still_runs(port)


async def test_a_server_serves_no_longer_than_its_limit(port: int, loop_time: LoopTime):
    async with run_server(NodeView(), "127.0.0.1", port, limit_s=60.0, start_s=FAR_S):
        # the client's own limit is beyond the server's
        measuring = asyncio.create_task(measure(NodeView(), "127.0.0.1", port, seconds=60))
        async with asyncio.timeout(FAR_S):
            while len(still_runs(port)) < 2:  # noqa: ASYNC110 - told by no event: a process begins
                await asyncio.sleep(0.02)
        await loop_time.passes(61)
        result = await measuring
        assert result.verdict is Verdict.UNKNOWN, result
        assert not still_runs(port)


async def test_an_address_that_is_not_here_cannot_be_served(port: int):
    with pytest.raises(CannotTell, match="listener"):
        async with run_server(NodeView(), "192.0.2.77", port):
            raise AssertionError


async def test_without_a_server_the_pair_is_unknown(port: int):
    result = await measure(NodeView(), "127.0.0.1", port)
    assert result.verdict is Verdict.UNKNOWN
    assert "Connection refused" in result.message


def ends(made: Wire, root: Path) -> tuple[NodeView, NodeView]:
    """This end, whose NIC is said to do 10 Gbit/s, and the other, whose open ports are seen through a process there."""
    lay_out(root / "here", {"/sys/class/net/wire/speed": 10_000, "/sys/class/net/wire/device/vendor": 0})
    (root / "there" / "proc").mkdir(parents=True)
    (root / "there" / "proc" / "net").symlink_to(f"/proc/{made.resident(made.there)}/net")
    return NodeView(root / "here", Inside(made.here)), NodeView(root / "there", Inside(made.there))


async def test_a_narrow_wire_is_slow_against_its_nics_rate(made: Wire, tmp_path: Path):
    here, there = ends(made, tmp_path)
    made.narrow("rate", "200mbit", "burst", "20k", "limit", "100k")
    async with run_server(there, "10.77.0.2", 5201, start_s=FAR_S):
        result = await measure(here, "10.77.0.2", 5201, seconds=5)
    assert (result.verdict, result.reason) == (Verdict.WARN, "SlowPair"), result
    bandwidth = result.findings[0].measurements[0]
    assert 0.05 < bandwidth.value < 0.25
    assert bandwidth.threshold == pytest.approx(7.0)


async def test_a_wire_that_carries_its_rate_passes(made: Wire, tmp_path: Path):
    here, there = ends(made, tmp_path)
    made.narrow("rate", "200mbit", "burst", "100k", "limit", "400k")
    async with run_server(there, "fd77::2", 5201, start_s=FAR_S):
        result = await measure(here, "fd77::2", 5201, link_gbit_per_s=0.2, seconds=10)
    assert result.verdict is Verdict.PASS, result
    assert result.findings[0].component == "nic/wire"


async def test_a_connection_that_carries_no_data_is_found(made: Wire, tmp_path: Path):
    here, there = ends(made, tmp_path)
    # a device on the way takes smaller frames than both ends believe
    for namespace in (made.here, made.there):
        made.ip(namespace, "link", "set", "wire", "gso_max_segs", "1")
    made.ip(made.there, "link", "set", "wire", "mtu", "1400")
    made.ip(made.there, "route", "replace", "10.77.0.0/24", "dev", "wire", "src", "10.77.0.2", "advmss", "1460")
    async with run_server(there, "10.77.0.2", 5201, start_s=FAR_S):
        result = await measure(here, "10.77.0.2", 5201)
    assert (result.verdict, result.reason) == (Verdict.WARN, "SlowPair"), result
    assert "MTU" in result.message


async def test_a_wire_that_is_cut_leaves_the_pair_unknown(made: Wire, tmp_path: Path):
    here, there = ends(made, tmp_path)
    async with run_server(there, "10.77.0.2", 5201, start_s=FAR_S):
        made.ip(made.there, "link", "set", "wire", "down")
        result = await measure(here, "10.77.0.2", 5201)
    assert result.verdict is Verdict.UNKNOWN, result
    assert "connect" in result.message
