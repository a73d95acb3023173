"""One question to many nodes: an answer for every node, whatever it does, and never too many asked at once."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from muster_agent.checks.local_node import LocalNode
from muster_agent.checks.node_check import NodeCheck
from muster_agent.checks.snapshot_check import SnapshotCheck
from muster_agent.fleet import FleetLimits, PeerAgent
from muster_agent.fleet.fanout import LIGHT_AT_ONCE, MARGIN_S, FanOut, LivenessProbe, timeout_s
from muster_agent.fleet.peer_client import PeerCallFailed
from muster_agent.query.node_answer import CheckAnswer, NodeAnswer
from muster_agent.query.status_query import IperfOptions, StatusParameters, StatusQuery, read_query
from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Result, Verdict
from muster_checks.iperf import IPERF


class Depth(Parameters):
    r: int = 1


async def _probe(_node: NodeView, _parameters: Depth) -> Sequence[Any]:
    return ()


def declared(name: str, cost: Cost, limit_s: float) -> Check:
    return Check(
        name=name,
        description=name,
        cost=cost,
        parameters=Depth,
        timeout_s=limit_s,
        devices=("gpu",),
        period_s=60.0,
        probe=_probe,
    )


LIGHT = declared("temp", Cost.LIGHT, 20)
OTHER = declared("fans", Cost.LIGHT, 30)
HEAVY = declared("burn", Cost.HEAVY, 500)
LOCAL = LocalNode(name="node-1", view=NodeView(), boot_id="boot")
CHECKS: dict[str, NodeCheck] = {
    check.name: SnapshotCheck(check, check.parameters(), LOCAL, None) for check in (LIGHT, OTHER, HEAVY, IPERF)
}


def asked(**query: str) -> StatusQuery:
    return read_query(StatusParameters.model_validate(query), CHECKS)


def sound(node: str, *checks: str, verdict: Verdict = Verdict.PASS) -> dict[str, Any]:
    """What a peer sends."""
    results = tuple(CheckAnswer(check=check, verdict=verdict) for check in checks)
    answer = NodeAnswer(node=node, verdict=verdict, results=results)
    found: dict[str, Any] = msgspec.to_builtins({"nodes": [answer], "summary": {}, "runtimeSeconds": 0.1})
    return found


Play = Callable[[Mapping[str, str]], Awaitable[Any]]


class Calls:
    """Peers by name, each played by a function of the query. Counts who is being asked."""

    def __init__(self) -> None:
        self.peers: dict[str, Play] = {}
        self.checks: dict[str, list[str]] = {}
        self.dead: set[str] = set()
        self.asked: list[tuple[str, str, dict[str, str], float]] = []
        self.now: Counter[str] = Counter()
        self.most = 0
        self.cancelled = 0
        self.alive_asked = 0

    async def get_json(self, peer: PeerAgent, path: str, params: Any, timeout_s: float) -> Any:
        query = dict(params)
        self.asked.append((peer.node, path, query, timeout_s))
        if path == "/checks":
            return {"checks": [{"name": name, "cost": "light"} for name in self.checks[peer.node]]}
        self.now[peer.node] += 1
        self.most = max(self.most, self.now.total())
        try:
            play = self.peers.get(peer.node)
            return await play(query) if play else sound(peer.node, *query.get("check", "temp,fans").split(","))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.now[peer.node] -= 1

    async def post_json(self, peer: PeerAgent, path: str, body: object, timeout_s: float) -> Any:
        raise NotImplementedError

    def stream(self, peer: PeerAgent, path: str, body: object) -> Any:
        raise NotImplementedError

    async def alive(self, peer: PeerAgent, timeout_s: float) -> bool:
        self.alive_asked += 1
        return peer.node not in self.dead


def fan_out(calls: Calls, **settings: Any) -> FanOut:
    limits = FleetLimits(**{name: settings.pop(name) for name in FleetLimits.__struct_fields__ if name in settings})
    return FanOut("node-1", calls, limits, **settings)


def fleet(count: int) -> list[PeerAgent]:
    return [PeerAgent(f"node-{n}", f"10.0.0.{n}") for n in range(1, count + 1)]


async def here(question: StatusQuery) -> NodeAnswer:
    [*_, answer] = msgspec.convert(sound("node-1", *question.check_names)["nodes"], list[NodeAnswer])
    return answer


async def all_of(fan: FanOut, peers: Sequence[PeerAgent], question: StatusQuery) -> dict[str, NodeAnswer]:
    async with aclosing(fan.ask(peers, question, here)) as answers:
        found = [answer async for answer in answers]
    assert len(found) == len(peers), "one answer for each"
    return {answer.node: answer for answer in found}


def reasons(answer: NodeAnswer) -> dict[str, str]:
    return {result.check: result.reason for result in answer.results}


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - any condition, not only an event's
            await asyncio.sleep(0)


@pytest.fixture
def calls() -> Calls:
    return Calls()


async def test_every_node_answers_for_itself_and_this_one_without_a_call(calls: Calls):
    found = await all_of(fan_out(calls), fleet(3), asked(check="temp,burn", r="2", force="true"))
    assert {node: answer.verdict for node, answer in found.items()} == {f"node-{n}": Verdict.PASS for n in (1, 2, 3)}
    assert {answer.endpoint for answer in found.values()} == {f"10.0.0.{n}:3333" for n in (1, 2, 3)}
    assert [(node, path, query) for node, path, query, _ in calls.asked] == [
        (node, "/status", {"host": node, "check": "temp,burn", "r": "2", "force": "true", "format": "json"})
        for node in ("node-2", "node-3")
    ]


async def test_a_default_question_leaves_the_choice_of_checks_to_each_node(calls: Calls):
    found = await all_of(fan_out(calls), fleet(2), asked())
    assert "check" not in calls.asked[0][2]
    assert reasons(found["node-2"]) == {"temp": "", "fans": ""}


def plays(answer: Any) -> Play:
    async def play(_query: Mapping[str, str]) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return play


@pytest.mark.parametrize(
    ("answer", "reason", "said"),
    [
        (PeerCallFailed("Unreachable", "10.0.0.2:3333: connection refused"), "Unreachable", "connection refused"),
        (PeerCallFailed("NoAnswer", "within 9 s"), "NoAnswer", "within 9 s"),
        (PeerCallFailed("BadAnswer", "no JSON"), "BadAnswer", "no JSON"),
        (PeerCallFailed("WrongNode", "is not the agent of", 421), "WrongNode", "is not the agent"),
        (PeerCallFailed("Refused", "force: takes a right", 403), "Refused", "takes a right"),
        (PeerCallFailed("Refused", "busy", 503), "Refused", "busy"),
        (RuntimeError("a fault of ours"), "Error", "RuntimeError: a fault of ours"),
        (sound("node-9", "temp"), "WrongNode", "'node-9'"),
        ({"nodes": sound("node-2", "temp")["nodes"] * 2}, "BadAnswer", " 2 "),
        ({"nodes": []}, "BadAnswer", " 0 "),
        ([], "BadAnswer", ""),
        (None, "BadAnswer", ""),
        ({"nodes": [{"node": 7, "verdict": "PASS"}]}, "BadAnswer", "node"),
        ({"nodes": [{"node": "node-2", "verdict": "FINE"}]}, "BadAnswer", "FINE"),
    ],
)
async def test_whatever_a_node_does_is_an_answer_of_that_node_alone(calls: Calls, answer: Any, reason: str, said: str):
    calls.peers["node-2"] = plays(answer)
    found = await all_of(fan_out(calls), fleet(4), asked(check="temp,burn"))
    bad = found.pop("node-2")
    assert (bad.verdict, reasons(bad)) == (Verdict.UNKNOWN, {"temp": reason, "burn": reason})
    assert said in bad.error
    assert bad.endpoint == "10.0.0.2:3333"
    assert {answer.verdict for answer in found.values()} == {Verdict.PASS}


async def test_a_node_without_an_agent_is_unknown_and_nobody_is_asked(calls: Calls):
    found = await all_of(fan_out(calls), [PeerAgent("node-2", "")], asked(check="temp"))
    assert (found["node-2"].verdict, reasons(found["node-2"])) == (Verdict.UNKNOWN, {"temp": "NoAgent"})
    assert found["node-2"].endpoint == ""
    assert calls.asked == []


async def test_this_node_answers_though_the_service_does_not_name_it(calls: Calls):
    found = await all_of(fan_out(calls), [PeerAgent("node-1", "")], asked(check="temp"))
    assert found["node-1"].verdict is Verdict.PASS


async def test_a_verdict_is_judged_from_the_results_and_not_taken_on_trust(calls: Calls):
    lying = sound("node-2", "temp", verdict=Verdict.FAIL)
    lying["nodes"][0]["verdict"] = "PASS"
    calls.peers["node-2"] = plays(lying)
    assert (await all_of(fan_out(calls), fleet(2), asked(check="temp")))["node-2"].verdict is Verdict.FAIL


async def test_a_result_that_is_left_out_is_unknown_and_one_that_nobody_asked_for_is_dropped(calls: Calls):
    calls.peers["node-2"] = plays(sound("node-2", "fans", "rogue"))
    answer = (await all_of(fan_out(calls), fleet(2), asked(check="temp,fans")))["node-2"]
    assert reasons(answer) == {"temp": "NoSuchCheck", "fans": ""}
    assert answer.verdict is Verdict.UNKNOWN


async def test_a_check_that_a_node_lacks_costs_it_no_other_check(calls: Calls):
    async def strict(query: Mapping[str, str]) -> Any:
        if "fans" in query["check"]:
            raise PeerCallFailed("Refused", "check: 'fans': expected all or one of temp, burn", 400)
        return sound("node-2", *query["check"].split(","))

    calls.peers["node-2"], calls.checks["node-2"] = strict, ["temp", "burn"]
    answer = (await all_of(fan_out(calls), fleet(2), asked(check="temp,fans,burn")))["node-2"]
    assert reasons(answer) == {"temp": "", "fans": "NoSuchCheck", "burn": ""}
    assert all(name in answer.results[1].message for name in ("node-2", "fans"))


async def test_a_node_that_has_none_of_the_checks_says_so(calls: Calls):
    calls.peers["node-2"] = plays(PeerCallFailed("Refused", "check: 'fans'", 400))
    calls.checks["node-2"] = ["dmesg"]
    answer = (await all_of(fan_out(calls), fleet(2), asked(check="fans")))["node-2"]
    assert (answer.verdict, reasons(answer)) == (Verdict.UNKNOWN, {"fans": "NoSuchCheck"})


async def test_a_question_that_a_node_calls_wrong_for_another_reason_is_refused(calls: Calls):
    calls.peers["node-2"] = plays(PeerCallFailed("Refused", "r: 9: expected 1 to 4", 400))
    calls.checks["node-2"] = ["temp"]
    answer = (await all_of(fan_out(calls), fleet(2), asked(check="temp")))["node-2"]
    assert reasons(answer) == {"temp": "Refused"}
    assert "expected 1 to 4" in answer.error


class Gate:
    """Peers that wait until they are let through."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self.open = asyncio.Event()

    async def __call__(self, query: Mapping[str, str]) -> Any:
        await self.open.wait()
        return sound(query["host"], *query["check"].split(","))


