"""Whom an agent's ping asks, and what finding that out costs the API server."""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, cast

import msgspec
import pytest

from muster_agent.fleet.members import AgentEndpointSlice, AgentService
from muster_agent.fleet.ping_peers import AGAIN_S, SETTLED_S, SLICES, PingPeers, believed_up
from muster_checks.base.counter_history import History
from muster_checks.base.execution import CannotTell, run_probe
from muster_checks.base.vocabulary import Result, Verdict
from muster_checks.ping import PING, PingParameters
from muster_checks.ping.neighbours import NodeAmongOthers
from muster_checks.testing.recorded import RecordedCommands
from muster_kube.api.client import KubeClient, ListPage
from muster_kube.api.errors import NotFound, Unreachable

SOUND = b"""--- 10.0.0.2 ping statistics ---
10 packets transmitted, 10 received, 0% packet loss, time 1806ms
rtt min/avg/max/mdev = 0.032/0.166/1.255/0.363 ms
"""
SILENT = b"""--- 10.0.0.2 ping statistics ---
10 packets transmitted, 0 received, 100% packet loss, time 1806ms
"""


def endpoint(node: str, address: str, **conditions: bool) -> dict[str, Any]:
    return {"addresses": [address], "nodeName": node, "conditions": conditions}


def slice_of(name: str, *endpoints: dict[str, Any]) -> AgentEndpointSlice:
    return msgspec.convert(
        {"metadata": {"name": name}, "addressType": "IPv4", "endpoints": list(endpoints)}, AgentEndpointSlice
    )


class Server:
    """The API server's EndpointSlices, by name; counts what it is asked."""

    def __init__(self, *slices: AgentEndpointSlice) -> None:
        self.slices = {each.metadata.name: each for each in slices}
        self.asked: list[Mapping[str, Any]] = []
        self.fails: Exception | None = None
        self.version = "v1"

    async def list_pages(
        self,
        path: str,
        _kind: type,
        *,
        params: Mapping[str, Any],
        transform: Callable[[AgentEndpointSlice], AgentEndpointSlice],
        timeout_s: float,
    ) -> AsyncIterator[ListPage[AgentEndpointSlice]]:
        assert timeout_s > 0
        assert path.endswith("/namespaces/muster/endpointslices")
        self.asked.append(params)
        if self.fails is not None:
            raise self.fails
        if f"/{self.version}/" not in path:
            raise NotFound(404, "NotFound", "no such version", path)
        name = params.get("fieldSelector", "").removeprefix("metadata.name=")
        found = [each for each in self.slices.values() if not name or each.metadata.name == name]
        yield ListPage([transform(each) for each in found], "1")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Setting:
    """An agent on node-1. ``pings``: output of ping by address; all others are sound."""

    def __init__(self, *slices: AgentEndpointSlice) -> None:
        self.server = Server(*slices)
        self.clock = Clock()
        self.peers = PingPeers("node-1", AgentService("muster", "agents"), clock=self.clock)
        self.commands = RecordedCommands({})
        self.view = NodeAmongOthers(
            commands=self.commands, history=History(self.clock), name="node-1", neighbours=self.peers
        )

    def connected(self) -> "Setting":
        self.peers.connect(cast("KubeClient", self.server))
        return self

    async def settled(self) -> "Setting":
        """So long after its start that nothing is listed any more."""
        while self.clock.now < 5 * SETTLED_S:
            self.clock.now += SETTLED_S / 50
            await self.peers.known()
        self.server.asked.clear()
        return self

    async def run(self, silent: tuple[str, ...] = (), sound: tuple[str, ...] = (), **values: object) -> Result:
        parameters = PingParameters.model_validate(values)
        self.commands.answers |= {ping(parameters, address): SILENT for address in silent}
        self.commands.answers |= {ping(parameters, address): SOUND for address in sound}
        return await run_probe(PING, self.view, parameters)


def ping(parameters: PingParameters, address: str) -> str:
    return f"ping -n -q -c {parameters.count} -i {parameters.interval_s:g} -W 1 -w 4 {address}"


TWO = slice_of("agents-a", endpoint("node-1", "10.0.0.1"), endpoint("node-2", "10.0.0.2"))


async def test_the_other_agents_are_asked_and_not_the_own_node():
    setting = Setting(TWO).connected()
    result = await setting.run(sound=("10.0.0.2",))
    assert result.verdict is Verdict.PASS, result
    assert {finding.component for finding in result.findings} == {"host", "peer/node-2"}


async def test_many_rounds_of_a_settled_fleet_cost_one_list():
    slices = [slice_of(f"agents-{n}", endpoint(f"node-{n + 2}", "10.0.0.2")) for n in range(SLICES)]
    setting = Setting(*slices).connected()
    for _ in range(2_000):
        assert (await setting.run(sound=("10.0.0.2",))).verdict is Verdict.PASS
        setting.clock.now += 60
    assert len(setting.server.asked) == 1


async def test_who_came_before_the_others_looks_again_ever_more_rarely_and_then_no_more():
    setting = Setting(slice_of("agents-a")).connected()
    assert not await setting.peers.known()
    setting.server.slices["agents-a"] = TWO
    setting.clock.now += AGAIN_S
    assert await setting.peers.known() == {"node-2": "10.0.0.2"}
    while setting.clock.now < 5 * SETTLED_S:
        setting.clock.now += 60
        await setting.peers.known()
    assert 5 < len(setting.server.asked) < 15


