"""Whom the probe asks, and what it makes of a ping that cannot be had."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from muster_checks.base.commands import Output
from muster_checks.base.counter_history import History
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import run_probe
from muster_checks.base.vocabulary import Result, Verdict
from muster_checks.ping import PING, PingParameters
from muster_checks.ping.peers import choose_peers
from muster_checks.registry import SHIPPED
from muster_checks.testing.recorded import RecordedCommands, failed, hung

SAMPLES = Path(__file__).parent / "samples"
SOUND = (SAMPLES / "iputils-sound.txt").read_bytes()
SILENT = (SAMPLES / "iputils-silent.txt").read_bytes()
FLEET = {f"node-{number}": f"10.0.{number // 250}.{number % 250}" for number in range(100)}


class Clock:
    now = 3600.0

    def __call__(self) -> float:
        return self.now


def view(commands: RecordedCommands, clock: Clock | None = None) -> NodeView:
    return NodeView(Path("/nowhere"), commands, History(clock or Clock()), name="node-0")


def asked(commands: RecordedCommands) -> list[str]:
    return [argv[-1] for argv, _ in commands.calls]


async def run(node: NodeView, **values: object) -> Result:
    return await run_probe(PING, node, PingParameters.model_validate({"peers": FLEET, **values}))


def test_it_is_shipped():
    assert SHIPPED["ping"] == "muster_checks.ping:PING"


async def test_all_peers_are_asked_in_turn_eight_at_a_time_and_this_node_never():
    commands = RecordedCommands({"ping": SOUND})
    node = view(commands)
    for _ in range(13):  # ceil(99 / 8)
        before = len(commands.calls)
        assert (await run(node)).verdict is Verdict.PASS
        assert len(commands.calls) == before + 8
    assert set(asked(commands)) == set(FLEET.values()) - {FLEET["node-0"]}


async def test_where_to_begin_differs_from_start_to_start():
    first, second = RecordedCommands({"ping": SOUND}), RecordedCommands({"ping": SOUND})
    await run(view(first))
    later = Clock()
    later.now += 60
    await run(view(second, later))
    assert not set(asked(first)) & set(asked(second))


def test_nodes_do_not_all_ask_the_same_peer_at_once():
    samples = {tuple(choose_peers(list(FLEET), own, 8, 1)) for own in FLEET}
    assert len(samples) == len(FLEET)


async def test_the_cost_is_the_same_for_a_fleet_of_ten_thousand():
    fleet = {f"n{number}": f"10.{number // 62500}.{number // 250 % 250}.{number % 250}" for number in range(10_000)}
    commands = RecordedCommands({"ping": SOUND})
    await run(view(commands), peers=fleet)
    assert len(commands.calls) == 8


async def test_in_doubt_as_many_again_are_asked_before_this_node_is_accused():
    commands = RecordedCommands({"ping": SOUND})
    node = view(commands)
    await run(node)
    commands.answers["ping"] = SILENT
    commands.calls.clear()
    result = await run(node)
    assert len(set(asked(commands))) == 16
    assert (result.verdict, result.findings[0].component) == (Verdict.FAIL, "host")
    assert "16 of 16" in result.message


async def test_in_a_small_fleet_no_peer_is_counted_twice():
    commands = RecordedCommands({"ping": SILENT})
    result = await run(view(commands), peers=dict(list(FLEET.items())[:11]))
    assert len(commands.calls) == len(set(asked(commands))) == 10
    assert "10 of 10" in result.message


async def test_a_second_sample_that_answers_clears_this_node():
    first: list[str] = []

    def answer(argv: tuple[str, ...]) -> bytes:
        first.append(argv[-1])
        return SILENT if len(first) <= 8 else SOUND

    result = await run(view(RecordedCommands({"ping": answer})))
    assert result.verdict is Verdict.WARN
    assert next(f for f in result.findings if f.component == "host").verdict is Verdict.WARN


async def test_each_ping_has_a_deadline_and_numbers_only():
    commands = RecordedCommands({"ping": SOUND})
    await run(view(commands), peers="a=fe80::1%eth0", count=30, interval_s=1.0)
    argv, timeout_s = commands.calls[0]
    assert argv == ("ping", "-n", "-q", "-c", "30", "-i", "1", "-W", "1", "-w", "32", "fe80::1%eth0")
    assert 2 * timeout_s < PING.timeout_s


async def test_no_route_is_silence():
    commands = RecordedCommands({"ping": SOUND})
    node = view(commands)
    await run(node)
    commands.answers["ping"] = failed("ping", 2, b"ping: connect: Network is unreachable\n")
    assert (await run(node)).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (failed("ping", 2, b"ping: socket: Operation not permitted\n"), "ping_group_range"),
        (failed("ping", 1), "1"),
        (failed("ping", 127, b"ping: error while loading shared libraries\n"), "shared libraries"),
        (failed("ping", -9, stdout=SOUND), "SIGKILL"),
        (failed("ping", 126), "126"),
        (hung("ping"), "10 s"),
        (Output(argv=("ping",), missing="not found"), "not found"),
        (Output(argv=("ping",), exit_code=0, stdout=b"gibberish"), "summary"),
    ],
)
async def test_a_ping_that_does_not_work_is_unknown(output: Output, said: str):
    commands = RecordedCommands({"ping": SOUND})
    node = view(commands)
    await run(node)  # so that silence would be a FAIL
    commands.answers["ping"] = output
    result = await run(node)
    assert result.verdict is Verdict.UNKNOWN
    assert said in result.message


async def test_a_missing_ping_names_its_package():
    result = await run(view(RecordedCommands({})))
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "ToolMissing")
    assert "iputils-ping" in result.message


@pytest.mark.parametrize("peers", ["", {}, [], "node-0=10.0.0.1", " , "])
async def test_without_other_nodes_there_is_nothing_to_ask(peers: object):
    result = await run(view(RecordedCommands({"ping": SOUND})), peers=peers)
    assert (result.verdict, result.reason) == (Verdict.SKIP, "NoPeers")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("a=10.0.0.1, b=fd00::0002", {"a": "10.0.0.1", "b": "fd00::2"}),
        (["a=10.0.0.1"], {"a": "10.0.0.1"}),
        ("10.0.0.1,fd00::1", {"10.0.0.1": "10.0.0.1", "fd00::1": "fd00::1"}),
        ({"node-1.example": "10.0.0.1"}, {"node-1.example": "10.0.0.1"}),
        ("all", "all"),
    ],
)
def test_peers_may_be_written_in_several_ways(written: object, read: object):
    assert PingParameters.model_validate({"peers": written}).peers == read


@pytest.mark.parametrize("written", ["a=-f", "a=node-7", "-f", "a b=10.0.0.1", "../x=10.0.0.1", 7, None, {"a": 7.5}])
def test_peers_that_are_no_addresses_are_refused(written: object):
    with pytest.raises(ValidationError, match="expected"):
        PingParameters.model_validate({"peers": written})