@pytest.mark.parametrize(
    ("batch", "settings", "at_once"),
    [
        ({}, {"fleet_at_once": 7}, 7),
        ({"batch": "3"}, {"fleet_at_once": 7}, 3),
        ({"batch": "500"}, {"fleet_at_once": 7}, 7),
        ({}, {"fleet_at_once": 1024}, 40),
    ],
)
async def test_so_many_nodes_are_asked_at_once_and_no_more(
    calls: Calls, batch: dict[str, str], settings: dict[str, int], at_once: int
):
    gate = Gate(calls)
    calls.peers = {f"node-{n}": gate for n in range(2, 42)}
    asking = asyncio.create_task(all_of(fan_out(calls, **settings), fleet(41)[1:], asked(check="temp", **batch)))
    await until(lambda: calls.now.total() == at_once)
    for _ in range(50):
        await asyncio.sleep(0)
    assert calls.now.total() == at_once
    gate.open.set()
    await asking
    assert calls.most == at_once


async def test_a_slow_node_of_a_batch_holds_up_nobody(calls: Calls):
    slow = Gate(calls)
    calls.peers["node-2"] = slow
    fan = fan_out(calls)
    async with aclosing(fan.ask(fleet(30), asked(check="temp", batch="2"), here)) as answers:
        first = [(await anext(answers)).node for _ in range(29)]
        assert "node-2" not in first
        slow.open.set()
        assert (await anext(answers)).node == "node-2"