async def test_of_a_large_fleet_a_few_slices_are_kept_and_not_the_same_by_all():
    slices = [slice_of(f"agents-{n}", endpoint(f"node-{n + 100}", "10.0.0.2")) for n in range(150)]
    drawn = set()
    for number in range(20):
        peers = PingPeers(f"node-{number}", AgentService("muster", "agents"))
        peers.connect(cast("KubeClient", Server(*slices)))
        known = await peers.known()
        assert len(known) == SLICES
        drawn |= known.keys()
    assert len(drawn) > 40


async def test_a_silent_peer_that_has_moved_is_asked_where_it_is_now():
    setting = await Setting(TWO).connected().settled()
    await setting.run(sound=("10.0.0.2",))
    setting.server.slices["agents-a"] = slice_of("agents-a", endpoint("node-2", "10.0.0.9"))
    setting.clock.now += AGAIN_S
    result = await setting.run(silent=("10.0.0.2",), sound=("10.0.0.9",))
    assert result.verdict is Verdict.PASS, result


async def test_a_silent_peer_that_is_known_to_be_down_is_not_spoken_of():
    both = (endpoint("node-2", "10.0.0.2"), endpoint("node-3", "10.0.0.3"))
    setting = await Setting(slice_of("agents-a", *both)).connected().settled()
    await setting.run(sound=("10.0.0.2", "10.0.0.3"))
    gone = (endpoint("node-2", "10.0.0.2", ready=False), endpoint("node-3", "10.0.0.3"))
    setting.server.slices["agents-a"] = slice_of("agents-a", *gone)
    setting.clock.now += AGAIN_S
    result = await setting.run(silent=("10.0.0.2",))
    assert {finding.component for finding in result.findings} == {"host", "peer/node-3"}, result
    assert result.verdict is Verdict.PASS


async def test_when_all_of_a_turn_have_gone_it_is_unknown():
    setting = await Setting(TWO).connected().settled()
    await setting.run(sound=("10.0.0.2",))
    setting.server.slices.clear()
    setting.clock.now += AGAIN_S
    result = await setting.run(silent=("10.0.0.2",))
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "PeersGone"), result


async def test_a_peer_that_stays_silent_where_it_should_be_is_told_of_and_looked_up_ever_more_rarely():
    setting = await Setting(TWO).connected().settled()
    for _ in range(24 * 60):
        result = await setting.run(silent=("10.0.0.2",))
        assert (result.verdict, result.reason) == (Verdict.WARN, "NoAnswer"), result
        setting.clock.now += 60
    looked_up = [params for params in setting.server.asked if "fieldSelector" in params]
    assert 5 < len(looked_up) < 40  # of 1,440 runs


async def test_silence_counts_when_the_api_server_cannot_be_asked_either():
    setting = await Setting(TWO).connected().settled()
    await setting.run(sound=("10.0.0.2",))
    setting.server.fails = Unreachable("no route", "/")
    setting.clock.now += AGAIN_S
    result = await setting.run(silent=("10.0.0.2",))
    assert result.reason == "NoAnswer", result


async def test_an_api_server_that_says_nothing_at_the_start_is_unknown_and_no_empty_fleet():
    setting = Setting(TWO).connected()
    setting.server.fails = Unreachable("no route", "/")
    result = await setting.run()
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "PeersUnknown")
    assert "no route" in result.message
    setting.server.fails = None
    assert (await setting.run(sound=("10.0.0.2",))).verdict is Verdict.PASS


async def test_an_older_cluster_is_asked_in_its_own_version():
    setting = Setting(TWO).connected()
    setting.server.version = "v1beta1"
    assert await setting.peers.known() == {"node-2": "10.0.0.2"}


async def test_all_asks_every_known_node_and_no_sample_of_them():
    names = {f"node-{number}": f"10.0.1.{number}" for number in range(2, 102)}
    setting = Setting(slice_of("a", *(endpoint(*each) for each in names.items()))).connected()
    for written, asked in (("", 8), ("all", 100)):
        result = await setting.run(sound=tuple(names.values()), peers=written)
        assert result.verdict is Verdict.PASS
        found = next(finding for finding in result.findings if finding.component == "host")
        assert {"peers": asked, "peers_silent": 0}.items() <= {m.name: m.value for m in found.measurements}.items()


async def test_peers_that_were_named_win():
    setting = Setting(TWO).connected()
    result = await setting.run(sound=("10.9.9.9",), peers="other=10.9.9.9")
    assert {finding.component for finding in result.findings} == {"host", "peer/other"}
    assert not setting.server.asked


@pytest.mark.parametrize("said", [{"terminating": True}, {"serving": False}, {"ready": False}])
def test_who_is_known_to_be_down_is_no_peer(said: dict[str, bool]):
    assert believed_up(slice_of("a", endpoint("node-2", "10.0.0.2", **said)), "node-1") == {}


async def test_without_any_slice_nobody_is_known_and_ping_is_skipped():
    result = await Setting().connected().run()
    assert (result.verdict, result.reason) == (Verdict.SKIP, "NoPeers")


async def test_an_agent_that_never_reaches_its_cluster_says_so():
    with pytest.raises(CannotTell) as raised:
        await PingPeers("node-1", AgentService("muster", "agents"), connected_s=0.01).known()
    assert raised.value.reason == "PeersUnknown"