async def test_heavy_checks_of_all_calls_together_run_on_so_many_nodes(calls: Calls):
    gate = Gate(calls)
    calls.peers = {f"node-{n}": gate for n in range(2, 30)}
    fan = fan_out(calls, heavy_at_once=5)
    asking = [asyncio.create_task(all_of(fan, fleet(29)[1:], asked(check="burn"))) for _ in range(3)]
    await until(lambda: calls.now.total() == 5)
    light = asyncio.create_task(all_of(fan, [PeerAgent("node-40", "10.0.0.40")], asked(check="temp")))
    await light  # which need not wait for them
    assert calls.now.total() == 5
    gate.open.set()
    await asyncio.gather(*asking)
    assert calls.most <= 6


async def test_last_results_of_heavy_checks_need_no_turn(calls: Calls):
    gate = Gate(calls)
    calls.peers["node-2"] = gate
    fan = fan_out(calls, heavy_at_once=1)
    burning = asyncio.create_task(all_of(fan, fleet(2)[1:], asked(check="burn")))
    await until(lambda: calls.now.total() == 1)
    assert (await all_of(fan, [PeerAgent("node-3", "10.0.0.3")], asked()))["node-3"].verdict is Verdict.PASS
    gate.open.set()
    await burning


async def test_when_nobody_listens_any_more_all_calls_are_off(calls: Calls):
    gate = Gate(calls)
    calls.peers = {f"node-{n}": gate for n in range(3, 30)}
    fan = fan_out(calls)
    answers = fan.ask(fleet(29)[1:], asked(check="temp"), here)
    assert (await anext(answers)).node == "node-2"
    await until(lambda: calls.now.total() == 27)
    await answers.aclose()
    assert (calls.now.total(), calls.cancelled) == (0, 27)
    asking = asyncio.create_task(all_of(fan, fleet(29)[2:], asked(check="burn")))
    await until(lambda: calls.now.total() == 16)
    asking.cancel()
    await asyncio.wait([asking])
    assert calls.now.total() == 0
    gate.open.set()
    assert len(await all_of(fan, fleet(29), asked(check="burn"))) == 29, "turns of heavy checks were given back"


async def test_for_a_client_that_does_not_read_nobody_is_asked_any_more(calls: Calls):
    answers = fan_out(calls, fleet_at_once=4).ask(fleet(1000)[1:], asked(check="temp"), here)
    await anext(answers)
    for _ in range(1000):
        await asyncio.sleep(0)
    assert len(calls.asked) < 20
    await answers.aclose()


async def test_a_node_that_hangs_is_given_up_long_before_its_checks_limit(calls: Calls, loop_time: Any):
    calls.peers["node-2"] = Gate(calls)
    calls.dead.add("node-2")
    probe = LivenessProbe(first_interval_s=30.0, failure_threshold=2)
    asking = asyncio.create_task(all_of(fan_out(calls, probe=probe), fleet(3), asked(check="burn")))
    await until(lambda: calls.now.total() == 1)
    await loop_time.passes(31.0)
    await until(lambda: calls.alive_asked == 1)
    assert not asking.done(), "a refusal that comes at once is no silence of some seconds"
    await loop_time.passes(probe.timeout_s)
    found = await asking
    assert reasons(found["node-2"]) == {"burn": "NoAnswer"}
    assert " 2 requests " in found["node-2"].error
    assert (found["node-3"].verdict, calls.now.total()) == (Verdict.PASS, 0)


async def test_a_node_whose_check_takes_long_is_waited_for_while_it_lives(calls: Calls, loop_time: Any):
    gate = Gate(calls)
    calls.peers["node-2"] = gate
    probe = LivenessProbe(first_interval_s=30.0, longest_interval_s=100.0, failure_threshold=1)
    asking = asyncio.create_task(all_of(fan_out(calls, probe=probe), fleet(2), asked(check="burn")))
    await until(lambda: calls.now.total() == 1)
    for looks, seconds in enumerate((30.0, 60.0, 100.0, 100.0), 1):
        await loop_time.passes(seconds)
        await until(lambda looks=looks: calls.alive_asked >= looks)
    gate.open.set()
    assert (await asking)["node-2"].verdict is Verdict.PASS


async def test_a_node_is_given_its_checks_own_limits_and_a_margin(calls: Calls):
    await all_of(fan_out(calls), fleet(2), asked(check="temp,fans"))
    await all_of(fan_out(calls), fleet(2), asked(check="temp,burn"))
    assert [limit_s for *_, limit_s in calls.asked] == [30 + MARGIN_S, 20 + 500 + 500 + MARGIN_S]
    many = [LIGHT] * (2 * LIGHT_AT_ONCE)
    assert timeout_s(many, heavy=False) == 2 * LIGHT.timeout_s + MARGIN_S, "they wait for each other there"
    assert timeout_s([HEAVY], heavy=False) == MARGIN_S, "last results are at hand"


class Measured:
    """Stands for measure_network."""

    def __init__(self, calls: Calls, answer: Mapping[str, Result] | Exception) -> None:
        self._calls, self._answer = calls, answer
        self.peers: list[str] = []
        self.options = IperfOptions()
        self.how: dict[str, Any] = {}
        self.calls_before = -1

    async def __call__(
        self, peers: Sequence[PeerAgent], call: Any, options: IperfOptions, limits: Any, **how: Any
    ) -> Mapping[str, Result]:
        assert call is self._calls
        self.how = how
        self.peers, self.options = [peer.node for peer in peers], options
        self.calls_before = len(self._calls.asked)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def slow(node: str) -> Result:
    return Result(check="iperf", verdict=Verdict.FAIL, reason="Slow", message=f"{node} is slow", started=7.0)


async def test_iperf_is_made_once_by_all_nodes_together_and_told_with_the_rest(calls: Calls):
    measure = Measured(calls, {"node-1": slow("node-1"), "node-2": slow("node-2")})
    peers = [*fleet(3), PeerAgent("node-4", "")]
    question = asked(check="temp,iperf,fans", plane="mgmt", serverspernode="2", batch="2", force="true")
    found = await all_of(fan_out(calls, measure=measure), peers, question)
    assert measure.how == {"force": True, "nodes_at_once": 2}
    assert (measure.peers, measure.options) == (["node-1", "node-2", "node-3"], IperfOptions(2, None, "mgmt"))
    assert measure.calls_before == 0, "before the other checks make traffic of their own"
    assert {query["check"] for _, _, query, _ in calls.asked} == {"temp,fans"}
    assert list(reasons(found["node-2"]).items()) == [("temp", ""), ("iperf", "Slow"), ("fans", "")]
    assert (found["node-1"].verdict, found["node-1"].results[1].started) == (Verdict.FAIL, 7.0)
    assert reasons(found["node-3"]) == {"temp": "", "iperf": "NotMeasured", "fans": ""}
    assert reasons(found["node-4"]) == {"temp": "NoAgent", "iperf": "NotMeasured", "fans": "NoAgent"}
    assert "node-4" in found["node-4"].results[1].message


async def test_iperf_alone_asks_no_node_anything_else(calls: Calls):
    measure = Measured(calls, {f"node-{n}": slow(f"node-{n}") for n in (1, 2)})
    found = await all_of(fan_out(calls, measure=measure), fleet(2), asked(check="iperf"))
    assert calls.asked == []
    assert {node: (a.verdict, reasons(a)) for node, a in found.items()} == {
        node: (Verdict.FAIL, {"iperf": "Slow"}) for node in ("node-1", "node-2")
    }


async def test_iperf_towards_a_named_server_is_a_question_like_any_other(calls: Calls):
    measure = Measured(calls, {})
    await all_of(fan_out(calls, measure=measure), fleet(2), asked(check="iperf", server="10.0.0.9"))
    assert measure.peers == []
    assert calls.asked[0][2] == {"host": "node-2", "check": "iperf", "server": "10.0.0.9", "format": "json"}


async def test_a_measurement_that_breaks_costs_no_other_check(calls: Calls):
    measure = Measured(calls, RuntimeError("a fault of ours"))
    found = await all_of(fan_out(calls, measure=measure), fleet(2), asked(check="temp,iperf"))
    assert reasons(found["node-2"]) == {"temp": "", "iperf": "Error"}
    assert found["node-2"].verdict is Verdict.UNKNOWN
